"""Goes over a study's run directories and sends what is new, keeping its connection from one sweep to the next."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ablations.study import Study, StudyRun
from ablations.tracking.errors import TrackingError
from ablations.tracking.locks import exclusive
from ablations.tracking.marker import Mark, Marker, ParentMark
from ablations.tracking.projection import Projection, in_words, parent_state
from ablations.tracking.records import STUDY_ID, StudyRecord, fingerprint
from ablations.tracking.report import SyncReport
from ablations.tracking.stores import Store, identity, running_in
from repro.errors import CheckError

LOCK = ".tracking.lock"
_SAVE_EVERY = 50
"""Runs between two writings of the marker: as many have to be asked for again after a kill."""
_OUTCOMES = ("done", "failed", "diverged")
"""States that files alone decide; others also depend on whether the owner lives."""


class Projector:
    """One study and one store. `active`: a driver is at work, so that the parent stands as RUNNING."""

    def __init__(self, study: Path, store: Store) -> None:
        self.study, self.store = study, store
        self._name = uuid.uuid4().hex
        """Told apart from every other holder of the lock, in this process or elsewhere."""
        self._projection: Projection | None = None
        self._file: tuple[int, int] | None = None
        """Which database file the projection wrote to."""
        self._marker: Marker | None = None
        self._refused: dict[str, tuple[str, str]] = {}
        """Runs kept out by their own damage or by the store: the fingerprint that they had then, and why."""

    def prepare(self, *, patience: float) -> None:
        """Make database, experiment and parent run. Raises TrackingError, and CheckError when there is no study."""
        record = StudyRecord(study=Study.load(self.study))
        with self._locked(patience):
            if self._marks(record).parent is None:
                self._connect(record, SyncReport(store=self.store.name, experiment=record.experiment), full=False)

    def sweep(
        self,
        *,
        full: bool = False,
        active: bool = False,
        patience: float,
        given_up: Callable[[], bool] = lambda: False,
    ) -> SyncReport:
        """Go over all runs once. Raises TrackingError as soon as the store does not answer, CheckError without a study.

        `full`: trust no marks. `patience`: seconds to wait for another process that writes. `given_up` is asked
        between runs.
        """
        record = StudyRecord(study=Study.load(self.study))
        report = SyncReport(store=self.store.name, experiment=record.experiment)
        with self._locked(patience):
            if full:
                self._projection, self._refused = None, {}
            marker = self._marks(record, full=full)
            stamps = {run.id: fingerprint(run) for run in record.runs}
            due = [run for run in record.runs if self._due(run, stamps[run.id], marker)]
            report.same = marker.runs.keys() - {run.id for run in due}
            if due or self._parent_mark(record, marker, active=active) != marker.parent:
                projection = self._connect(record, report, full=full)
                placed = {run.id for run in due}
                due += [run for run in self._misplaced(projection, marker) if run.id not in placed]
                report.same -= {run.id for run in due}
                try:
                    self._project(projection, due, stamps, marker, given_up)
                    if not active and projection.made_any:
                        # A request that timed out and was repeated below us may have made a run twice.
                        projection.reconcile()
                        self._project(projection, self._misplaced(projection, marker), stamps, marker, given_up)
                    self._finish(projection, marker, active=active)
                finally:
                    marker.save()
            report.runs_planned = sum(
                1 for run_id in stamps if run_id not in marker.runs and run_id not in self._refused
            )
        report.problems += [why for _, why in self._refused.values()]
        return report

    def _project(
        self,
        projection: Projection,
        due: list[StudyRun],
        stamps: dict[str, str],
        marker: Marker,
        given_up: Callable[[], bool],
    ) -> None:
        for number, run in enumerate(due, 1):
            if given_up():
                raise TrackingError("there was no time left to send everything")
            self._refused.pop(run.id, None)
            marker.runs.pop(run.id, None)
            try:
                record, child = projection.run(run)
            except CheckError as error:
                self._refused[run.id] = (stamps[run.id], f"run {run.id} is left out: {error}")
            except TrackingError as error:
                if not error.lasting:
                    raise
                self._refused[run.id] = (stamps[run.id], f"run {run.id} is not complete there: {error}")
            else:
                if child:
                    state = record.status.state
                    marker.runs[run.id] = Mark(child=child, fingerprint=stamps[run.id], state=state, ended=record.ended)
            if number % _SAVE_EVERY == 0:
                marker.save()

    def _finish(self, projection: Projection, marker: Marker, *, active: bool) -> None:
        projection.close_abandoned({run_id for run_id, mark in marker.runs.items() if mark.state == "running"})
        mark = self._parent_mark(projection.record, marker, active=active)
        ended = max((mark.ended for mark in marker.runs.values()), default=0)
        projection.finish(self._states(projection.record, marker), ended, active=active)
        marker.parent = ParentMark(
            experiment=projection.experiment,
            id=projection.parent.id,
            fingerprint=mark.fingerprint,
            runs=mark.runs,
            status=mark.status,
        )

    def _misplaced(self, projection: Projection, marker: Marker) -> list[StudyRun]:
        """The runs that were sent to an MLflow run which does not stand for them any more."""
        return [
            run
            for run in projection.record.runs
            if run.id in marker.runs and marker.runs[run.id].child != projection.child(run.id)
        ]

    def _due(self, run: StudyRun, stamp: str, marker: Marker) -> bool:
        """Whether the run's records or its state changed since it was tracked."""
        if run.id in self._refused:
            return self._refused[run.id][0] != stamp
        mark = marker.runs.get(run.id)
        if mark is None:
            return bool(stamp)
        if mark.fingerprint != stamp:
            return True
        if mark.state in _OUTCOMES:
            return False
        try:
            return run.directory.status().state != mark.state  # the owner died, or came back
        except CheckError:
            return True

    def _parent_mark(self, record: StudyRecord, marker: Marker, *, active: bool) -> ParentMark:
        """What the parent should stand at, given the runs' marks."""
        counts = Counter(self._states(record, marker).values())
        return ParentMark(
            experiment=marker.parent.experiment if marker.parent is not None else "",
            id=marker.parent.id if marker.parent is not None else "",
            fingerprint=record.fingerprint(),
            runs=in_words(counts),
            status=parent_state(counts, active=active)[1],
        )

    def _states(self, record: StudyRecord, marker: Marker) -> dict[str, str]:
        states = {}
        for run in record.study.runs:
            if run.id in marker.runs:
                states[run.id] = marker.runs[run.id].state
            else:
                states[run.id] = "failed" if run.id in self._refused else "planned"
        return states

    def _marks(self, record: StudyRecord, *, full: bool = False) -> Marker:
        """The marks, without those that cannot be trusted."""
        if self._marker is None:
            self._marker = Marker.load(self.study, self.store.key)
        if self._projection is not None and self._file != self._database():
            self._projection = None  # the database was deleted under our hands
        known = {run.id for run in record.runs}
        self._marker.runs = {run_id: mark for run_id, mark in self._marker.runs.items() if run_id in known}
        if full:
            self._marker.parent, self._marker.runs = None, {}
        elif self._projection is None and self._marker.parent is not None:
            self._compare(self._marker, self._marker.parent, record)
        return self._marker

    def _compare(self, marker: Marker, parent: ParentMark, record: StudyRecord) -> None:
        """Drop the marks that the store contradicts, asking for little: is the parent there, and what is RUNNING?

        A request that was given up here may have been carried out there, so something can stand as RUNNING that no
        mark speaks of.
        """
        running = self._running(parent, record)
        if running is None:
            marker.parent, marker.runs = None, {}  # with the parent perhaps the children
            return
        marked = {mark.child for mark in marker.runs.values() if mark.state == "running"}
        other = running ^ (marked | ({parent.id} if parent.status == "RUNNING" else set()))
        if other:
            marker.parent = None
            marker.runs = {run_id: mark for run_id, mark in marker.runs.items() if mark.child not in other}

    def _running(self, parent: ParentMark, record: StudyRecord) -> set[str] | None:
        if self.store.database is not None:
            return running_in(self.store.database, parent.id, (STUDY_ID, record.id))
        from ablations.tracking.server import Server

        return Server(self.store).running(parent.experiment, parent.id, record.id)

    def _database(self) -> tuple[int, int] | None:
        return None if self.store.database is None else identity(self.store.database)

    def _connect(self, record: StudyRecord, report: SyncReport, *, full: bool) -> Projection:
        if self._projection is None:
            from ablations.tracking.server import Server

            server = Server(self.store)
            self._file = self._database()
            self._projection = Projection(server, record, report, full=full)
        self._projection.record, self._projection.report = record, report
        return self._projection

    @contextmanager
    def _locked(self, patience: float) -> Iterator[None]:
        """The right to write to the store for this study. Afterwards trouble of any kind is a TrackingError."""
        try:
            with exclusive(self.study / LOCK, seconds=patience, name=self._name) as undisturbed:
                if not undisturbed:
                    self._projection = self._marker = None  # another process may have written
                yield
        except TrackingError:
            self._projection = None  # the next one asks the store what it has
            raise
        except (OSError, CheckError) as error:
            self._projection = None
            raise TrackingError(f"tracking of {self.study}: {error}") from error
