"""What a target token of training costs as one size of the model or of the text grows, beside its counted FLOPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from repro.accounting.flops import Lengths, train_flops
from repro.bench.clock import Clock
from repro.bench.shapes import Shape
from repro.bench.systems import Ours
from repro.data.batches import collate
from repro.data.encoded import EncodedPairs
from repro.data.pieces import Batch
from repro.probes.exponents import power_law, slope
from repro.training.device import device_name

Tell = Callable[[str], None]

LONGEST_STEP = 3.0
"""Seconds: a size above the shape's own is left out where its step would take longer."""
TURN = 0.5
"""Seconds that a size is stepped for in a round, where one step is shorter."""
FACTORS = (0.5, 1.0, 2.0, 4.0)


def dimensions(base: Shape) -> dict[str, dict[int, Shape]]:
    """By dimension and size, `base` with that one dimension at each of FACTORS, in whole numbers.

    Width is d_model, with d_ff in proportion and heads of the same d_k; depth is of each stack; length is the target's
    with its end mark, the source in proportion, at the same tokens a batch; vocabulary is in pieces.
    """
    model = base.model

    def width(factor: float) -> tuple[int, Shape]:
        d_model, d_ff, n_heads = (int(size * factor) for size in (model.d_model, model.d_ff, model.n_heads))
        return d_model, replace(base, model=replace(model, d_model=d_model, d_ff=d_ff, n_heads=n_heads))

    def depth(factor: float) -> tuple[int, Shape]:
        n_layers = int(model.n_layers * factor)
        return n_layers, replace(base, model=replace(model, n_layers=n_layers))

    def length(factor: float) -> tuple[int, Shape]:
        longer = replace(base, src=base.src * factor, tgt=base.tgt * factor)
        return lengths(longer)[2], longer

    def vocabulary(factor: float) -> tuple[int, Shape]:
        pieces = int(base.vocabulary_size * factor)
        return pieces, replace(base, vocabulary_size=pieces)

    return {each.__name__: dict(map(each, FACTORS)) for each in (width, depth, length, vocabulary)}


def lengths(shape: Shape) -> tuple[int, int, int]:
    """Sentences, source and target length with the end mark of the batch that `shape` is timed with."""
    src, tgt = round(shape.src), round(shape.tgt)
    return shape.batch_tokens // max(src, tgt), src, tgt


def full_batch(shape: Shape) -> Batch:
    """Drawn sentences that all have the shape's mean lengths, as many as its batch holds: no padding."""
    text, (sentences, src, tgt) = shape.text(), lengths(shape)
    numbers = np.arange(sentences + 1)
    even = EncodedPairs(text.pieces, {"src": numbers * (src - 1), "tgt": numbers * (tgt - 1)}, numbers[1:])
    return collate(even, numbers[:-1])


def flops_per_token(shape: Shape) -> float:
    """Counted FLOPs a target token of an update on the shape's batch."""
    counted = train_flops(shape.model, shape.vocabulary_size, Lengths.rectangle(*lengths(shape)))
    return counted.total / _tokens(shape)


class _Timed:
    """A trainer of a shape with its batch, once everything is loaded."""

    def __init__(self, shape: Shape, clock: Clock) -> None:
        self.shape, self._clock, self._batch = shape, clock, full_batch(shape)
        self._ours = Ours(shape, clock.device)
        self._seconds(1)
        self.step = min(self._seconds(1), self._seconds(1))
        """Seconds of one update, the quicker of two."""

    def seconds_per_token(self) -> float:
        """CPU seconds a target token over one round's updates."""
        steps = max(1, round(TURN / self.step))
        return self._seconds(steps) / steps / _tokens(self.shape)

    def _seconds(self, steps: int) -> float:
        with self._clock:
            self._ours.steps([self._batch] * steps)
        return self._clock.seconds


def measure(base: Shape, *, rounds: int = 5, tell: Tell = lambda _: None) -> dict[str, Any]:
    """The document of `base`: CPU seconds a target token of an update in each dimension's sizes, over `rounds`.

    A round is every size in turn. A size has its seconds a token in every round, its counted FLOPs a token and the
    FLOP/s of its median round, and both costs as multiples of those of `base`: `measured`, the median of the multiples
    within a round, and `counted`. A dimension's `power` is the slope of the logarithms over sizes with its 95 %
    interval over rounds, `counted_power` the slope of the FLOPs. `left_out` has the sizes above the base's own whose
    step would take longer than LONGEST_STEP at the FLOP/s of `base`.

    Raises ValueError with fewer than two rounds, UsageError where a size of `base` cannot be halved.
    """
    if rounds < 2:
        raise ValueError(f"{rounds} round, an interval needs two")
    clock = Clock(torch.device("cpu"))
    sizes = dimensions(base)
    own = {name: list(shapes)[FACTORS.index(1.0)] for name, shapes in sizes.items()}
    tell("warming up: the base")
    first = _Timed(base, clock)
    longest = LONGEST_STEP / first.step * _flops(base)
    timed: dict[str, dict[int, _Timed]] = {name: {} for name in sizes}
    for name, shapes in sizes.items():
        for size, shape in shapes.items():
            if size <= own[name] or _flops(shape) <= longest:
                tell(f"warming up: {name} {size:,}")
                timed[name][size] = first if size == own[name] else _Timed(shape, clock)
    every = list(dict.fromkeys(each for row in timed.values() for each in row.values()))
    seconds: dict[_Timed, list[float]] = {each: [] for each in every}
    for turn in range(rounds):
        for number, each in enumerate(every):
            tell(f"round {turn + 1} of {rounds}: {number + 1} of {len(every)}")
            seconds[each].append(each.seconds_per_token())
    return {
        "shape": base.name,
        "device": device_name(clock.device),
        "precision": "fp32",
        "rounds": rounds,
        "batch_tokens": base.batch_tokens,
        "base": own | {"d_ff": base.model.d_ff, "n_heads": base.model.n_heads},
        "dimensions": [
            _dimension(name, row, first, seconds) | {"left_out": [size for size in sizes[name] if size not in row]}
            for name, row in timed.items()
        ],
    }


def _dimension(name: str, timed: dict[int, _Timed], base: _Timed, seconds: dict[_Timed, list[float]]) -> dict[str, Any]:
    counted = {each: flops_per_token(each.shape) for each in timed.values()}
    rounds = [[seconds[each][turn] for each in timed.values()] for turn in range(len(seconds[base]))]
    return {
        "dimension": name,
        "sizes": [
            {
                "size": size,
                "seconds_per_token": seconds[each],
                "flops_per_token": counted[each],
                "flops_per_second": counted[each] / median(seconds[each]),
                "measured": median(a / b for a, b in zip(seconds[each], seconds[base], strict=True)),
                "counted": counted[each] / counted[base],
            }
            for size, each in timed.items()
        ],
        "power": power_law(list(timed), rounds).document(),
        "counted_power": slope(list(timed), list(counted.values())),
    }


def _flops(shape: Shape) -> float:
    return flops_per_token(shape) * _tokens(shape)


def _tokens(shape: Shape) -> int:
    sentences, _, tgt = lengths(shape)
    return sentences * tgt
