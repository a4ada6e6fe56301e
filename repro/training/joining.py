"""Whether this process was started as one of several that do one run. Imports no torch."""

from __future__ import annotations

import os

from repro.errors import UsageError

_TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def to_join() -> bool:
    """Whether this process was started as one of several, as torchrun does."""
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return False
    missing = [name for name in _TOLD if not os.environ.get(name)]
    if missing:
        what = f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {', '.join(missing)} is missing"
        raise UsageError(what, where="environment", fix="start it through torchrun, or unset WORLD_SIZE")
    return True
