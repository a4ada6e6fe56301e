"""What the queue says of a study's runs: which task each waits for or is in, and what has become of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ablations.study import StudyRun
from ablations.submit.frozen import JOBS, Frozen, submissions
from repro.runs import attempts
from repro.runs.directory import RunDirectory

LIVE = ("waiting", "running", "again")
"""Meanings of tasks that have processes or will have some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A run's place in a queue."""

    token: str
    job: str
    """The scheduler's number of it; empty: not known."""
    task: int | None
    """The task's number in the submission; None: the job does all of it."""
    state: str
    """In the scheduler's words."""
    meaning: str
    """waiting, running, again, ended, failed, gone or unknown."""
    reason: str

    @property
    def live(self) -> bool:
        """Whether the task has processes or will have some."""
        return self.meaning in LIVE

    def in_words(self) -> str:
        """For a table's cell: "waiting (job 4711, Resources)", "failed (job 4711, TIMEOUT)"."""
        why = self.reason if self.live else self.state
        parts = [f"job {self.job}" if self.job else "", why if why.lower() not in ("none", self.meaning) else ""]
        told = ", ".join(part for part in parts if part)
        return f"{self.meaning} ({told})" if told else self.meaning


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """The queue's part of a study."""

    places: Mapping[Path, Place]
    """By the run's directory; without those that no submission lists."""
    warnings: Sequence[str]
    asked: bool = True
    """Whether SLURM answered, where it was asked."""

    def document(self) -> dict[str, Any]:
        """As `status --json` prints it, the runs' places apart."""
        meanings = [place.meaning for place in self.places.values()]
        return {
            "counts": {name: meanings.count(name) for name in sorted(set(meanings))},
            "warnings": list(self.warnings),
        }

    def entry(self, run: StudyRun) -> dict[str, Any] | None:
        """A run's place for a document; None when it has none."""
        place = self.places.get(run.path.absolute())
        return None if place is None else dataclasses.asdict(place)

    def told(self, run: StudyRun) -> str:
        """A run's place for a table."""
        place = self.places.get(run.path.absolute())
        return "" if place is None else place.in_words()


class _Task(Protocol):
    """What every scheduler's tasks tell."""

    @property
    def token(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def task(self) -> int | None: ...
    @property
    def state(self) -> str: ...
    @property
    def meaning(self) -> str: ...
    @property
    def reason(self) -> str: ...


def queued(study: Path) -> Queued | None:
    """The queue's part of the study in `study`; None when nothing of it was ever submitted."""
    listed = submissions(study.absolute())
    if not listed:
        return None
    from ablations.submit import rays
    from slurm.queue import look

    queue = look(study.absolute() / JOBS)
    given, warnings = rays.look(listed)
    known: list[_Task] = [*queue.tasks, *given]
    places: dict[Path, Place] = {}
    for frozen in listed:
        tasks = [task for task in known if task.token == frozen.token]
        taken = _taken(frozen) if tasks else {}
        for task in tasks:
            own = frozen.runs if frozen.mode != "array" or task.task is None else frozen.runs[task.task : task.task + 1]
            place = Place(
                token=frozen.token,
                job=task.job,
                task=task.task,
                state=task.state,
                meaning=task.meaning,
                reason=task.reason,
            )
            for path in [*(frozen.study / run for run in own), *taken.get(str(task.task), [])]:
                before = places.get(path)
                if before is None or place.live or not before.live:  # one that lives, or the newest
                    places[path] = place
    return Queued(places=places, warnings=(*queue.warnings, *warnings), asked=queue.asked)


def _taken(frozen: Frozen) -> dict[str, list[Path]]:
    """The runs that each task of a submission has claimed, its own or one that it took instead, by its number."""
    found: dict[str, list[Path]] = {}
    for path in (frozen.study / run for run in frozen.runs):
        latest = attempts.newest(RunDirectory(path))
        if latest is not None and latest.by.get("submission") == frozen.token:
            found.setdefault(latest.by.get("task", ""), []).append(path)
    return found
