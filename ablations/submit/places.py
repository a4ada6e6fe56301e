"""A run's place in a queue, in the words of whichever scheduler it waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.study import StudyRun

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
