"""Every random stream's seed, derived by SHA-256 from names: no global generator, no hidden state."""

from __future__ import annotations

import hashlib


def derive_seed(*names: str | int) -> int:
    """A 63-bit seed from a path of names, e.g. `derive_seed("smoke", 3, "dropout", step)`.

    The first names are the scale and the run's seed; never the variant, so that variants see the same
    batches, and never the study's directory, so that a moved or renamed study keeps its bits.
    """
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") >> 1
