"""A disk that is really full, where this process may mount one; otherwise writes that fail as on a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    """A directory whose file system can be filled to the last byte."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, mounted: bool) -> None:
        self.path, self._monkeypatch, self._mounted = path, monkeypatch, mounted

    def fill(self) -> None:
        if not self._mounted:
            for name in ("write", "fsync"):
                self._monkeypatch.setattr(os, name, _no_space)
            return
        with (self.path / "filler").open("ab", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(b"x" * 512)

    def forbid(self) -> None:
        """Let nothing be written, as on a disk that was found faulty and mounted anew."""
        if self._mounted:
            subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)
            return
        for name in ("write", "fsync", "utime", "replace", "link", "mkdir", "rename", "truncate", "ftruncate"):
            self._monkeypatch.setattr(os, name, _read_only)

    def allow(self) -> None:
        """Let it be written again."""
        if self._mounted:
            subprocess.run(["mount", "-o", "remount,rw", str(self.path)], check=True)
        else:
            self._monkeypatch.undo()

    def free(self) -> None:
        if self._mounted:
            (self.path / "filler").unlink()
        else:
            self._monkeypatch.undo()


@contextmanager
def small_disk(path: Path, monkeypatch: pytest.MonkeyPatch, kibibytes: int = 1024) -> Iterator[SmallDisk]:
    """An empty file system of `kibibytes` at `path`."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(path)]
    mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield SmallDisk(path, monkeypatch, mounted=mounted)
    finally:
        if mounted:
            subprocess.run(["umount", str(path)], check=True)


def _no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def _read_only(*_: object, **__: object) -> int:
    raise OSError(errno.EROFS, "Read-only file system")
