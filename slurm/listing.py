"""Listings: what squeue and sacct say, as entries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from repro.errors import CheckError
from slurm.commands import Answer, ask


class NoAnswerError(Exception):
    """SLURM could not be asked; its own words say why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One task of a job as SLURM lists it. `job` is that of the array."""

    job: str
    index: int | None
    state: str
    comment: str
    name: str
    reason: str = ""

    def carries(self, ticket: str) -> bool:
        """Whether this is the job with `ticket`: some sites write their own comments, so the name serves as well."""
        return self.comment == ticket or self.name == ticket or self.name.endswith(f"-{ticket}")


def waiting_line(jobs: Sequence[str] | None, *, seconds: float) -> list[Entry]:
    """The entries of `jobs`, or all of this user, that the controller still remembers: one call of squeue.

    The format works on every SLURM; `--json` does not. Raises NoAnswerError.
    """
    which = f"--jobs={','.join(jobs)}" if jobs is not None else f"--user={os.geteuid()}"
    answer = _ask(
        "squeue", "--noheader", "--array", "--states=all", which, "--format=%F|%K|%T|%r|%k|%j", seconds=seconds
    )
    if not answer.ok:
        if jobs is not None and "invalid job id" in answer.err.lower():
            return []  # The controller has forgotten all of them.
        raise NoAnswerError(f"squeue: {answer.told()}")
    found = []
    for job, index, state, reason, comment, name in _rows(answer, 6, "squeue"):
        found.append(Entry(job=job, index=_index(index), state=state, reason=reason, comment=comment, name=name))
    return found


def accounts(jobs: Sequence[str] | None, *, since: str = "", seconds: float) -> list[Entry]:
    """The same from the accounting database, which many clusters lack: of `jobs`, or of all since a day before `since`.

    Raises NoAnswerError.
    """
    which = [f"--jobs={','.join(jobs)}"] if jobs is not None else [f"--starttime={_day_before(since)}"]
    columns = "--format=JobID,State,Comment,JobName"
    answer = _ask("sacct", "--noheader", "--parsable2", "--allocations", *which, columns, seconds=seconds)
    if not answer.ok:
        raise NoAnswerError(f"sacct: {answer.told()}")
    found = []
    for number, state, comment, name in _rows(answer, 4, "sacct"):
        job, _, task = number.partition("_")
        found += [Entry(job=job, index=at, state=state, comment=comment, name=name) for at in _indices(task)]
    return found


def _ask(*command: str, seconds: float) -> Answer:
    try:
        return ask(*command, seconds=seconds)
    except CheckError as error:
        raise NoAnswerError(str(error)) from error


def _rows(answer: Answer, columns: int, program: str) -> list[list[str]]:
    """The columns of each line; the last may hold the separator itself.

    The name of another job may have a line's end in it: what is no row is passed over, unless nothing is one.
    """
    lines = [line for line in answer.out.split("\n") if line]
    rows = [row for row in (line.split("|", columns - 1) for line in lines) if len(row) == columns]
    if lines and not rows:
        raise NoAnswerError(f"{program}: it printed {lines[0][:60]!r}")
    return [["" if column in {"(null)", "None"} else column for column in row] for row in rows]


def _index(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _indices(task: str) -> Iterable[int | None]:
    """The index of "12_3", or those of "12_[3-5,7%2]", which sacct prints for tasks that have not started."""
    if not task.startswith("["):
        return [_index(task)]
    found = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", task.partition("%")[0]):
        found += list(range(int(first), int(last or first) + 1))
    return found


def _day_before(moment: str) -> str:
    """In local time, as sacct reads it; a day for clocks that differ."""
    then = datetime.fromisoformat(moment) if moment else datetime.now(UTC)
    return (then - timedelta(days=1)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
