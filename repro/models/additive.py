"""Additive attention (Bahdanau et al., 2015, appendix A.1.2): score v^T tanh(W_q s + W_k h)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models.source import Source, attend

_CACHE_NUMBERS = 1 << 17
"""Numbers of a block of hidden-layer activations on a CPU: half a megabyte stays in the core's cache."""

_DEVICE_NUMBERS = 1 << 24
"""The same elsewhere: large enough to fill the device, small enough never to be the largest tensor."""

_LARGEST = 20.0
"""Largest size of a query's or key's number up to which e^2q e^2k is computed: e^80 is still a 32-bit number."""


class AdditiveAttention(nn.Module):
    """Attention with a feed-forward network of one hidden layer of width `d_attention` for a score."""

    def __init__(self, d_query: int, d_value: int, d_attention: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_query, d_attention, bias=False)
        self.key = nn.Linear(d_value, d_attention, bias=False)
        self.score = nn.Parameter(torch.empty(d_attention))

    def source(self, values: Tensor, mask: Tensor) -> Source:
        """The source of `values` [n, src_len, d_value] and `mask` [n, src_len]."""
        return Source(self.key(values), values, mask)

    def forward(self, queries: Tensor, source: Source) -> Tensor:
        """Contexts [n, queries, d_value] of `queries` [n, queries, d_query]: of one sentence at several steps, or of
        several hypotheses at one step."""
        return attend(additive_scores(self.query(queries), source.keys, self.score), source)


def additive_scores(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """score^T tanh(queries + keys): [n, queries, keys] of [n, queries, d], [n, keys, d] and [d].

    The hidden layer [n, queries, keys, d] is by far the largest tensor of such a model, and its tanh would be a third
    of a training step on a CPU. It is never held whole, and since tanh(q + k) = 1 - 2 / (1 + e^2q e^2k), exponentials
    are taken of the queries and of the keys only: a quarter of the time, equal up to rounding.
    """
    if queries.device.type != "meta" and _bounded(queries) and _bounded(keys):
        with torch.autocast(queries.device.type, enabled=False):  # sums of many terms, kept in 32 bits
            scores: Tensor = _Scores.apply(queries.float(), keys.float(), score.float())  # type: ignore[no-untyped-call]
        return scores
    # The definition itself, in products that a FLOP counter sees.
    hidden = torch.tanh(queries[:, :, None] + keys[:, None])
    return functional.linear(hidden, score[None]).squeeze(-1)


def _bounded(x: Tensor) -> bool:
    """Whether exponentials of `x`, and the products of two of them, stay normal 32-bit numbers."""
    if x.numel() == 0:
        return True
    low, high = torch.aminmax(x.detach())
    return bool(low >= -_LARGEST) and bool(high <= _LARGEST)


class _Scores(torch.autograd.Function):
    """With r = 1 / (1 + e^2q e^2k): tanh = 1 - 2 r, and its derivative is 4 (r - r^2)."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
        queries, keys = (queries * 2).exp_(), (keys * 2).exp_()
        ctx.save_for_backward(queries, keys, score)
        scores = queries.new_empty(*queries.shape[:2], keys.shape[1])
        for rows, steps in _blocks(queries, keys):
            scores[rows, steps] = _reciprocals(queries, keys, rows, steps) @ score
        return scores.mul_(-2).add_(score.sum())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, score = ctx.saved_tensors
        grad = grads[0].contiguous()
        of_queries, of_keys, of_score = (torch.zeros_like(part) for part in (queries, keys, score))
        for rows, steps in _blocks(queries, keys):
            part = grad[rows, steps]
            hidden = _reciprocals(queries, keys, rows, steps)
            of_score += part.reshape(-1) @ hidden.view(-1, len(score))
            hidden.addcmul_(hidden, hidden, value=-1).mul_(part[..., None])
            of_queries[rows, steps] += hidden.sum(2)
            of_keys[rows] += hidden.sum(1)
        return of_queries.mul_(4 * score), of_keys.mul_(4 * score), of_score.mul_(-2).add_(grad.sum())


def _reciprocals(queries: Tensor, keys: Tensor, rows: slice, steps: slice) -> Tensor:
    one = torch.ones((), device=queries.device)
    return torch.addcmul(one, queries[rows, steps, None], keys[rows, None]).reciprocal_()


def _blocks(queries: Tensor, keys: Tensor) -> list[tuple[slice, slice]]:
    """Slices of sentences and of queries whose hidden layers fit the cache."""
    n, count, width = queries.shape
    limit = _CACHE_NUMBERS if queries.device.type == "cpu" else _DEVICE_NUMBERS
    steps = max(1, min(count, limit // (keys.shape[1] * width)))
    rows = max(1, limit // (steps * keys.shape[1] * width))
    return [
        (slice(row, row + rows), slice(step, step + steps))
        for row in range(0, n, rows)
        for step in range(0, count, steps)
    ]
