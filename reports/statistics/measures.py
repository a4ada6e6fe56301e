"""What the seeds of one row say together: means with their n, and differences to base paired by seed.

Intervals and tests belong here too; every table, figure and page takes its aggregates from this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from reports.formats import counted
from reports.records.study import Run
from reports.statistics.intervals import LEVEL, Interval, mean_interval

Quantity = Callable[[Run], float | None]
"""A number of a finished run, or None where it has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One quantity over the seeds of one row."""

    values: tuple[float, ...]
    """One a finished run, in the plan's order."""
    runs: tuple[str, ...]
    """Ids of the runs that the values come from."""
    planned: int
    """Runs that the plan has for the row."""

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def complete(self) -> bool:
        """Whether every planned run gave a value."""
        return self.n > 0 and self.n == self.planned

    @property
    def partial(self) -> str:
        """What must stand beside the mean when seeds are missing: "2/5 seeds"; empty when none is."""
        return "" if self.complete else f"{self.n}/{counted(self.planned, 'seed')}"

    @property
    def mean(self) -> float | None:
        """The arithmetic mean; None without a value."""
        return fmean(self.values) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean over seeds by Student's t; None below two values."""
        return mean_interval(self.values, LEVEL)

    @property
    def lowest(self) -> float | None:
        """The least value; None without a value."""
        return min(self.values, default=None)

    @property
    def highest(self) -> float | None:
        """The greatest value; None without a value."""
        return max(self.values, default=None)

    @property
    def spread(self) -> float:
        """Highest minus lowest; 0 for fewer than two values."""
        return max(self.values) - min(self.values) if self.values else 0.0


def measure(runs: Sequence[Run], quantity: Quantity) -> Measure:
    """`quantity` over the finished ones of `runs`, the planned runs of one row."""
    found = [(run.id, value) for run in runs if run.done and (value := quantity(run)) is not None]
    return Measure(values=tuple(value for _, value in found), runs=tuple(name for name, _ in found), planned=len(runs))


def difference(runs: Sequence[Run], base: Sequence[Run], quantity: Quantity) -> Measure:
    """`quantity` of `runs` minus that of the base run with the same seed, over the seeds that both have.

    Seeds fix initialisation and batches, so pairing by seed takes out what the two share.
    """
    base_values = {run.seed: (run.id, value) for run in base if run.done and (value := quantity(run)) is not None}
    pairs = [
        (value - base_values[run.seed][1], run.id, base_values[run.seed][0])
        for run in runs
        if run.done and run.seed in base_values and (value := quantity(run)) is not None
    ]
    return Measure(
        values=tuple(value for value, _, _ in pairs),
        runs=tuple(name for _, mine, other in pairs for name in (mine, other)),
        planned=len(runs),
    )


def contrast(rows: Mapping[str, Sequence[Run]], weights: Mapping[str, float], quantity: Quantity) -> Measure:
    """The sum of `weights` times `quantity` over `rows`, for each seed that has a value in all of them.

    `difference` is the contrast of one row (1) and base (-1); four rows make an interaction.
    """
    values = {
        row: {run.seed: (run.id, value) for run in rows[row] if run.done and (value := quantity(run)) is not None}
        for row in weights
    }
    planned = set.intersection(*({run.seed for run in rows[row]} for row in weights))
    order = [run.seed for run in rows[next(iter(weights))]]
    seeds = [seed for seed in order if all(seed in found for found in values.values())]
    return Measure(
        values=tuple(math.fsum(weight * values[row][seed][1] for row, weight in weights.items()) for seed in seeds),
        runs=tuple(values[row][seed][0] for seed in seeds for row in weights),
        planned=len(planned),
    )


def bleu_on_test(run: Run) -> float | None:
    """BLEU on the test side (sacreBLEU 13a)."""
    return run.number("test", "bleu")


def valid_perplexity(run: Run) -> float | None:
    """Unsmoothed perplexity per piece on the validation side."""
    return run.number("valid", "perplexity")


def log_loss(run: Run) -> float | None:
    """The logarithm of the loss, where the loss is the logarithm of `valid_perplexity`; None at a perplexity of 1.

    Differences of it are relative differences in loss (nats a piece), which compare between a perplexity of 5 and one
    of 1.1 as differences in perplexity do not.
    """
    return log_log(valid_perplexity(run))


def log_log(perplexity: float | None) -> float | None:
    """The logarithm of the logarithm of a perplexity; None where there is none."""
    return math.log(math.log(perplexity)) if perplexity is not None and perplexity > 1 else None


def train_flops(run: Run) -> float | None:
    """Floating-point operations of training by our count: forward and backward, padding left out."""
    return run.number("train_flops")


def direction(differences: Measure, published: float | None) -> str:
    """How a row's differences to base lie to the published one: "same", "opposite", "mixed", "none" or "".

    same, opposite: every seed moved with, or against, the paper. mixed: seeds disagree. none: no seed moved by a
    printed decimal. Empty: nothing to compare, or the paper itself shows no difference.
    """
    if published is None or abs(published) < PRINTED or not differences.values:
        return ""
    signs = {0 if abs(value) < PRINTED else (1 if value > 0 else -1) for value in differences.values}
    if signs == {0}:
        return "none"
    if len(signs) > 1:
        return "mixed"
    return "same" if signs == {1 if published > 0 else -1} else "opposite"


PRINTED = 0.05
"""BLEU differences below this print as 0.0."""
