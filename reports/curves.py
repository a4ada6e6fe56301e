"""Learning curves over the seeds of one row, by steps, by training FLOPs or by training seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reports.intervals import LEVEL, quantile
from reports.records import Run

Axis = Literal["steps", "flops", "seconds"]

Floats = NDArray[np.float64]

LEAST_FOR_BAND = 3
"""Seeds below which a curve has no band: Student's t would make it wider than the picture."""

_COUNTED: dict[Axis, tuple[str, str]] = {
    "flops": ("train/flops", "train_flops"),
    "seconds": ("time/train_seconds", "train_seconds"),
}
"""What the x axis counts: the metric that tells it during training, and the result's total."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one row as it was trained."""

    x: Floats
    mean: Floats
    low: Floats | None
    """Lower end of the 95 % interval of the mean by Student's t over seeds; None below three seeds."""
    high: Floats | None
    n: int
    """Runs that the curve is a mean of."""
    finished: bool
    """False: no run of the row finished, and the curve shows how far they came."""


def curve(runs: Sequence[Run], metric: str, axis: Axis) -> Curve | None:
    """The mean of `metric` over the finished ones of `runs`, or over all that logged it when none finished.

    Values between a run's evaluations are interpolated, never beyond the stretch that every run covers. None when no
    run logged the metric.
    """
    finished = [run for run in runs if run.done]
    series = [found for run in finished or runs if (found := _series(run, metric, axis)) is not None]
    if not series:
        return None
    first = max(float(x[0]) for x, _ in series)
    last = min(float(x[-1]) for x, _ in series)
    grid = np.unique(np.concatenate([x for x, _ in series]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        return None
    values = np.stack([np.interp(grid, x, y) for x, y in series])
    mean, n = values.mean(axis=0), len(series)
    half = None
    if n >= LEAST_FOR_BAND:
        half = quantile(1 - (1 - LEVEL) / 2, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Curve(
        x=grid,
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        n=n,
        finished=bool(finished),
    )


def _series(run: Run, metric: str, axis: Axis) -> tuple[Floats, Floats] | None:
    points = run.points.get(metric, [])
    if not points:
        return None
    steps, values = np.array(points, dtype=float).T
    if axis == "steps":
        return steps, values
    name, total_name = _COUNTED[axis]
    known = {0: 0.0, **dict(run.points.get(name, []))}
    total, last = run.number(total_name), run.number("steps")
    if total is not None and last is not None:
        known[int(last)] = total
    at_steps, counted = np.array(sorted(known.items())).T
    inside = (steps <= at_steps[-1]) & (steps > 0)
    if not inside.any():
        return None
    return np.interp(steps[inside], at_steps, counted), values[inside]
