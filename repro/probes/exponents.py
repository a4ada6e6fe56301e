"""Powers in measured costs: the slope of the logarithms, with its interval over rounds. Python's own library suffices.

The slope is taken over the largest sizes only: a cost of the form a + b * size^p is a power of the size only where b's
part is nearly all of it. Its interval says how well the slope repeats on this machine, not how near to p it has come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev

FITTED = 4
"""Sizes that a slope is taken over: the largest ones of all that were measured."""

_T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % points of Student's t at 1 to 10 degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranged:
    """A value measured in every round: the mean over rounds, with its 95 % interval by Student's t."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


def over_rounds(values: Sequence[float]) -> Ranged:
    """The mean of `values`, one a round, with its interval. Raises ValueError with fewer than two."""
    n = len(values)
    if n < 2:
        raise ValueError(f"{n} round, an interval needs two")
    mean = fmean(values)
    half = _t975(n - 1) * stdev(values) / math.sqrt(n)
    return Ranged(value=mean, low=mean - half, high=mean + half)


def power_law(sizes: Sequence[float], costs: Sequence[Sequence[float]]) -> Ranged:
    """The p of cost = c * size^p over the `FITTED` largest of `sizes`; `costs` has a row a round, a cost a size.

    Raises ValueError with fewer than two sizes or two rounds.
    """
    largest = sorted(range(len(sizes)), key=lambda number: sizes[number])[-FITTED:]
    if len(largest) < 2:
        raise ValueError(f"{len(sizes)} size, a slope needs two")
    x = [sizes[number] for number in largest]
    return over_rounds([slope(x, [row[number] for number in largest]) for row in costs])


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Least squares on the logarithms of `costs` over those of `sizes`."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = fmean(x), fmean(y)
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    return math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread


def _t975(degrees: int) -> float:
    return _T975[degrees - 1] if degrees <= len(_T975) else 1.96 + 2.4 / degrees
