"""The tracking of a study: what the command line uses."""

from __future__ import annotations

import logging
from pathlib import Path

from ablations.study import Study
from ablations.tracking.errors import TrackingError
from ablations.tracking.follower import Follower
from ablations.tracking.marker import Marker
from ablations.tracking.projector import Projector
from ablations.tracking.records import StudyRecord
from ablations.tracking.report import SyncReport
from ablations.tracking.stores import Store, store_of

log = logging.getLogger(__name__)

_PATIENCE = 60.0
"""Seconds that a command waits for another process that writes to the store for the same study."""


class Tracking:
    """A study and its store. MLflow is imported only when there is something to send."""

    def __init__(self, study: Path, store: Store) -> None:
        self.study, self.store = study, store

    @property
    def uri(self) -> str:
        """The store as MLflow takes it. May hold a password; `store.name` is for showing."""
        return self.store.uri

    @property
    def begun(self) -> bool:
        """Whether this study was brought to this store before, as far as its directory knows."""
        return Marker.load(self.study, self.store.key).parent is not None

    def prepare(self) -> bool:
        """Create database, experiment and parent run, before any worker starts. Safe in several drivers at once.

        Returns whether that worked; if not, the reason is logged, for a study runs without its tracking store, too.
        Raises CheckError when there is no study.
        """
        try:
            Projector(self.study, self.store).prepare(patience=_PATIENCE)
        except TrackingError as error:
            log.warning("%s; the study runs on, `ablate sync %s` brings MLflow up to date later", error, self.study)
            return False
        return True

    def follow(self, *, seconds: float = 3.0) -> Follower:
        """Project in the background from now on, looking every few `seconds`."""
        return Follower(Projector(self.study, self.store), seconds=seconds)

    def sync(self, *, full: bool = False, patience: float = _PATIENCE) -> SyncReport:
        """Bring the store to what the run directories say.

        `full`: trust nothing noted in the study, ask the store for every run and metric. `patience`: seconds to wait
        for another process that writes for this study. Trouble with the store is in the report's `problems`. Raises
        CheckError when there is no study.
        """
        projector = Projector(self.study, self.store)
        try:
            return projector.sweep(full=full, patience=patience)
        except TrackingError as error:
            record = StudyRecord(study=Study.load(self.study))
            return SyncReport(store=self.store.name, experiment=record.experiment, problems=[str(error)])


def open_tracking(study_dir: Path) -> Tracking:
    """The tracking of the study in `study_dir`: at MLFLOW_TRACKING_URI if that is set, else inside the study.

    Raises UsageError for an address that MLflow cannot use.
    """
    return Tracking(study_dir, store_of(study_dir))
