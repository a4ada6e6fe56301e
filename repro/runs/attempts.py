"""Who may work on a run: numbered claims in `attempts/`, without file locks.

A claim is a file that appears whole and exclusively, so of many processes that claim at once exactly one wins. The next
number may be claimed only when the newest claim has ended or its owner is dead. On the same machine an owner is dead
when its process is; elsewhere, when its claim file has not been touched for `ttl` seconds by the clock of the file
system that holds it, so clocks that differ between machines do no harm. An owner that was wrongly held dead (a
suspended machine, a network file system away for minutes) finds a newer claim and must ask `Attempt.still_mine` before
it writes what others read.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from repro.errors import CheckError
from repro.files import create_bytes, write_bytes
from repro.runs.processes import Process

if TYPE_CHECKING:
    from repro.runs.directory import RunDirectory

EndState = Literal["done", "failed", "diverged", "stopped"]

TTL_SECONDS = 120.0
"""Silence after which an owner on another machine is held dead."""

_BEATS_PER_TTL = 6
_SHORT = 400
"""Characters of a reason that fit beside a claim into the first block of its file."""
_NAME = re.compile(r"\d{4,}\.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One attempt as its file tells it."""

    path: Path
    number: int
    owner: Process | None
    """None: the file is being written, or damaged; then only its age counts."""
    started: float
    """Unix seconds, by the owner's clock."""
    ttl: float
    """Seconds of silence after which the owner counts as dead to other machines."""
    beat: float
    """The file's time of change: its last sign of life, by the clock of the file system."""
    ended: EndState | None
    reason: str

    def working(self) -> bool:
        """Whether the attempt has not ended and its owner lives, as far as can be told from here."""
        if self.ended is not None:
            return False
        alive = self.owner.alive() if self.owner is not None else None
        return self.silence() <= self.ttl if alive is None else alive

    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return _now(self.path.parent) - self.beat

    def whose(self) -> str:
        """The owner in words: "attempt 2, host gpu7, pid 4711"."""
        if self.owner is None:
            return f"attempt {self.number}"
        return f"attempt {self.number}, host {self.owner.host}, pid {self.owner.pid}"


class Attempt:
    """The right to work on a run, kept alive by a thread until `end`.

    As a context manager it ends by itself: "failed" on an error, "stopped" when left without `end`.
    """

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.path = path
        self.number = int(path.stem)
        self._document = document
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=_beat, args=(path, document["ttl"] / _BEATS_PER_TTL, self._ended), name="heartbeat", daemon=True
        )
        self._thread.start()

    def still_mine(self) -> bool:
        """Whether no newer attempt was claimed. Ask before writing a checkpoint or a result."""
        following = self.path.with_name(_name(self.number + 1))
        return not self._ended.is_set() and self.path.exists() and not following.exists()

    def end(self, state: EndState, reason: str = "") -> None:
        """Stop the heartbeat and write how the attempt ended; a second call changes nothing.

        Works on a full disk, too. Raises CheckError when the file can be written in no way.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        if not self.path.exists():
            return  # the run was moved or removed: nothing to end, and no directory to make again
        ended = {"state": state, "reason": reason, "time": time.time()}
        try:
            write_bytes(self.path, _bytes(self._document | {"ended": ended}))
        except CheckError:
            # No room for a second copy. The claim's own block has room for some words more.
            ended["reason"] = reason[:_SHORT]
            _overwrite(self.path, _bytes(self._document | {"ended": ended}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            self.end("failed", f"{type(error).__name__}: {error}")
        else:
            self.end("stopped", type(error).__name__ if error is not None else "left before its end")


def claim(run: RunDirectory, *, ttl: float = TTL_SECONDS) -> Attempt | None:
    """The next attempt at `run`, or None when another process works on it or was quicker.

    Look at the run's result after claiming, not before: the owner before may just have finished. `ttl` is the silence
    in seconds after which other machines hold this attempt dead. Raises CheckError when the disk is full or refuses.
    """
    latest = newest(run)
    if latest is not None and latest.working():
        return None
    number = 1 if latest is None else latest.number + 1
    document = {
        "schema": 1,
        "number": number,
        "owner": Process.current().document(),
        "started": time.time(),
        "ttl": ttl,
        "ended": None,
    }
    path = _folder(run) / _name(number)
    return Attempt(path, document) if create_bytes(path, _bytes(document)) else None


def newest(run: RunDirectory) -> Claim | None:
    """The newest claim on `run`, or None when nobody ever claimed it."""
    paths = _paths(run)
    return _read(paths[-1]) if paths else None


def claims(run: RunDirectory) -> list[Claim]:
    """All claims on `run`, oldest first."""
    return [_read(path) for path in _paths(run)]


def _folder(run: RunDirectory) -> Path:
    return run.path / "attempts"


def _name(number: int) -> str:
    return f"{number:04d}.json"


def _paths(run: RunDirectory) -> list[Path]:
    try:
        paths = [path for path in _folder(run).iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    return sorted(paths, key=lambda path: int(path.stem))


def _bytes(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def _read(path: Path) -> Claim:
    # Opened, not only asked for its time: a network file system then answers with fresh attributes.
    with path.open("rb") as file:
        content, beat = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        document = json.loads(content)
        ended = document["ended"]
        return Claim(
            path=path,
            number=int(path.stem),
            owner=Process.read(document["owner"]),
            started=float(document["started"]),
            ttl=float(document["ttl"]),
            beat=beat,
            ended=ended["state"] if ended is not None else None,
            reason=str(ended["reason"]) if ended is not None else "",
        )
    except (ValueError, KeyError, TypeError):
        return Claim(
            path=path,
            number=int(path.stem),
            owner=None,
            started=beat,
            ttl=TTL_SECONDS,
            beat=beat,
            ended=None,
            reason="",
        )


def _overwrite(path: Path, content: bytes) -> None:
    """Write over the file in place; it only ever grows, so no old tail is left."""
    with path.open("r+b", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())


def _beat(path: Path, seconds: float, ended: threading.Event) -> None:
    while not ended.wait(seconds):
        # One missed beat is made good by the next; a claim that was moved away needs none.
        with suppress(OSError):
            os.utime(path)


def _now(folder: Path) -> float:
    """Unix seconds by the clock that stamps files in `folder`; by ours where nothing can be written."""
    try:
        handle, probe = tempfile.mkstemp(prefix=".probe.", dir=folder)
    except OSError:
        return time.time()
    try:
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)
        with suppress(FileNotFoundError):
            os.unlink(probe)
