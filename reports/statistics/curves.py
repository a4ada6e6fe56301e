"""Learning curves over the seeds of one row, by steps, by training FLOPs or by training seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reports.records.study import BudgetAxis, Run
from reports.statistics.budgets import Floats, series
from reports.statistics.intervals import LEAST_SHOWN, LEVEL, quantile


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


def curve(runs: Sequence[Run], metric: str, axis: BudgetAxis) -> Curve | None:
    """The mean of `metric` over the finished ones of `runs`, or over all that logged it when none finished.

    Values between a run's evaluations are interpolated, never beyond the stretch that every run covers. None when no
    run logged the metric.
    """
    finished = [run for run in runs if run.done]
    known = [found for run in finished or runs if (found := series(run, metric, axis)) is not None]
    if not known:
        return None
    first = max(float(x[0]) for x, _ in known)
    last = min(float(x[-1]) for x, _ in known)
    grid = np.unique(np.concatenate([x for x, _ in known]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        return None
    values = np.stack([np.interp(grid, x, y) for x, y in known])
    mean, n = values.mean(axis=0), len(known)
    half = None
    if n >= LEAST_SHOWN:
        half = quantile(1 - (1 - LEVEL) / 2, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return Curve(
        x=grid,
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
        n=n,
        finished=bool(finished),
    )
