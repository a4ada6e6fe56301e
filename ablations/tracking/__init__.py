"""MLflow as a projection of run directories: live while a study runs, rebuilt at any time. The driver's work only."""

from ablations.tracking.follower import Follower
from ablations.tracking.report import SyncReport
from ablations.tracking.tracking import Tracking, open_tracking

__all__ = ["Follower", "SyncReport", "Tracking", "open_tracking"]
