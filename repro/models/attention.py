"""Multi-head attention (Vaswani et al. 2017, section 3.2), with the projections of one input packed in one product."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.config import TransformerConfig
from repro.models.dropout import Dropout, RandomSource
from repro.models.linear import Linear


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """softmax(scale * q k^T) v (eq. 1) by torch's fused operator: [..., q_len, d_v].

    `q` [..., q_len, d_k], `k` [..., k_len, d_k], `v` [..., k_len, d_v]; `mask` boolean, broadcast to
    [..., q_len, k_len], True = may attend. A position that may attend to nothing gets zeros. `causal` lets position t
    attend up to t; it takes the place of `mask`.
    """
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def attention_weights(
    q: Tensor, k: Tensor, *, scale: float, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """The weights softmax(scale * q k^T) themselves, [..., q_len, k_len]; arguments as `attend`'s.

    A position that may attend to nothing gets zeros everywhere.
    """
    scores = torch.matmul(q * scale, k.transpose(-2, -1))
    if causal:
        assert mask is None
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # The lowest number, not -inf: a row that may attend to nothing must not become NaN, in value or gradient.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1).masked_fill(~mask, 0.0)


def key_mask(mask: Tensor) -> Tensor | None:
    """`mask` [batch, k_len] shaped for attention, [batch, 1, 1, k_len]; None where nothing is masked.

    Off the CPU it is always given: looking at its values would make the host wait for the device.
    """
    if mask.device.type == "cpu" and bool(mask.all()):
        return None
    return mask[:, None, None, :]


WIDEST = 256
"""Numbers of a head that flash attention takes at most."""


class Segments(NamedTuple):
    """Where the sentences of one side begin when they stand one after the other, without padding between them."""

    starts: Tensor
    """[sentences + 1] int32: first row of each sentence, then the number of rows. No row is outside a sentence."""
    longest: int
    """No sentence is longer; it may be more than the longest has, so that it need not change from batch to batch."""


def refusal(config: TransformerConfig, widest: int = WIDEST) -> str:
    """Why `attend_packed` cannot compute the attention of `config` on a GPU that takes heads of up to `widest` numbers;
    empty where it can.
    """
    config = config.resolved()
    assert config.d_k is not None
    assert config.d_v is not None
    if config.attention_dropout:
        return "attention dropout, which needs the weights"
    if max(config.d_k, config.d_v) > widest:
        return f"heads of {max(config.d_k, config.d_v)} numbers, flash attention takes {widest} here"
    return ""


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, queries: Segments, keys: Segments, *, scale: float, causal: bool = False
) -> Tensor:
    """`attend` within each of many sentences: [q_rows, n_heads, d_v], for every sentence its own softmax.

    `q` [q_rows, n_heads, d_k], `k` [k_rows, n_heads, d_k], `v` [k_rows, n_heads, d_v]; sentence i of `queries` sees
    sentence i of `keys`. Off the CPU by torch's flash attention for sequences of several lengths, in half precision,
    without any mask; heads whose width it does not take are filled up with zeros, which changes no product.
    """
    if q.device.type == "cpu":
        return _attend_one_by_one(q, k, v, queries, keys, scale, causal)
    width = -(-max(q.shape[-1], v.shape[-1]) // 8) * 8
    padded = (functional.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v))
    made = torch.ops.aten._flash_attention_forward(
        *padded, queries.starts, keys.starts, queries.longest, keys.longest, 0.0, causal, False, scale=scale
    )
    context: Tensor = made[0]
    return context[..., : v.shape[-1]]


def _attend_one_by_one(
    q: Tensor, k: Tensor, v: Tensor, queries: Segments, keys: Segments, scale: float, causal: bool
) -> Tensor:
    """`attend_packed` by the definition."""
    contexts = [
        attend(*(x.transpose(0, 1) for x in (q[q0:q1], k[k0:k1], v[k0:k1])), scale=scale, causal=causal)
        for (q0, q1), (k0, k1) in zip(pairwise(queries.starts.tolist()), pairwise(keys.starts.tolist()), strict=True)
        if q1 > q0
    ]
    return torch.cat(contexts, 1).transpose(0, 1)


class Attention(nn.Module):
    """What self- and cross-attention share: heads of `d_k` and `d_v`, and the projection W^O of their outputs."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__()
        config = config.resolved()
        assert config.d_k is not None
        assert config.d_v is not None
        self.n_heads, self.d_k, self.d_v = config.n_heads, config.d_k, config.d_v
        self.scale = 1.0 / math.sqrt(self.d_k) if config.scale_attention else 1.0
        self.dropout = Dropout(config.attention_dropout, random)
        self.out = Linear(self.n_heads * self.d_v, config.d_model, bias=config.attention_bias)

    def split(self, x: Tensor) -> Tensor:
        """[batch, length, n_heads * width] as [batch, n_heads, length, width], without a copy."""
        return x.view(*x.shape[:-1], self.n_heads, -1).transpose(1, 2)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """[batch, q_len, d_model] from split heads; with `maps`, the weights [batch, n_heads, q_len, k_len] join it."""
        if maps is None and not (self.training and self.dropout.probability > 0.0):
            context = attend(q, k, v, scale=self.scale, mask=mask, causal=causal)
        else:
            weights = attention_weights(q, k, scale=self.scale, mask=mask, causal=causal)
            if maps is not None:
                maps.append(weights)
            context = torch.matmul(self.dropout(weights), v)
        merged: Tensor = self.out(context.transpose(1, 2).flatten(2))
        return merged


class SelfAttention(Attention):
    """Queries, keys and values of one sequence, from one product with the stacked rows [W^Q; W^K; W^V]."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__(config, random)
        width = self.n_heads * (2 * self.d_k + self.d_v)
        self.qkv = Linear(config.d_model, width, bias=config.attention_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [batch, n_heads, length, d_k] and values [..., d_v] of `x` [batch, length, d_model]."""
        keys = self.n_heads * self.d_k
        q, k, v = torch.split(self.qkv(x), [keys, keys, self.n_heads * self.d_v], dim=-1)
        return self.split(q), self.split(k), self.split(v)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, causal: bool = False, maps: list[Tensor] | None = None
    ) -> Tensor:
        """[batch, length, d_model] for `x` of that shape; the rest as in `mix`."""
        q, k, v = self.project(x)
        return self.mix(q, k, v, mask=mask, causal=causal, maps=maps)

    def projections(self) -> tuple[Tensor, ...]:
        """W^Q, W^K, W^V as views of the stacked matrix, each [n_heads * width, d_model]."""
        keys = self.n_heads * self.d_k
        return torch.split(self.qkv.weight, [keys, keys, self.n_heads * self.d_v])


class CrossAttention(Attention):
    """Queries of one sequence on keys and values of the memory, which come from one product with [W^K; W^V]."""

    def __init__(self, config: TransformerConfig, random: RandomSource) -> None:
        super().__init__(config, random)
        self.q = Linear(config.d_model, self.n_heads * self.d_k, bias=config.attention_bias)
        self.kv = Linear(config.d_model, self.n_heads * (self.d_k + self.d_v), bias=config.attention_bias)

    def memory(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Keys [batch, n_heads, src_len, d_k], values [..., d_v] of the memory's `states` [batch, src_len, d_model]."""
        k, v = torch.split(self.kv(states), [self.n_heads * self.d_k, self.n_heads * self.d_v], dim=-1)
        return self.split(k), self.split(v)

    def forward(
        self, x: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, maps: list[Tensor] | None = None
    ) -> Tensor:
        """[batch, q_len, d_model] for `x` of that shape and the `k`, `v` of `memory`; the rest as in `mix`."""
        return self.mix(self.split(self.q(x)), k, v, mask=mask, maps=maps)

    def projections(self) -> tuple[Tensor, ...]:
        """W^Q, W^K, W^V, the last two as views of the stacked matrix, each [n_heads * width, d_model]."""
        return self.q.weight, *torch.split(self.kv.weight, [self.n_heads * self.d_k, self.n_heads * self.d_v])
