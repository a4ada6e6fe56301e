"""Several processes of this machine for one run: started, watched and ended here. Imports no torch.

The caller keeps the claim on the run; the process of rank 0 does all the writing. When a process dies the others are
ended and the attempt has failed; when the caller dies, even by SIGKILL, its processes end with it.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import repro
from repro.runs.directory import RunDirectory
from repro.runs.ending import Ending
from repro.runs.events import Observer, Progress
from repro.runs.member import Errand
from repro.runs.owned import owned_directory

GRACE_SECONDS = 20.0
"""How long the other processes may take to notice that one is gone, or that the run is at its end."""

_PREFIX = "ablate-"
_POLL_SECONDS = 0.2
_TAIL = 2000
"""Characters of what a dead process said last that are kept."""


@dataclass(frozen=True, slots=True)
class _Exit:
    rank: int
    code: int


def launch(
    run: RunDirectory,
    attempt: int,
    log: Path,
    observer: Observer,
    stop: Callable[[], bool],
    data_directory: Path | None,
    processes: int,
) -> Ending:
    """Do `run`, claimed as number `attempt`, with so many processes here, and return how that ended.

    On a machine with GPUs each process takes one. `stop` is asked now and then. Tracebacks go to `log`.
    """
    folder = owned_directory(Path(tempfile.gettempdir()), _PREFIX)
    crew = _Crew(observer, stop, log)
    try:
        for rank in range(processes):
            crew.start(
                Errand(
                    run=str(run.path.absolute()),
                    attempt=attempt,
                    log=str(log.absolute()),
                    data_directory=None if data_directory is None else str(data_directory.absolute()),
                    rank=rank,
                    size=processes,
                    meeting=str(folder / "meeting"),
                )
            )
        return crew.watch()
    finally:
        crew.end()
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True)
class _Member:
    process: subprocess.Popen[str]
    said: IO[bytes]
    """Its standard error."""


@dataclass(slots=True)
class _Crew:
    """The processes, and what is known of them."""

    observer: Observer
    stop: Callable[[], bool]
    log: Path
    members: list[_Member] = field(default_factory=list)
    events: queue.SimpleQueue[dict[str, Any] | _Exit] = field(default_factory=queue.SimpleQueue)
    asked: bool = False
    exits: dict[int, int] = field(default_factory=dict)
    ending: Ending | None = None
    lost: bool = False

    def start(self, errand: Errand) -> None:
        """Start one more process."""
        said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        root = str(Path(repro.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "repro.runs.member"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            encoding="utf-8",
            env=os.environ | {"PYTHONPATH": path},
            process_group=0,  # a terminal's interrupt is for the starter, which then asks in order
        )
        self.members.append(_Member(process, said))
        self._write(errand.rank, json.dumps(asdict(errand)))
        threading.Thread(target=self._read, args=(errand.rank,), name=f"rank {errand.rank}", daemon=True).start()

    def watch(self) -> Ending:
        """Pass on what is told until the run is at its end, or a process is and the rest had time to say why."""
        deadline: float | None = None
        while not self._over() and (deadline is None or time.monotonic() < deadline):
            try:
                event = self.events.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                event = {}
            self._take(event)
            if deadline is None and (self.ending is not None or any(self.exits.values())):
                deadline = time.monotonic() + GRACE_SECONDS
            if not self.asked and self.stop():
                self.asked = True
                self._write(0, "stop")
        return self._ending()

    def end(self) -> None:
        """End what still runs."""
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()
            member.process.wait()
            with suppress(BrokenPipeError):
                if member.process.stdin is not None:
                    member.process.stdin.close()
            member.said.close()

    def _over(self) -> bool:
        """Whether all processes are at their end, or rank 0 is and said nothing, for which there is no remedy."""
        return len(self.exits) == len(self.members) or (0 in self.exits and self.ending is None)

    def _take(self, event: dict[str, Any] | _Exit) -> None:
        if isinstance(event, _Exit):
            self.exits[event.rank] = event.code
        elif "progress" in event:
            self.observer.progress(Progress(**event["progress"]))
        elif "ending" in event:
            self.ending, self.lost = Ending.read(event["ending"]), event["lost"]

    def _ending(self) -> Ending:
        """The end as rank 0 told it, unless a process died: then that is the reason."""
        killed = {rank: code for rank, code in self.exits.items() if code < 0}
        if self.ending is not None and not (self.lost and killed):
            if self.lost:  # the traceback of the process that failed says more than rank 0's
                for rank in (rank for rank, code in self.exits.items() if code):
                    self._kept(rank)
            return self.ending
        died = killed or {rank: code for rank, code in self.exits.items() if code}
        if not died:
            return Ending(state="failed", reason="its processes ended without a word", may_pass=True)
        rank, code = next(iter(died.items()))
        reason = f"process {rank + 1} of {len(self.members)} {_told(code)}"
        return Ending(state="failed", reason=reason + self._kept(rank), may_pass=True)

    def _kept(self, rank: int) -> str:
        """Keep what the process of `rank` said last beside the claim; where that is, in brackets."""
        said = self.members[rank].said
        said.seek(0)
        text = said.read().decode("utf-8", "replace")[-_TAIL:].strip()
        if not text:
            return ""
        self.log.write_text(text + "\n", encoding="utf-8")
        return f" (what it said is in {self.log.parent.name}/{self.log.name})"

    def _write(self, rank: int, line: str) -> None:
        stream = self.members[rank].process.stdin
        assert stream is not None
        with suppress(BrokenPipeError):  # its end is noticed elsewhere
            stream.write(line + "\n")
            stream.flush()

    def _read(self, rank: int) -> None:
        """Queue what a process tells and, after all of it, its exit code."""
        process = self.members[rank].process
        assert process.stdout is not None
        with suppress(ValueError):  # a line that was cut short by its end
            for line in process.stdout:
                self.events.put(json.loads(line))
        self.events.put(_Exit(rank, process.wait()))


def _told(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
