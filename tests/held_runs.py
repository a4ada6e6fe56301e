"""Runs held in the middle: what happens to them then is sure to meet them at work, however quick the machine is."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from repro.runs.directory import RunDirectory

PATIENCE = 600.0
"""Seconds after which a test gives up waiting; never a statement about speed."""
_STATE, _WAITING = "State", "ShdPnd"
"""Lines of /proc/PID/status: what the process does; the signals that wait for it, as bits."""


def hold(
    find: Callable[[], Iterable[RunDirectory]], count: int = 1, told: Callable[[], object] = lambda: "no run to hold"
) -> dict[int, RunDirectory]:
    """Wait until so many of the runs that `find` gives are trained, and stop the process of each at once (SIGSTOP).

    A run is trained from its first checkpoint on; one that goes on from another attempt's, as soon as it begins.
    Returns the runs by process id. A held run counts as worked on, however long it is held.
    """
    held: dict[int, RunDirectory] = {}
    ends = time.monotonic() + PATIENCE
    while len(held) < count:
        for run in find():
            pid = trained_by(run)
            if pid and pid not in held:
                os.kill(pid, signal.SIGSTOP)
                while _told(pid, _STATE)[:1] in ("R", "S", "D"):
                    pass
                assert run.status().state == "running", f"{run.path.name} ended before it could be held"
                held[pid] = run
        assert time.monotonic() < ends, told()
        time.sleep(0.01)
    return held


def let_go(pids: Iterable[int], told: Callable[[], object] = lambda: "no signal came") -> None:
    """Let the held processes go on as soon as a signal waits for each, or somebody else has let it go, or ended it."""
    ends = time.monotonic() + PATIENCE
    for pid in pids:
        while _told(pid, _STATE).startswith("T") and not int(_told(pid, _WAITING) or "1", 16):
            assert time.monotonic() < ends, told()
            time.sleep(0.01)
        go_on([pid])


def let_go_once_asked(pids: Iterable[int], study: Path) -> None:
    """Let the held processes go on as soon as their sweep wants them to save and stop."""
    ends = time.monotonic() + PATIENCE
    while not any(study.glob(".sweep*/stop")):
        assert time.monotonic() < ends, "the sweep does not want to end"
        time.sleep(0.01)
    go_on(pids)


def go_on(pids: Iterable[int]) -> None:
    """Let the held processes go on; those that have ended are left alone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def trained_by(run: RunDirectory) -> int:
    """The process id of who trains `run`, as `hold` has it; 0 when nobody does."""
    status, begun = run.status(), run.environment() or {}
    trained = status.state == "running" and begun.get("attempt") == status.attempt
    return status.pid if trained and any(run.checkpoints.glob("step-*")) else 0


def _told(pid: int, name: str) -> str:
    """What the line `name` of the process says; nothing when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return value.strip()
    return ""
