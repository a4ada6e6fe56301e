"""The middle of an attention sub-layer, softmax(scale q k^T) v, and its gradient by hand, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from repro.config import TransformerConfig
from repro.data.pieces import PAD

if TYPE_CHECKING:
    from repro.models.attention import Attention

LANES = 16
"""Single-precision numbers in the widest vector register: torch takes a softmax over fewer one number at a time."""
PACKED = 1024
"""Keys times d_k up to which batched products are faster than torch's fused attention."""


class Masks:
    """What may be attended to in one batch, as numbers added to the scores: 0, or -inf where nothing may be seen."""

    def __init__(self, src_mask: Tensor, tgt_in: Tensor, config: TransformerConfig) -> None:
        self._causal, self._n_heads = config.causal_mask, config.n_heads
        self.batch, source, target = src_mask.shape[0], src_mask.shape[1], tgt_in.shape[1]
        self.lengths = {"source": (source, source), "target": (target, target), "cross": (target, source)}
        """Of queries and keys."""
        self._kept = {"source": src_mask, "cross": src_mask, "target": tgt_in != PAD}
        self._made: dict[tuple[str, bool], Tensor | None] = {}

    def positions(self, side: str) -> int:
        """How many queries there are."""
        return self.batch * self.lengths[side][0]

    def causal(self, side: str) -> bool:
        """Whether position t of `side` sees up to t only."""
        return side == "target" and self._causal

    def packed(self, side: str, like: Tensor) -> Tensor | None:
        """Broadcast to [batch * n_heads, q_len, padded k_len]; None where all may be seen."""
        key = (side, True)
        if key not in self._made:
            self._made[key] = self._packed(side, like)
        return self._made[key]

    def fused(self, side: str, like: Tensor) -> Tensor | None:
        """[batch, n_heads, 1, k_len]; None where all keys may be seen."""
        key = (side, False)
        if key not in self._made:
            mask = self._kept[side]
            self._made[key] = None if bool(mask.all()) else _numbers(mask, like)[:, None, None]
        return self._made[key]

    def _packed(self, side: str, like: Tensor) -> Tensor | None:
        mask = self._kept[side]
        length = mask.shape[1]
        room = max(LANES - length, 0)
        if self.causal(side):
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            return _numbers(functional.pad(mask, (0, room)), like)[None]
        if not room and bool(mask.all()):
            return None
        return _numbers(functional.pad(mask, (0, room)), like).repeat_interleave(self._n_heads, 0)[:, None]


def _numbers(mask: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))


class Core:
    """One layer's attention, from queries and keys beside values, both [rows, ...], a row for each position.

    There may be rows after the last position: in what is given they do not count, in what is made they are zero. Few
    keys are attended to by batched products; many, where these lose, by torch's fused operator.
    """

    def __init__(self, module: Attention, masks: Masks, side: str) -> None:
        self._scale, self._dropout, self._masks, self._side = module.scale, module.dropout, masks, side
        self._heads, self._d_k, self._d_v = module.n_heads, module.d_k, module.d_v
        self._widths = [self._heads * self._d_k, self._heads * self._d_v]
        self._q_len, self._k_len = masks.lengths[side]

    def forward(self, q: Tensor, kv: Tensor) -> Tensor:
        """The heads' outputs side by side, [rows, n_heads * d_v], for `q` [rows, n_heads * d_k]."""
        drops = self._dropout.training and self._dropout.probability > 0.0
        self._fused = not drops and self._d_k == self._d_v and self._k_len * self._d_k > PACKED
        made = q.new_empty((q.shape[0], self._heads * self._d_v))
        forth = self._forward_fused if self._fused else self._forward_packed
        context = forth(self._positions(q, self._q_len), self._positions(kv, self._k_len))
        parts = self._positions(made, self._q_len)
        parts.view(*parts.shape[:2], self._heads, self._d_v).copy_(context.transpose(1, 2))
        return made

    def backward(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        """From the `grad` of what `forward` gave, write the gradients of `q` and `kv`, shaped as these."""
        back = self._backward_fused if self._fused else self._backward_packed
        grad = grad[: self._masks.batch * self._q_len].view(self._masks.batch, self._q_len, -1)
        back(grad, self._positions(of_q, self._q_len), self._positions(of_kv, self._k_len))

    def _positions(self, x: Tensor, length: int) -> Tensor:
        """`x` [rows, width] as a view [batch, length, width]; what follows becomes zero."""
        count = self._masks.batch * length
        if x.shape[0] > count:
            x[count:].zero_()
            x = x[:count]
        return x.view(self._masks.batch, length, -1)

    def _forward_packed(self, q: Tensor, kv: Tensor) -> Tensor:
        batch, q_len, k_len = self._masks.batch, self._q_len, self._k_len
        rows = max(k_len, LANES)
        (self._q,) = self._by_head(q, q_len, 1)
        self._k, self._v = self._keys_and_values(kv, rows)
        scores = _product(self._masks.packed(self._side, q), self._q, self._k.transpose(1, 2), self._scale)
        self._weights = torch.softmax(scores, -1)
        self._mask = self._dropout.mask(q.new_empty(()).expand(batch * self._heads, q_len, k_len))
        if self._mask is None:
            self._dropped = self._weights
        else:
            self._mask = functional.pad(self._mask, (0, rows - k_len))
            self._dropped = self._weights * self._mask
        return torch.bmm(self._dropped, self._v).view(batch, self._heads, q_len, self._d_v)

    def _backward_packed(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        (of_context,) = self._by_head(grad, self._q_len, 1)
        of_weights = torch.bmm(of_context, self._v.transpose(1, 2))
        if self._mask is not None:
            of_weights.mul_(self._mask)
        of_scores = torch._softmax_backward_data(of_weights, self._weights, -1, of_weights.dtype)
        back = _product(None, of_scores, self._k, self._scale)
        self._to_rows(back, of_q, 1)
        if self._d_k == self._d_v:
            both = of_scores.new_empty(2, *self._k.shape)
            _product(None, of_scores.transpose(1, 2), self._q, self._scale, both[0])
            torch.bmm(self._dropped.transpose(1, 2), of_context, out=both[1])
            self._to_rows(both, of_kv, 2)
            return
        of_k, of_v = torch.split(of_kv, self._widths, -1)
        self._to_rows(_product(None, of_scores.transpose(1, 2), self._q, self._scale), of_k, 1)
        self._to_rows(torch.bmm(self._dropped.transpose(1, 2), of_context), of_v, 1)

    def _keys_and_values(self, kv: Tensor, rows: int) -> Sequence[Tensor]:
        if self._d_k == self._d_v:
            return self._by_head(kv, rows, 2)
        k, v = torch.split(kv, self._widths, -1)
        return *self._by_head(k, rows, 1), *self._by_head(v, rows, 1)

    def _by_head(self, x: Tensor, rows: int, kinds: int) -> Sequence[Tensor]:
        """`x` [batch, length, kinds * n_heads * width] as `kinds` times [batch * n_heads, rows, width], zeros after
        its length.
        """
        batch, length, _ = x.shape
        parts = x.view(batch, length, kinds, self._heads, -1).permute(2, 0, 3, 1, 4)
        packed = x.new_empty((kinds, batch, self._heads, rows, parts.shape[4]))
        if rows > length:
            packed.narrow(3, length, rows - length).zero_()
            packed.narrow(3, 0, length).copy_(parts)
        else:
            packed.copy_(parts)
        return packed.flatten(1, 2).unbind()

    def _to_rows(self, packed: Tensor, into: Tensor, kinds: int) -> None:
        """Copy [kinds, batch * n_heads, length or more, width] into [batch, length, kinds * n_heads * width]."""
        batch, length, _ = into.shape
        rows, width = packed.shape[-2:]
        parts = packed.view(kinds, batch, self._heads, rows, width)
        if rows > length:
            parts = parts.narrow(3, 0, length)
        into.view(batch, length, kinds, self._heads, width).copy_(parts.permute(1, 3, 0, 2, 4))

    def _forward_fused(self, q: Tensor, kv: Tensor) -> Tensor:
        causal = self._masks.causal(self._side)
        self._mask = None if causal else self._masks.fused(self._side, q)
        heads = self._split(q, kv)
        context, log_sums = _flash(*heads, 0.0, causal, attn_mask=self._mask, scale=self._scale)
        self._saved = (*heads, context, log_sums, 0.0, causal)
        return context

    def _backward_fused(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        grad = grad.view(*grad.shape[:2], self._heads, -1).transpose(1, 2)
        gradients = _flash_back(grad, *self._saved, attn_mask=self._mask, scale=self._scale)
        for gradient, into in zip(gradients, self._split(of_q, of_kv), strict=True):
            into.copy_(gradient)

    def _split(self, q: Tensor, kv: Tensor) -> Sequence[Tensor]:
        """Views [batch, n_heads, length, width] of queries, keys and values."""
        parts = q, *torch.split(kv, self._widths, -1)
        return [x.view(*x.shape[:2], self._heads, -1).transpose(1, 2) for x in parts]


def _product(bias: Tensor | None, a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """`bias` + scale * a b for [n, rows, inner] and [n, inner, columns]."""
    if bias is None:
        return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale, out=out)
    return torch.baddbmm(bias, a, b, alpha=scale, out=out)


def _flash(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*arguments, **options)
    return made


def _flash_back(*arguments: Any, **options: Any) -> Sequence[Tensor]:
    made: Sequence[Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*arguments, **options)
    return made
