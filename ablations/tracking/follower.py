"""Projects a study while it runs, in a thread that nothing waits for."""

from __future__ import annotations

import logging
import shlex
import threading
import time

from ablations.tracking.errors import TrackingError
from ablations.tracking.projector import Projector
from ablations.tracking.report import SyncReport
from repro.errors import CheckError

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0
"""Seconds between two tries at a store that does not answer, at most."""
_LOCK_SECONDS = 10.0
_SHARE = 0.05
"""Of one core that following may take: of several drivers that write for one study each asks the store anew, always."""


def pause_after(busy: float, least: float) -> float:
    """Seconds until the next sweep after one that took `busy` seconds of the processor: `least` or more."""
    return min(_LONGEST_PAUSE, max(least, busy / _SHARE))


class Follower:
    """Sweeps over the run directories every few seconds until `close`. Errors are logged, once each."""

    def __init__(self, projector: Projector, *, seconds: float) -> None:
        self._projector, self._seconds = projector, seconds
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._last_trouble = ""
        self._all: SyncReport | None = None
        """What was sent since the start."""
        self._report: SyncReport | None = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)
        self._thread.start()

    def close(self, timeout: float = 30.0) -> SyncReport | None:
        """Send the rest and stop, within `timeout` seconds. Returns what was sent since the start, or None, with the
        remedy logged, if not everything got through. A second call changes nothing.
        """
        if not self._closing.is_set():
            self._deadline = time.monotonic() + timeout
            self._closing.set()
            self._thread.join(timeout)
            if self._report is None:
                log.warning(
                    "MLflow has not everything%s; run `ablate sync %s` later",
                    f" ({self._last_trouble})" if self._last_trouble else "",
                    shlex.quote(str(self._projector.study)),
                )
        return self._report

    def _work(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            begun = time.thread_time()
            if self._sweep(active=True) is not None:
                pause = pause_after(time.thread_time() - begun, self._seconds)
            else:
                pause = min(_LONGEST_PAUSE, max(self._seconds, 2 * pause))
        if self._sweep(active=False) is not None:
            self._report = self._all

    def _sweep(self, *, active: bool) -> SyncReport | None:
        try:
            report = self._projector.sweep(
                active=active, patience=_LOCK_SECONDS, given_up=lambda: time.monotonic() > self._deadline
            )
        except (TrackingError, CheckError) as error:
            self._tell(str(error))
            return None
        except Exception as error:  # a fault of ours must not end the thread: training goes on, a sync mends it
            log.debug("tracking failed", exc_info=True)
            self._tell(f"tracking failed ({type(error).__name__}: {error})")
            return None
        if self._last_trouble and report.complete:
            log.info("MLflow is up to date again")
        self._tell("; ".join(report.problems))
        self._all = report if self._all is None else report.after(self._all)
        return report

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._last_trouble:
            log.warning("%s; training goes on", trouble)
        self._last_trouble = trouble
