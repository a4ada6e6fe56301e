"""One process at a time, by a lock that the system releases when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablations.tracking.errors import TrackingError

_UNSUPPORTED = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK}
"""What a file system without locks answers."""


@contextmanager
def exclusive(path: Path, *, seconds: float, name: str = "") -> Iterator[bool]:
    """Hold the lock file `path`; yields whether a holder called `name` was also the last one before.

    Raises TrackingError when another process holds it for longer than `seconds`. On a file system without locks
    nothing is held and the answer is no.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not _acquire(handle, time.monotonic() + seconds):
            raise TrackingError(f"another process has been writing to the tracking store for {seconds:.0f} s ({path})")
        mine = os.pread(handle, 100, 0).decode("ascii", "replace") == name
        if not mine:
            os.ftruncate(handle, 0)
            os.pwrite(handle, name.encode("ascii"), 0)
        yield mine
    finally:
        os.close(handle)


def _acquire(handle: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return True
            raise
        else:
            return True
