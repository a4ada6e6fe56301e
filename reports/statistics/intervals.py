"""Student's t over seeds: intervals of means, and tests of a mean against zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

LEVEL = 0.95
"""Of every interval that is not said to be another."""

LEAST_SHOWN = 3
"""Seeds below which no figure draws an interval: at two, Student's t makes it about nine times their distance wide."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A confidence interval of a mean."""

    low: float
    high: float
    level: float = LEVEL

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2

    def within(self, low: float, high: float) -> bool:
        """Whether all of it lies strictly between `low` and `high`."""
        return low < self.low and self.high < high


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The interval of the mean of `values` by Student's t with n - 1 degrees of freedom; None below two values.

    It covers the mean that ever more seeds of this row would come to, as long as seeds scatter about normally.
    """
    if len(values) < 2:
        return None
    return interval_of(fmean(values), stdev(values), len(values), level)


def interval_of(mean: float, spread: float, n: int, level: float = LEVEL) -> Interval:
    """The interval of a mean of `n` values (2 or more) whose sample standard deviation is `spread`."""
    half = quantile(1 - (1 - level) / 2, n - 1) * spread / math.sqrt(n)
    return Interval(low=mean - half, high=mean + half, level=level)


def t_test(values: Sequence[float]) -> float | None:
    """Two-sided p of Student's t that the mean of `values` is 0.

    1 when every value is 0. None when nothing can be said: fewer than two values, or all alike, so that their scatter
    is not known.
    """
    if len(values) < 2:
        return None
    if not any(values):
        return 1.0
    spread = stdev(values)
    if spread == 0:
        return None
    return 2 * tail(abs(fmean(values)) / (spread / math.sqrt(len(values))), len(values) - 1)


@cache
def quantile(probability: float, freedom: int) -> float:
    """The quantile of Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))


def tail(t: float, freedom: int) -> float:
    """The probability that Student's t with `freedom` degrees of freedom lies above `t`."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))
