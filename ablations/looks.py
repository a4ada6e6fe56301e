"""Where the runs of a study stand, each as its directory tells it at one moment."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ablations.study import StudyRun
from repro.errors import CheckError
from repro.runs import attempts
from repro.runs.directory import Status

FINISHED = ("done", "diverged")
"""States that are an outcome: such a run is not run again."""
STOPPED_BY_ASHA = "stopped by ASHA"
"""How the reason of a search's sample begins that was stopped for good, before its budget."""
_QUIET_SECONDS = 60.0
"""Silence of a run at work elsewhere that is told: three heartbeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One run at one moment."""

    run: StudyRun
    status: Status
    bleu: float | None
    """BLEU on the test side once done."""
    seconds: float = 0.0
    """Of a finished run: all its work, from the first step to the result."""
    silence: float = 0.0
    """Of a run that has not ended and whose owner cannot be looked up from here: seconds since its last sign of life.
    Nothing more is known of it: whether it is dead can only be told on its own machine."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.status.state in FINISHED or self.stopped_by_asha

    @property
    def stopped_by_asha(self) -> bool:
        """Whether a search stopped it for good."""
        return self.status.state == "stopped" and self.status.reason.startswith(STOPPED_BY_ASHA)

    @property
    def remark(self) -> str:
        """Whose run this one is, which attempt it took, and the reason of its state."""
        twin = f"same configuration as {self.run.same_as}" if self.run.same_as else ""
        again = f"attempt {self.status.attempt}" if self.status.attempt > 1 else ""
        silent = f"silent for {self.silence:.0f} s" if self.silence > _QUIET_SECONDS else ""
        return "; ".join(part for part in (twin, again, silent, self.status.reason) if part)


def look(run: StudyRun) -> Look:
    """Where `run` stands now. A damaged directory is a failed run with the damage as its reason."""
    try:
        status = run.directory.status()
        result = run.directory.result() if status.state == "done" else None
        silence = _silence(run) if status.state in ("running", "stopped") else 0.0
    except (CheckError, OSError) as error:  # a network file system may fail for a moment: then it is looked at again
        return Look(run=run, status=Status(state="failed", reason=str(error)), bleu=None)
    result = result or {}
    seconds = [float(value) for value in result.get("seconds", {}).values() if isinstance(value, int | float)]
    return Look(
        run=run,
        status=status,
        bleu=result.get("test", {}).get("bleu"),
        seconds=math.fsum(seconds),
        silence=silence,
    )


def _silence(run: StudyRun) -> float:
    """Seconds since the owner's last sign of life, where only that can be seen from here; else 0."""
    latest = attempts.newest(run.directory)
    if latest is None or latest.ended is not None:
        return 0.0
    told = latest.owner is not None and latest.owner.alive() is not None
    return 0.0 if told else max(0.0, latest.silence())


def counts(looks: Iterable[Look]) -> dict[str, int]:
    """How many runs are in each state; one that stands for several rows counts once."""
    states = {found.run.path: found.status.state for found in looks}
    return dict(sorted(Counter(states.values()).items()))


def in_words(looks: Iterable[Look]) -> str:
    """The counts as one phrase: "3 done, 1 failed"."""
    return ", ".join(f"{count} {state}" for state, count in counts(looks).items()) or "no runs"
