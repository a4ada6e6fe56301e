"""The queue: what SLURM says of the jobs that a folder records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slurm import listing
from slurm.listing import Entry, NoAnswerError
from slurm.record import Note, Record, records
from slurm.states import Meaning, lives, meaning


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task of a submission: SLURM's word for its state, what this means, and SLURM's reason."""

    token: str
    job: str
    task: int | None
    """Its number in the submission; None in Ray mode."""
    state: str
    meaning: Meaning
    reason: str = ""

    @property
    def lives(self) -> bool:
        """Whether it will go on by itself."""
        return lives(self.meaning)


@dataclass(frozen=True)
class Queue:
    """All tasks that a folder records, and what could not be found out."""

    tasks: list[Task] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    asked: bool = True
    """Whether SLURM answered what it was asked of the jobs that it has."""


@dataclass(frozen=True)
class _Known:
    """What SLURM said: entries by job and array index, and whether its own memory could be asked at all."""

    entries: dict[tuple[str, int | None], Entry]
    asked: bool


def look(folder: Path) -> Queue:
    """What is known of the jobs recorded in `folder`: by squeue, else sacct, else what the tasks noted of themselves.

    Where nothing is recorded, no command is called. That SLURM does not answer is a warning, never an error.
    """
    warnings: list[str] = []
    found = records(folder, damaged=warnings)
    if not found:
        return Queue(warnings=warnings)
    known = _known(found, warnings)
    queue = Queue([task for record in found for task in _tasks(record, known)], warnings, known.asked)
    _warn_of_unknown(queue)
    return queue


def _known(found: Sequence[Record], warnings: list[str]) -> _Known:
    """One call of squeue for all, and one of sacct for those that the controller has forgotten."""
    seconds = max(record.site.answer_seconds for record in found)
    jobs = [record.job for record in found if record.job is not None]
    complete = len(jobs) == len(found)
    entries: dict[tuple[str, int | None], Entry] = {}
    asked = _merge(entries, lambda: listing.waiting_line(jobs if complete else None, seconds=seconds), warnings)
    missing = {record.job for record in found if record.job and _incomplete(record, entries)}
    if missing:
        _merge(entries, lambda: listing.accounts(sorted(missing), seconds=seconds), warnings)
    return _Known(entries, asked)


def _merge(entries: dict[tuple[str, int | None], Entry], ask: Callable[[], list[Entry]], warnings: list[str]) -> bool:
    try:
        for entry in ask():
            entries.setdefault((entry.job, entry.index), entry)
    except NoAnswerError as error:
        warnings.append(str(error))
        return False
    return True


def _incomplete(record: Record, entries: dict[tuple[str, int | None], Entry]) -> bool:
    """Whether neither the controller nor a task's own last note tells of some task."""
    return any((record.job, index) not in entries and not _ended(record, index) for index in _indices(record))


def _ended(record: Record, index: int | None) -> bool:
    note = Note.load(record.note(index or 0))
    return note is not None and note.state in {"ended", "failed"}


def _indices(record: Record) -> Sequence[int | None]:
    return range(record.tasks) if record.request.mode == "array" else [None]


def _tasks(record: Record, known: _Known) -> list[Task]:
    job = record.job
    if job is None:  # sbatch has not told its number, or was never called.
        job = next((entry.job for entry in known.entries.values() if entry.carries(record.ticket)), None)
    return [_task(record, job, index, known) for index in _indices(record)]


def _task(record: Record, job: str | None, index: int | None, known: _Known) -> Task:
    number = None if index is None else record.first + index
    entry = known.entries.get((job, index)) if job else None
    if entry is not None and entry.carries(record.ticket):  # Numbers of jobs come again after years.
        state, meant, reason = entry.state, meaning(entry.state), entry.reason
    else:
        state, meant = _noted(Note.load(record.note(index or 0)), known.asked)
        reason = "" if job or meant == "unknown" else "sbatch never took it"
    return Task(token=record.token, job=job or "", task=number, state=state, meaning=meant, reason=reason)


def _noted(note: Note | None, asked: bool) -> tuple[str, Meaning]:
    """SLURM knows nothing of the task: what it noted when it ended stands, and what should still live is gone."""
    if note is not None and note.state in {"ended", "failed"}:
        return note.state, note.state
    return (note.state if note else ""), ("gone" if asked else "unknown")


def _warn_of_unknown(queue: Queue) -> None:
    words = {task.state for task in queue.tasks if task.meaning == "unknown" and task.state}
    words -= {"running", "again"}  # Our own notes.
    for word in sorted(words):
        queue.warnings.append(f"SLURM says {word!r} of a job, which is no state known here; it is left alone")
