"""What tracking did, in numbers and in words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(kw_only=True, slots=True)
class SyncReport:
    """What one look at all run directories did to the store, and what it could not do."""

    store: str
    experiment: str
    new: set[str] = field(default_factory=set)
    """Ids of the runs that the store did not have."""
    updated: set[str] = field(default_factory=set)
    same: set[str] = field(default_factory=set)
    runs_planned: int = 0
    """Not begun: the store shows nothing of them."""
    points: int = 0
    """Metric values sent."""
    files: int = 0
    """Artifacts stored."""
    duplicates: int = 0
    """Second MLflow runs of one identity that were closed and deleted."""
    closed: int = 0
    """Runs that stood as RUNNING although nobody works on them."""
    problems: list[str] = field(default_factory=list)
    """One line each; empty when the store says what the run directories say."""

    @property
    def complete(self) -> bool:
        """Whether everything got through."""
        return not self.problems

    @property
    def runs_new(self) -> int:
        """Runs that the store did not have."""
        return len(self.new)

    @property
    def runs_changed(self) -> int:
        """Runs of which something was sent."""
        return len(self.updated)

    @property
    def runs_same(self) -> int:
        """Runs that stood there as they should."""
        return len(self.same)

    @property
    def changed(self) -> bool:
        """Whether anything was sent."""
        return any((self.runs_new, self.runs_changed, self.points, self.files, self.duplicates, self.closed))

    def after(self, earlier: SyncReport) -> SyncReport:
        """This look and the `earlier` ones as one: what was sent in all, the problems that remain."""
        new = self.new | earlier.new
        updated = (self.updated | earlier.updated) - new
        return replace(
            self,
            new=new,
            updated=updated,
            same=(self.same | earlier.same) - new - updated,
            points=self.points + earlier.points,
            files=self.files + earlier.files,
            duplicates=self.duplicates + earlier.duplicates,
            closed=self.closed + earlier.closed,
        )

    def __str__(self) -> str:
        """In plain words: one line, and one more for each problem."""
        runs = [f"{self.runs_new} new", f"{self.runs_changed} changed", f"{self.runs_same} as before"]
        runs += [f"{self.runs_planned} not begun"] if self.runs_planned else []
        extras = [
            (self.points, "metric values sent"),
            (self.files, "files stored"),
            (self.closed, "closed that nobody works on"),
            (self.duplicates, "duplicates removed"),
        ]
        told = "".join(f"; {count} {words}" for count, words in extras if count)
        return "\n".join(
            [f"MLflow at {self.store}, experiment {self.experiment}: {', '.join(runs)}{told}", *self.problems]
        )
