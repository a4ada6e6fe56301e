"""What remains of a study, in hours of work and as a time of day: an estimate, and labelled as one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from ablations.scales import SCALES
from repro.errors import UserError

if TYPE_CHECKING:
    from ablations.looks import Look
    from ablations.study import Study

LEAST_PROGRESS = 0.01
"""Share of its budget after which a run's own speed is believed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What is left of a study."""

    runs: int
    """Runs without an outcome."""
    seconds: float | None
    """Work left, of all runs together; None where nothing tells."""
    at_once: int
    """Runs at work now."""
    wall_seconds: float | None
    """Until the last run ends, if as many go on being done at once; None where nothing runs."""
    basis: str
    """What it rests on, in words."""

    def document(self, now: float) -> dict[str, Any]:
        """As `status --json` prints it; `now` in Unix seconds."""
        done_at = None if self.wall_seconds is None else now + self.wall_seconds
        return {
            "is_estimate": True,
            "runs_left": self.runs,
            "hours_left": None if self.seconds is None else self.seconds / 3600,
            "at_once": self.at_once,
            "done_at": None if done_at is None else datetime.fromtimestamp(done_at, UTC).isoformat(timespec="minutes"),
            "basis": self.basis,
        }

    def in_words(self, now: float) -> str:
        """One line for a terminal."""
        if not self.runs:
            return "nothing is left to do"
        told = f"{self.runs} run{'s' if self.runs > 1 else ''} left"
        if self.seconds is None:
            return f"{told}; {self.basis}"
        told += f", about {duration(self.seconds)} of work"
        if self.wall_seconds is None:
            return f"{told}; nothing runs now (estimate: {self.basis})"
        at = datetime.fromtimestamp(now + self.wall_seconds, UTC)
        when = f"{at:%H:%M}" if self.wall_seconds < 12 * 3600 else f"{at:%Y-%m-%d %H:%M}"
        return f"{told}; with {self.at_once} at once done in about {duration(self.wall_seconds)}, at {when} UTC " + (
            f"(estimate: {self.basis})"
        )


def estimate(study: Study, looks: Sequence[Look]) -> Estimate:
    """What is left of `study`, whose runs stand as `looks` tell. Reads one configuration a row, and no metrics."""
    own = list({found.run.path: found for found in looks if found.run.same_as is None}.values())
    left = [found for found in own if not found.finished]
    at_once = sum(found.status.state == "running" for found in left)
    whole = _Whole.of(study, own)
    seconds = [_left(found, whole) for found in left]
    known = [value for value in seconds if value is not None]
    if len(known) < len(left):
        basis = "no run has got far enough to tell how long (`ablate plan` reckons from FLOPs)"
        return Estimate(runs=len(left), seconds=None, at_once=at_once, wall_seconds=None, basis=basis)
    running = [found.status.state == "running" for found in left]
    wall = _wall(known, running, at_once) if at_once else None
    return Estimate(runs=len(left), seconds=math.fsum(known), at_once=at_once, wall_seconds=wall, basis=whole.basis)


def seconds_by_row(study: Study, looks: Sequence[Look]) -> Mapping[str, float]:
    """Seconds of a whole run of every row, as the runs of `study` that stand as `looks` tell; rows of which nothing
    tells are left out.
    """
    own = list({found.run.path: found for found in looks if found.run.same_as is None}.values())
    whole = _Whole.of(study, own)
    found = {look.run.variant: whole.seconds(look.run.variant) for look in own}
    return {variant: seconds for variant, seconds in found.items() if seconds is not None}


@dataclass(frozen=True, kw_only=True)
class _Whole:
    """Seconds of whole runs, from the first step to the result."""

    by_variant: Mapping[str, float]
    """From runs of this very row."""
    by_weight: Mapping[str, float]
    """From other rows, by the planned FLOPs of both."""
    ended: int
    """Runs with an outcome that this rests on."""
    begun: int
    upper: bool
    """Whether runs may end before their budget."""

    @staticmethod
    def of(study: Study, looks: Iterable[Look]) -> _Whole:
        looks = list(looks)
        overheads = [found.seconds / found.status.train_seconds for found in looks if _is_measured(found)]
        overhead = median(overheads) if overheads else 1.0
        seen: dict[str, list[float]] = {}
        for found in looks:
            if _is_measured(found):
                seen.setdefault(found.run.variant, []).append(found.seconds)
        ended = sum(len(values) for values in seen.values())
        begun = 0
        for found in looks:
            own = _own_total(found, overhead)
            if own is not None:
                begun += 1
                # A finished run of the same row says more than one on its way.
                seen.setdefault(found.run.variant, [own])
        by_variant = {variant: median(values) for variant, values in seen.items()}
        return _Whole(
            by_variant=by_variant,
            by_weight=_by_weight(study, looks, by_variant),
            ended=ended,
            begun=begun,
            upper=study.searched,
        )

    def seconds(self, variant: str) -> float | None:
        """The time of a whole run of `variant`; None where nothing tells."""
        return self.by_variant.get(variant, self.by_weight.get(variant))

    @property
    def basis(self) -> str:
        """What the seconds rest on."""
        parts = [f"{self.ended} finished" if self.ended else "", f"{self.begun} begun" if self.begun else ""]
        told = "speeds of " + " and ".join(part for part in parts if part) + " runs of this study"
        told += "" if self.ended else ", training alone"
        return told + (", at most: ASHA may stop some early" if self.upper else "")


def _is_measured(found: Look) -> bool:
    return found.status.state == "done" and found.seconds > 0 and found.status.train_seconds > 0


def _own_total(found: Look, overhead: float) -> float | None:
    """Seconds of the whole of an unfinished run, by its own speed."""
    status = found.status
    if found.finished or status.progress < LEAST_PROGRESS or status.train_seconds <= 0:
        return None
    return overhead * status.train_seconds / status.progress


def _left(found: Look, whole: _Whole) -> float | None:
    total = whole.seconds(found.run.variant)
    return None if total is None else total * max(0.0, 1.0 - found.status.progress)


def _by_weight(study: Study, looks: Sequence[Look], known: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the rows of which no run has begun, as the others' seconds a planned FLOP have it."""
    first: dict[str, Look] = {}
    for found in looks:
        first.setdefault(found.run.variant, found)
    missing = [variant for variant, found in first.items() if variant not in known and not found.finished]
    if not missing or not known:
        return {}
    weights = {variant: _weight(study, found) for variant, found in first.items()}
    rates = [seconds / weights[variant] for variant, seconds in known.items() if weights.get(variant)]
    return {variant: median(rates) * weights[variant] for variant in missing if weights[variant]} if rates else {}


def _weight(study: Study, found: Look) -> float:
    """The planned training FLOPs of a run, from the scale's declared statistics; 0 where they cannot be told."""
    from ablations.planning import Device, Text, planned_work

    scale = SCALES.get(study.scale)
    try:
        config = found.run.directory.config()
    except UserError:
        return 0.0
    if scale is None:
        return 0.0
    device = Device(name="", flops=None, share=1.0, sustained=None, basis="")
    text = Text.declared(scale.statistics, config.train.batch_tokens)
    _, flops = planned_work(config, config.data.vocabulary_size, text, device)
    return flops or 0.0


def _wall(seconds: Sequence[float], running: Sequence[bool], at_once: int) -> float:
    """Seconds until all are done, `at_once` at a time: those that run first, then the others in their order."""
    ends = sorted(value for value, runs in zip(seconds, running, strict=True) if runs)
    for value in (value for value, runs in zip(seconds, running, strict=True) if not runs):
        ends[0] += value
        ends.sort()
    assert len(ends) == at_once, "as many as run"
    return ends[-1]


def duration(seconds: float) -> str:
    """Seconds in words: "40 s", "12 min", "3.5 h", "2.1 days"."""
    for size, unit, digits in ((86400 * 2, "days", 1), (3600 * 1.5, "h", 1), (90, "min", 0)):
        if seconds >= size:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[unit]:.{digits}f} {unit}"
    return f"{seconds:.0f} s"
