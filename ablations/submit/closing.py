"""What a task does after its run: bring MLflow up to date and, when it is the last one, write the report.

Neither can fail the task. Of several tasks that end at once one at a time writes, and the last one misses nothing.
"""

from __future__ import annotations

from ablations.conduct import write_report
from ablations.looks import Look, look
from ablations.progress import Teller
from ablations.study import Study
from ablations.submit.frozen import JOBS, Frozen
from ablations.tracking import open_tracking
from ablations.tracking.errors import TrackingError
from ablations.tracking.locks import exclusive

_LOCK = ".report.lock"
_PATIENCE = 60.0
"""Seconds that the last task waits for the others."""


def close(frozen: Frozen, teller: Teller) -> None:
    """Send what is new to MLflow unless somebody else is at it; write the report when no run of the list is left."""
    last = all(_is_over(run) for run in map(look, frozen.listed()))
    try:
        _sync(frozen, teller, wait=last)
        if last:
            (frozen.study / JOBS).mkdir(exist_ok=True)
            with exclusive(frozen.study / JOBS / _LOCK, seconds=_PATIENCE):
                write_report(Study.load(frozen.study), teller)
    except TrackingError:
        teller.say("another task writes the report")
    except Exception as error:  # whatever it is, the run is done, and both can be made at any time
        later = f"`ablate sync {frozen.study}` and `ablate report {frozen.study}` make up for it"
        teller.say(f"MLflow or the report failed ({type(error).__name__}: {error}); {later}")


def _sync(frozen: Frozen, teller: Teller, *, wait: bool) -> None:
    synced = open_tracking(frozen.study).sync(patience=_PATIENCE if wait else 0.0)
    if synced.changed or (wait and not synced.complete):
        teller.say(str(synced))


def _is_over(found: Look) -> bool:
    return found.finished or found.status.state == "failed"
