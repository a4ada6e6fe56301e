"""Whether this process was started as one of several that do one run. Imports no torch."""

from __future__ import annotations

import os

from repro.errors import UsageError

_TOLD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_WHOLE = ("RANK", "MASTER_PORT", "LOCAL_RANK", "SLURM_LOCALID")
_FIX = "start it through torchrun, or unset WORLD_SIZE"


def to_join() -> bool:
    """Whether this process was started as one of several, as torchrun does."""
    size = _whole("WORLD_SIZE")
    if size is None or size < 2:
        return False
    missing = [name for name in _TOLD if not os.environ.get(name)]
    if missing:
        raise UsageError(f"WORLD_SIZE is {size}, but {', '.join(missing)} is missing", where="environment", fix=_FIX)
    for name in _WHOLE:
        _whole(name)
    return True


def _whole(name: str) -> int | None:
    """The whole number in an environment variable; None without one."""
    text = os.environ.get(name, "").strip()
    if text and not (text.isascii() and text.isdigit()):
        raise UsageError(f"{name} is {text!r}, not a whole number", where="environment", fix=_FIX)
    return int(text) if text else None
