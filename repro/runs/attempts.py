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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from repro.errors import CheckError, may_pass
from repro.files import create_bytes, read_json, write_bytes
from repro.runs.processes import Process

if TYPE_CHECKING:
    from repro.runs.directory import RunDirectory

EndState = Literal["done", "failed", "diverged", "stopped"]

TTL_SECONDS = 120.0
"""Silence after which an owner on another machine is held dead."""

_BEATS_PER_TTL = 6
_END_OF_TIME = 1e11
"""Unix seconds (in the year 5138) that no claim comes to."""
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
    may_pass: bool = False
    """Of an attempt that failed: whether another one may fare better."""
    buried: bool = False
    """Whether not the owner wrote the end but somebody who knew that it was dead."""
    by: Mapping[str, str] = field(default_factory=dict)
    """What had the owner do it, in the words of `claim`'s caller."""

    @property
    def died(self) -> bool:
        """Whether its owner ended without a word; only to be asked when it is not working."""
        return self.ended is None or self.buried

    def working(self) -> bool:
        """Whether the attempt has not ended and its owner lives, as far as can be told from here."""
        if self.ended is not None:
            return False
        alive = self.owner.alive() if self.owner is not None else None
        return self.silence() <= self.ttl if alive is None else alive

    def silence(self) -> float:
        """Seconds since the last sign of life."""
        return _now(self.path.parent) - self.beat

    def end_without_a_word(self) -> str:
        """How an attempt that nobody works on ended, as far as can be told from here."""
        if self.owner is not None and self.owner.alive() is False:
            return f"its process ended without a word ({self.whose()})"
        return (
            f"no sign of life since {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(self.beat))} UTC ({self.whose()})"
        )

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

    def end(self, state: EndState, reason: str = "", *, may_pass: bool = False) -> None:
        """Stop the heartbeat and write how the attempt ended; a second call changes nothing.

        `may_pass`: whether another attempt may fare better than this one, which failed. Works on a full disk, too.
        Raises OSError when the file can be written in no way: the claim then stands until this process ends.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        if not self.path.exists():
            return  # the run was moved or removed: nothing to end, and no directory to make again
        ended: dict[str, Any] = {"state": state, "reason": reason, "time": time.time()}
        if state == "failed":
            ended["may_pass"] = may_pass
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
            self.end("failed", f"{type(error).__name__}: {error}", may_pass=may_pass(error))
        else:
            self.end("stopped", type(error).__name__ if error is not None else "left before its end")


def claim(run: RunDirectory, *, ttl: float = TTL_SECONDS, by: Mapping[str, str] | None = None) -> Attempt | None:
    """The next attempt at `run`, or None when another process works on it or was quicker.

    Look at the run's result after claiming, not before: the owner before may just have finished. `ttl` is the silence
    in seconds after which other machines hold this attempt dead. `by` is kept with the claim, for whoever may know
    more of its owner. Raises CheckError when the disk is full or refuses.
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
        "by": dict(by or {}),
        "ended": None,
    }
    path = _folder(run) / _name(number)
    return Attempt(path, document) if create_bytes(path, _bytes(document)) else None


def bury(dead: Claim, reason: str) -> None:
    """Write an end to the claim of an owner that is known to be dead, so that the next may claim at once.

    Should it live after all, it finds a newer claim, as one whose silence was too long.
    """
    try:
        document = read_json(dead.path)
        document["ended"] = document["ended"] or {
            "state": "stopped",
            "reason": reason,
            "time": time.time(),
            "buried": True,
        }
    except (CheckError, KeyError, TypeError):
        return  # it is gone, or damaged: then its age decides
    write_bytes(dead.path, _bytes(document))


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
            started=_seconds(document["started"]),
            ttl=_seconds(document["ttl"]),
            beat=beat,
            ended=ended["state"] if ended is not None else None,
            reason=str(ended["reason"]) if ended is not None else "",
            may_pass=bool(ended.get("may_pass")) if ended is not None else False,
            buried=bool(ended.get("buried")) if ended is not None else False,
            by={str(key): str(value) for key, value in document.get("by", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
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


def _seconds(value: Any) -> float:
    """`value` as a time; ValueError when no clock can show it."""
    seconds = float(value)
    if not 0.0 <= seconds < _END_OF_TIME:
        raise ValueError(f"{seconds} s")
    return seconds


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
