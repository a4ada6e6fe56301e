"""Learning curves over the seeds of one row, by steps or by training FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reports.records import Run

Axis = Literal["steps", "flops"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One metric of one row as it was trained."""

    x: Floats
    mean: Floats
    lowest: Floats
    highest: Floats
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
    return Curve(
        x=grid,
        mean=values.mean(axis=0),
        lowest=values.min(axis=0),
        highest=values.max(axis=0),
        n=len(series),
        finished=bool(finished),
    )


def _series(run: Run, metric: str, axis: Axis) -> tuple[Floats, Floats] | None:
    points = run.points.get(metric, [])
    if not points:
        return None
    steps, values = np.array(points, dtype=float).T
    if axis == "steps":
        return steps, values
    known = {0: 0.0, **dict(run.points.get("train/flops", []))}
    total, last = run.number("train_flops"), run.number("steps")
    if total is not None and last is not None:
        known[int(last)] = total
    at_steps, flops = np.array(sorted(known.items())).T
    inside = (steps <= at_steps[-1]) & (steps > 0)
    if not inside.any():
        return None
    return np.interp(steps[inside], at_steps, flops), values[inside]
