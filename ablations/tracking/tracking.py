"""A study's tracking: one pass over the run directories, on demand or again and again while a sweep runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ablations.study import Study, StudyRun
from ablations.tracking.errors import TrackingError
from ablations.tracking.locks import exclusive
from ablations.tracking.marker import Mark, Marker, ParentMark
from ablations.tracking.projection import Projection, Tally, in_words, parent_state
from ablations.tracking.records import StudyRecord, fingerprint
from ablations.tracking.stores import Store, holds_run, store_of
from repro.errors import CheckError

log = logging.getLogger(__name__)

LOCK = ".tracking.lock"
_SAVE_EVERY = 50
"""Runs between two writings of the marker: what a kill can make us ask the store again."""
_FOREGROUND_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncReport:
    """What a sync did, and what it could not do."""

    store: str
    experiment: str
    tally: Tally
    planned: int
    """Runs that have not begun: the store shows nothing of them."""
    problems: tuple[str, ...] = ()
    """One line each; empty when the store says what the run directories say."""

    @property
    def complete(self) -> bool:
        """Whether everything got through."""
        return not self.problems

    def __str__(self) -> str:
        """In plain words, one line and one more for each problem."""
        tally = self.tally
        parts = [f"{tally.made} new", f"{tally.changed} changed", f"{tally.same} as before"]
        parts += [f"{self.planned} not begun"] if self.planned else []
        extras = [
            (tally.points, "metric values sent"),
            (tally.files, "files stored"),
            (tally.closed, "closed that nobody works on"),
            (tally.duplicates, "duplicates removed"),
        ]
        told = "; ".join(f"{count} {words}" for count, words in extras if count)
        line = f"{self.store}, experiment {self.experiment}: runs: {', '.join(parts)}" + (f"; {told}" if told else "")
        return "\n".join([line, *self.problems])


class Tracking:
    """A study and its store. Nothing here imports MLflow before it has something to send."""

    def __init__(self, study: Path, store: Store) -> None:
        self.study, self.store = study, store

    @property
    def uri(self) -> str:
        """The store as MLflow takes it; may hold a password (`store.name` does not)."""
        return self.store.uri

    def prepare(self) -> bool:
        """Create database, experiment and parent run before any worker starts.

        Returns whether that worked; if not, the reason is logged: a study runs without its tracking store.
        """
        projector = Projector(self)
        try:
            with projector.locked(_FOREGROUND_SECONDS):
                projector.connect(full=False)
        except TrackingError as error:
            log.warning("%s; the study runs on, `ablate sync %s` brings MLflow up to date later", error, self.study)
            return False
        return True

    def sync(self, *, full: bool = False) -> SyncReport:
        """Bring the store to what the run directories say.

        `full`: trust nothing noted here, ask the store for every run and metric. Raises CheckError when there is no
        study; trouble with the store is in the report.
        """
        projector = Projector(self)
        try:
            projector.sweep(full=full, active=False, patience=_FOREGROUND_SECONDS)
        except TrackingError as error:
            projector.problems[""] = str(error)
        return projector.report()

    def follow(self, *, seconds: float = 3.0) -> Follower:
        """Start to project in the background, looking every few `seconds`."""
        from ablations.tracking.follower import Follower

        return Follower(Projector(self), seconds=seconds)


def open_tracking(study_dir: Path) -> Tracking:
    """The tracking of the study in `study_dir`: in MLFLOW_TRACKING_URI if set, else inside the study.

    Raises UsageError for an address that MLflow cannot use.
    """
    return Tracking(study_dir, store_of(study_dir))


class Projector:
    """Goes over the run directories, keeping the connection from one sweep to the next."""

    def __init__(self, tracking: Tracking) -> None:
        self._tracking = tracking
        self._projection: Projection | None = None
        self._marker: Marker | None = None
        self._refused: dict[str, str] = {}
        """Runs that the store or their own damage kept out, by the fingerprint that they had."""
        self._planned = 0
        self._tally = Tally()
        self._experiment = ""
        self.problems: dict[str, str] = {}
        """Run id ("" for the store) to what is wrong."""

    @property
    def study(self) -> Path:
        """The study's directory."""
        return self._tracking.study

    def report(self) -> SyncReport:
        """What was done since the start."""
        return SyncReport(
            store=self._tracking.store.name,
            experiment=self._experiment,
            tally=self._tally,
            planned=self._planned,
            problems=tuple(self.problems.values()),
        )

    @contextmanager
    def locked(self, patience: float) -> Iterator[None]:
        """The right to write to the store for this study. Errors of the disk are TrackingErrors here."""
        try:
            with exclusive(self.study / LOCK, seconds=patience) as undisturbed:
                if not undisturbed:
                    self._projection = self._marker = None  # another process may have written
                yield
        except TrackingError:
            self._projection = None  # the next one asks the store what it has
            raise
        except (OSError, CheckError) as error:
            self._projection = None
            raise TrackingError(f"tracking of {self.study}: {error}") from error

    def connect(self, *, full: bool) -> Projection:
        """The connection to the store, made if need be, with its parent run. Only within `locked`."""
        if self._projection is None:
            from ablations.tracking.server import Server

            record = StudyRecord(study=Study.load(self.study))
            server = Server(self._tracking.store)
            self._projection = Projection(server, record, self._tally, full=full)
        return self._projection

    def sweep(
        self, *, full: bool, active: bool, patience: float, given_up: Callable[[], bool] = lambda: False
    ) -> None:
        """Go over all runs once. Raises TrackingError as soon as the store does not answer, CheckError without a study.

        `given_up` is asked between runs.
        """
        study = Study.load(self.study)
        record = StudyRecord(study=study)
        self._experiment = record.experiment
        with self.locked(patience):
            marker = self._load_marker()
            if full:
                marker.parent, marker.runs = None, {}
            stamps = {run.id: fingerprint(run) for run in study.runs}
            due = [run for run in study.runs if self._due(run, stamps[run.id], marker)]
            self._tally.same = len(marker.runs.keys() & stamps.keys()) - len(due)
            if not due and self._parent_is_current(record, marker, active=active):
                self._planned = sum(not stamp for stamp in stamps.values())
                return
            projection = self.connect(full=full)
            projection.record = record
            try:
                for run in due:
                    if given_up():
                        raise TrackingError("there was no time to send everything")
                    self._project(projection, run, stamps[run.id], marker)
                self._finish(projection, marker, stamps, active=active)
            finally:
                marker.save()
        self.problems.pop("", None)

    def _load_marker(self) -> Marker:
        if self._marker is None:
            self._marker = Marker.load(self.study, self._tracking.store.key)
        return self._marker

    def _due(self, run: StudyRun, stamp: str, marker: Marker) -> bool:
        """Whether the run's records changed since it was tracked."""
        if self._refused.get(run.id) == stamp:
            return False
        mark = marker.runs.get(run.id)
        if mark is None or not stamp:
            return bool(stamp) or mark is not None
        if mark.fingerprint != stamp:
            return True
        if mark.state in ("done", "failed", "diverged"):
            return False
        try:
            return run.directory.status().state != mark.state  # its owner may have died, or come back
        except CheckError:
            return True

    def _parent_is_current(self, record: StudyRecord, marker: Marker, *, active: bool) -> bool:
        parent, store = marker.parent, self._tracking.store
        if parent is None or self._projection is None and not self._parent_exists(parent.id):
            return False
        states = self._states(record, marker)
        wanted = (record.fingerprint(), in_words(states), parent_state(states, active=active)[1])
        return wanted == (parent.fingerprint, parent.runs, parent.status)
