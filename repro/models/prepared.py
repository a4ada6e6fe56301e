"""A decoder layer made ready for one piece after another.

A step of a search meets few rows and many operators, so what an operator costs to call counts as much as what it
computes. Weights are laid out once for one search after the other: a head's query, key and value side by side, so that
attention reads and stores them without a copy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models import linear, products

if TYPE_CHECKING:
    from repro.models.attention import SelfAttention
    from repro.models.transformer import DecoderLayer


class Slots(NamedTuple):
    """A layer's keys and values of generated pieces."""

    into: Tensor
    """[sentences * n_heads, beam, d_k + d_v], where those of the next pieces go."""
    keys: Tensor
    """[sentences * n_heads, d_k, slots]"""
    values: Tensor
    """[sentences * n_heads, slots, d_v]"""


class PreparedLinear:
    """`linear.linear` with one weight and bias, in inference mode; the library is chosen, and its layout made, once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        single = weight.device.type == "cpu" and weight.dtype == torch.float32
        onednn = single and products.library() == "onednn"
        self._worth = linear.WORTH / weight.numel() if onednn else math.inf
        self._packed = products.packed(weight, bias) if onednn else None

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, d_out] of `x` [rows, d_in]."""
        if self._packed is not None and x.shape[0] >= self._worth and x.dtype == torch.float32:  # autocast's is not
            return self._packed(x)
        return functional.linear(x, self._weight, self._bias)


class PreparedFrame:
    """A sub-layer's frame in evaluation."""

    def __init__(self, norm: nn.LayerNorm, pre: bool) -> None:
        self._shape, self._weight, self._bias, self._eps = norm.normalized_shape, norm.weight, norm.bias, norm.eps
        self._pre = pre

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self._norm(x) if self._pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The frame's output from its input `x` and the sub-layer's output `y`, which is overwritten."""
        total = y.add_(x)
        return total if self._pre else self._norm(total)

    def _norm(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


class PreparedLayer:
    """What a `DecoderLayer` computes for one more piece of each hypothesis."""

    def __init__(self, layer: DecoderLayer) -> None:
        attention, cross, forward = layer.attention, layer.cross, layer.feed_forward
        self.n_heads, self.d_k = attention.n_heads, attention.d_k
        self._qkv, self._attention_out = _by_head(attention), PreparedLinear(attention.out.weight, attention.out.bias)
        bias = None if cross.q.bias is None else cross.q.bias * cross.scale
        self._q = PreparedLinear(cross.q.weight * cross.scale, bias)
        self._cross_out = PreparedLinear(cross.out.weight, cross.out.bias)
        self._inner = PreparedLinear(forward.inner.weight, forward.inner.bias)
        self._outer = PreparedLinear(forward.outer.weight, forward.outer.bias)
        frames = (layer.attention_frame, layer.cross_frame, layer.feed_forward_frame)
        self._frames = [PreparedFrame(frame.norm, frame.pre) for frame in frames]

    def advance(
        self,
        x: Tensor,
        slots: Slots,
        scores: Tensor | None,
        memory: tuple[Tensor, Tensor],
        padding_scores: Tensor | None,
    ) -> Tensor:
        """[beam * sentences, d_model] to the same, for one more piece of each hypothesis.

        The slots of the next pieces are written; what is attended to is as in `attend_side_by_side`.
        """
        into, own = slots.into, (slots.keys, slots.values)
        beam, heads, frame = into.shape[1], self.n_heads, self._frames[0]
        packed = self._qkv(frame.enter(x)).view(beam, into.shape[0], -1)
        into.copy_(packed[..., self.d_k :].transpose(0, 1))
        y = attend_side_by_side(packed[..., : self.d_k], *own, scores, heads)
        x = frame.leave(x, self._attention_out(y))
        frame = self._frames[1]
        q = self._q(frame.enter(x)).view(beam, into.shape[0], -1)
        x = frame.leave(x, self._cross_out(attend_side_by_side(q, *memory, padding_scores, heads)))
        frame = self._frames[2]
        return frame.leave(x, self._outer(self._inner(frame.enter(x)).relu_()))


def attend_side_by_side(q: Tensor, k: Tensor, v: Tensor, scores: Tensor | None, n_heads: int) -> Tensor:
    """What the hypotheses of each sentence find, [beam * sentences, n_heads * d_v].

    `q` [beam, sentences * n_heads, d_k], scaled already; `k` [sentences * n_heads, d_k, keys] and
    `v` [sentences * n_heads, keys, d_v] are shared by a sentence's hypotheses; `scores`, broadcast to
    [sentences * n_heads, beam, keys], are added to the products. For so few queries two products in batches take a
    third to a half of the time of torch's fused attention.
    """
    beam, rows, _ = q.shape
    q = q.transpose(0, 1)
    scores = torch.bmm(q, k) if scores is None else torch.baddbmm(scores, q, k)
    context = torch.bmm(torch.softmax(scores, -1), v)
    merged = context.view(rows // n_heads, n_heads, beam, -1).permute(2, 0, 1, 3)
    return merged.reshape(beam * (rows // n_heads), -1)


def _by_head(attention: SelfAttention) -> PreparedLinear:
    """The projection of queries (scaled), keys and values, those of a head side by side."""
    heads, scale = attention.n_heads, attention.scale
    widths = [heads * attention.d_k, heads * attention.d_k, heads * attention.d_v]

    def arranged(packed: Tensor) -> Tensor:
        q, k, v = (part.reshape(heads, -1, *part.shape[1:]) for part in torch.split(packed, widths))
        return torch.cat((q * scale, k, v), 1).flatten(0, 1)

    bias = attention.qkv.bias
    return PreparedLinear(arranged(attention.qkv.weight), None if bias is None else arranged(bias))
