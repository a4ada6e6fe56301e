"""One of the processes that do a run together on this machine: `python -m repro.runs.member`, started by `launch`.

The first line of standard input says what to do; a line "stop" later asks rank 0 to save and stop; its end means that
the starter is gone, and this process with it. Rank 0 tells on standard output how the run goes and how it ended, one
JSON document a line; everything else that is printed goes to standard error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from repro.config.schema import from_document
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.ending import Ending, ending_of
from repro.runs.events import Progress


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """What one process is told to do."""

    run: str
    """The run's directory."""
    attempt: int
    """The number of the starter's claim."""
    log: str
    """Where a traceback goes."""
    data_directory: str | None
    rank: int
    size: int
    meeting: str
    """A file, not there yet, by which the processes find each other."""


class Lent:
    """The starter's right to the run, for as long as nobody claims it anew."""

    def __init__(self, run: RunDirectory, number: int) -> None:
        self._run, self.number = run, number

    def still_mine(self) -> bool:
        """Whether the starter's claim is the newest."""
        latest = attempts.newest(self._run)
        return latest is not None and latest.number == self.number


class Reports:
    """The observer that tells the starter."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def progress(self, event: Progress) -> None:
        """Pass `event` on."""
        self._tell({"progress": dataclasses.asdict(event)})

    def end(self, ending: Ending, *, lost: bool) -> None:
        """Tell how the run ended; `lost`: because another process was gone."""
        self._tell({"ending": ending.document(), "lost": lost})

    def _tell(self, document: dict[str, Any]) -> None:
        self._stream.write(json.dumps(document) + "\n")
        self._stream.flush()


def main() -> int:
    """Do the errand; exit code 0 when it came to an end that was told or agreed on."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the starter is who is asked, and asks
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    errand = from_document(Errand, json.loads(sys.stdin.readline()))
    asked = _listen(sys.stdin)
    return _lead(errand, Reports(reports), asked.is_set) if errand.rank == 0 else _follow(errand)


def _listen(stream: IO[str]) -> threading.Event:
    """An event that is set by a line; the end of `stream` ends this process at once."""
    asked = threading.Event()

    def listen() -> None:
        for _ in stream:
            asked.set()
        os._exit(1)

    threading.Thread(target=listen, name="starter", daemon=True).start()
    return asked


def _lead(errand: Errand, reports: Reports, stop: Callable[[], bool]) -> int:
    from repro.runs.session import lead
    from repro.training.parallel import Group, LostError

    run, lost = RunDirectory(Path(errand.run)), False

    def work() -> None:
        nonlocal lost
        try:
            group = Group.meet(0, errand.size, Path(errand.meeting))
            lead(run, Lent(run, errand.attempt), reports, stop, _data(errand), group)
        except LostError:
            lost = True
            raise

    ending = ending_of(work, Path(errand.log))
    reports.end(ending, lost=lost)
    return 0


def _follow(errand: Errand) -> int:
    from repro.runs.training import follow
    from repro.training.parallel import Group

    group = Group.meet(errand.rank, errand.size, Path(errand.meeting))
    return 0 if follow(RunDirectory(Path(errand.run)), _data(errand), group) else 1


def _data(errand: Errand) -> Path | None:
    return Path(errand.data_directory) if errand.data_directory is not None else None


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # what is left of a group whose other processes are gone may wait for them at an orderly exit
