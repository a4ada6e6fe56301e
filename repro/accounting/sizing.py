"""Widths for a baseline that make it as large, or as costly, as another model.

The rule. Depth, ties and dropout are the template's. Two widths are free, both multiples of 8: `d_hidden` (of an LSTM
layer or a convolution) and `d_embedding`; `resized` says what follows them. For each difference of the two, smallest
first, the `d_hidden` that comes nearest to the target is found; the first pair within 1 % is taken, or else the
nearest of all, which must be within the tolerance. A tied `lstm` or `gnmt` has a linear layer from its states to the
softmax matrix only where the two differ, so it gets equal widths only where no others come near. The evidence that the
layer matters is one LSTM at `multi30k-cpu`, one seed (reports/published/README.md).
"""

from __future__ import annotations

from collections.abc import Callable

from repro.accounting.flops import Lengths, forward_flops
from repro.accounting.inventory import inventory
from repro.config.baselines import BaselineConfig, BaselineFamily, resized, small
from repro.errors import UsageError

STEP = 8
"""Widths are multiples of it: whole vector registers."""

CLOSE = 0.01
"""Share of the target within which the first pair found is taken."""

LARGEST = 8192
"""No width above it is tried."""

TYPICAL = Lengths.rectangle(1, 25, 25)
"""The sentence pair whose FLOPs are compared where nothing else is said: news and captions are about that long."""


def sized(
    family: BaselineFamily, *, target_parameters: int, vocabulary_size: int, template: BaselineConfig | None = None
) -> BaselineConfig:
    """The `family` with about `target_parameters` trained numbers (within 3 %); `template` defaults to `small`.

    Raises UsageError when no widths come that near.
    """
    start = template or small(family)
    return _fit(
        start, lambda config: inventory(config, vocabulary_size).parameters, target_parameters, 0.03, "parameters"
    )


def sized_by_flops(
    family: BaselineFamily,
    *,
    target_flops: int,
    vocabulary_size: int,
    lengths: Lengths = TYPICAL,
    template: BaselineConfig | None = None,
) -> BaselineConfig:
    """The `family` whose forward pass over `lengths` takes about `target_flops` (within 5 %).

    Training is three times that for every family, so this is equal training cost a token, too. Raises UsageError when
    no widths come that near.
    """
    start = template or small(family)
    return _fit(
        start, lambda config: forward_flops(config, vocabulary_size, lengths).total, target_flops, 0.05, "FLOPs"
    )


def _fit(
    template: BaselineConfig, measure: Callable[[BaselineConfig], int], target: int, tolerance: float, noun: str
) -> BaselineConfig:
    def error(config: BaselineConfig) -> float:
        return abs(measure(config) / target - 1.0)

    trials = _differences(template)
    best = _nearest(template, measure, target, trials[0][0])
    for differences in trials:
        for difference in differences:
            if error(best) <= CLOSE:
                return best
            best = min(best, _nearest(template, measure, target, difference), key=error)
        if error(best) <= tolerance:
            return best
    raise UsageError(
        f"{template.family} comes no nearer to {target:,} {noun} than {measure(best):,}",
        where="model",
        fix="choose another base, or a smaller vocabulary",
    )


def _differences(template: BaselineConfig) -> list[list[int]]:
    """What d_embedding may have more than d_hidden, in the order of trial; a later list is a last resort."""
    unequal = [sign * STEP * count for count in range(1, 17) for sign in (1, -1)]
    bare = template.family in {"lstm", "gnmt"} and template.tied_embeddings
    return [unequal, [0]] if bare else [[0, *unequal]]


def _nearest(
    template: BaselineConfig, measure: Callable[[BaselineConfig], int], target: int, difference: int
) -> BaselineConfig:
    """Of all configurations with d_embedding = d_hidden + difference, but at least half of it, the nearest."""

    def made(count: int) -> BaselineConfig:
        hidden = STEP * count
        return resized(template, d_hidden=hidden, d_embedding=max(hidden + difference, hidden // 2, STEP))

    low, high = 1 if difference >= 0 else 2, LARGEST // STEP  # of the least width half is none: both would be equal
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if measure(made(middle)) <= target else (low, middle)
    return min((made(low), made(high)), key=lambda config: abs(measure(config) - target))
