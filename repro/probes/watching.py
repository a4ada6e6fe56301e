"""What passes through a model while it works: attention's queries and keys, alignments, the vectors of the source.

Nothing of the model is changed: each watcher stands in for one function while it is open, and passes everything on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from repro.models import source
from repro.models.attention import Attention

Saw = Callable[[Attention, Tensor, Tensor, Tensor | None, bool], None]
"""Told the layer, its queries and keys [batch, n_heads, length, d_k], the mask and whether it is causal."""


@contextmanager
def attention(saw: Saw) -> Iterator[None]:
    """While inside, `saw` is told of every attention that a Transformer computes."""
    mix = Attention.mix

    def watched(self: Attention, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
        saw(self, q, k, given.get("mask"), bool(given.get("causal")))
        return mix(self, q, k, v, **given)

    Attention.mix = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        Attention.mix = mix  # type: ignore[method-assign]


@contextmanager
def alignments() -> Iterator[list[Tensor]]:
    """While inside, the weights [n, queries, src_len] of every attention of a baseline join the list, in order."""
    weights, found = source.attention_weights, list[Tensor]()

    def watched(scores: Tensor, mask: Tensor) -> Tensor:
        found.append(weights(scores, mask))
        return found[-1]

    source.attention_weights = watched
    try:
        yield found
    finally:
        source.attention_weights = weights


class Embedded(TorchFunctionMode):
    """While inside, keeps pieces [batch, length] and the vectors [batch, length, width] that they are looked up as."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is functional.embedding:
            self.found.append((args[0], result))
        return result


@contextmanager
def differentiable() -> Iterator[None]:
    """While inside, gradients pass through fused recurrent layers in evaluation mode, on a GPU too."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield
