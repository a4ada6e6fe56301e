"""Rows at equal budgets: steps, target tokens, FLOPs or seconds, read off the learning curves by interpolation.

A value at a budget is that of the validation side as the curve shows it (greedy decoding), never a score on the test
side, which is known only at the end of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from reports.formats import duration, fixed, scientific
from reports.records.study import BASE, BudgetAxis, Run, Study
from reports.statistics.measures import Measure, difference, measure

AXES: tuple[BudgetAxis, ...] = ("steps", "tokens", "flops", "seconds")

CURVES = ("valid/bleu", "valid/perplexity")
"""The metrics that curves are read of."""

_EQUAL = 1e-9
"""Relative difference of amounts that is rounding."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """An amount of training at which rows are compared."""

    axis: BudgetAxis
    amount: float
    label: str
    """In words, as a table names it: "at 1 500 steps"."""


def budget(axis: BudgetAxis, amount: float) -> Budget:
    """The budget of `amount` on `axis`, with its label."""
    words = {
        "steps": lambda: f"{fixed(amount, 0)} steps",
        "tokens": lambda: f"{scientific(amount)} target tokens",
        "flops": lambda: f"{scientific(amount)} FLOPs",
        "seconds": lambda: f"{duration(amount)} of training",
    }
    return Budget(axis=axis, amount=amount, label=f"at {words[axis]()}")


def budgets(study: Study) -> list[Budget]:
    """Per axis the largest budget that base and more than half of the other rows reach with every finished run.

    Empty where there are no curves, or no finished base. An axis on which the rows have nothing in common is left out.
    """
    spans = {
        variant.id: {axis: span for axis in AXES if (span := reach(study.by_variant[variant.id], axis)) is not None}
        for variant in study.variants
    }
    found: list[Budget] = []
    for axis in AXES:
        base = spans.get(BASE, {}).get(axis)
        if base is None:
            continue
        others = sorted((span[axis][1] for row, span in spans.items() if row != BASE and axis in span), reverse=True)
        most = others[len(others) // 2] if others else base[1]
        amount = min(base[1], most)
        if amount >= base[0] * (1 - _EQUAL):
            found.append(budget(axis, amount))
    return found


def reach(runs: Sequence[Run], axis: BudgetAxis) -> tuple[float, float] | None:
    """From where to where on `axis` all finished ones of `runs` have values; None without a curve or a finished run."""
    curves = [series for run in runs if run.done and (series := _any_series(run, axis)) is not None]
    if not curves or len(curves) < sum(run.done for run in runs):
        return None
    first, last = max(float(x[0]) for x, _ in curves), min(float(x[-1]) for x, _ in curves)
    return (first, last) if first <= last else None


def common_budget(rows: Sequence[Sequence[Run]], axis: BudgetAxis) -> Budget | None:
    """The largest budget on `axis` that every finished run of all `rows` reaches; None when there is none."""
    spans = [reach(runs, axis) for runs in rows]
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    first, last = max(span[0] for span in known), min(span[1] for span in known)
    return budget(axis, last) if first <= last else None


def value_at(run: Run, metric: str, budget: Budget) -> float | None:
    """`metric` ("valid/bleu", "valid/perplexity") of `run` at `budget`, between evaluations by straight lines.

    None before the curve's first point and beyond its last, and where the run did not log it.
    """
    found = series(run, metric, budget.axis)
    if found is None:
        return None
    x, y = found
    slack = _EQUAL * abs(budget.amount)
    if not x[0] - slack <= budget.amount <= x[-1] + slack:
        return None
    return float(np.interp(budget.amount, x, y))


def measure_at(runs: Sequence[Run], metric: str, budget: Budget) -> Measure:
    """`metric` over the finished ones of `runs` at `budget`."""
    return measure(runs, partial(value_at, metric=metric, budget=budget))


def difference_at(runs: Sequence[Run], base: Sequence[Run], metric: str, budget: Budget) -> Measure:
    """`metric` of `runs` minus that of the base run with the same seed, both at `budget`."""
    return difference(runs, base, partial(value_at, metric=metric, budget=budget))


def series(run: Run, metric: str, axis: BudgetAxis) -> tuple[Floats, Floats] | None:
    """The curve of `metric` over `axis`: amounts by rising order, and values; None where it cannot be drawn.

    What was spent at an evaluation is read between the two nearest times that training was logged, and never beyond
    the last of them.
    """
    points = [point for point in run.points.get(metric, []) if point[0] > 0 or axis == "steps"]
    amounts = run.spent(axis, [step for step, _ in points]) if points else []
    known = [(amount, value) for amount, (_, value) in zip(amounts, points, strict=True) if amount is not None]
    if not known:
        return None
    x, y = np.array(known, dtype=float).T
    return x, y


def _any_series(run: Run, axis: BudgetAxis) -> tuple[Floats, Floats] | None:
    return next((found for metric in CURVES if (found := series(run, metric, axis)) is not None), None)
