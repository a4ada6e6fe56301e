"""How fast the matrix products of a step are when nothing else is done: the ceiling of its speed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from repro.bench.clock import Clock
from repro.bench.shapes import Shape
from repro.config import TransformerConfig
from repro.data.pieces import Batch
from repro.models.products import input_gradient, linear, room, weight_gradient

Product = tuple[int, int, int]
"""Positions, width in and width out of a linear layer."""


def products(config: TransformerConfig, vocabulary_size: int, src: int, tgt: int) -> Counter[Product]:
    """The linear layers of one step over `src` source and `tgt` target positions, and how often each is met."""
    config = config.resolved()
    assert config.d_k is not None
    assert config.d_v is not None
    d, keys, values = config.d_model, config.n_heads * config.d_k, config.n_heads * config.d_v
    found: Counter[Product] = Counter()
    for positions in (src, tgt):
        found[positions, d, 2 * keys + values] += 1
        found[positions, values, d] += 1
        found[positions, d, config.d_ff] += 1
        found[positions, config.d_ff, d] += 1
    found[tgt, d, keys] += 1
    found[tgt, values, d] += 1
    found[src, d, keys + values] += 1
    total = Counter({product: times * config.n_layers for product, times in found.items()})
    total[tgt, d, vocabulary_size] += 1
    return total


def rate(shape: Shape, batches: Iterable[Batch], clock: Clock) -> float:
    """FLOP/s of the linear layers of `batches`, forward and both gradients, each product by itself: a median."""
    found: Counter[Product] = Counter()
    for batch in batches:
        src, tgt = int(batch.src_lengths.sum()), int(batch.tgt_lengths.sum())
        found += products(shape.model, shape.vocabulary_size, src, tgt)
    flops = sum(6 * rows * wide * out * times for (rows, wide, out), times in found.items())
    return flops / statistics.median(seconds(found, clock, forth, back))


Operation = Callable[[Tensor, Tensor, Tensor], object]
"""What a layer computes from inputs [rows, in], weight [out, in] and gradient [rows, out]."""


def forth(x: Tensor, w: Tensor, y: Tensor) -> None:
    """The layer's output and, on the way back, its input's gradient."""
    linear(x, w)
    input_gradient(y, w)


def back(x: Tensor, _: Tensor, y: Tensor) -> None:
    """The weight's gradient."""
    weight_gradient(y, x)


def seconds(found: Counter[Product], clock: Clock, *operations: Operation, rounds: int = 3) -> list[float]:
    """What `operations` take for all of `found`, in each of `rounds`.

    On a CPU by the library that this project takes there, in the sizes that it takes.
    """
    device = clock.device
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    taken = [0.0] * (rounds + 1)
    for (rows, wide, out), times in found.items():
        made = room(rows) if device.type == "cpu" else rows
        x, w, y = (torch.randn(a, b, device=device, dtype=kind) for a, b in ((made, wide), (out, wide), (made, out)))
        for turn in range(rounds + 1):  # the first one warms up
            with clock:
                for _ in range(times):
                    for operation in operations:
                        operation(x, w, y)
            taken[turn] += clock.seconds
    return taken[1:]
