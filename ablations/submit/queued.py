"""What the queue says of a study's runs: which task each waits for or is in, and what has become of it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ablations.submit import rayjobs
from ablations.submit.frozen import JOBS, Frozen, submissions
from ablations.submit.places import Place, Queued
from repro.runs import attempts
from repro.runs.directory import RunDirectory


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
    from slurm.queue import look

    queue = look(study.absolute() / JOBS)
    given, warnings = rayjobs.look(listed)
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
