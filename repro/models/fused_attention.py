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

_softmax_back = torch.ops.aten._softmax_backward_data.out


class Masks:
    """What may be attended to in one batch, as numbers added to the scores: 0, or -inf where nothing may be seen."""

    def __init__(self, src_mask: Tensor, tgt_in: Tensor, config: TransformerConfig) -> None:
        self._causal, self._n_heads = config.causal_mask, config.n_heads
        self.batch, source, target = src_mask.shape[0], src_mask.shape[1], tgt_in.shape[1]
        self.lengths = {"source": (source, source), "target": (target, target), "cross": (target, source)}
        """Of queries and keys."""
        self._kept = {"source": src_mask, "target": tgt_in != PAD}
        self._made: dict[tuple[str, bool], Tensor | None] = {}

    def positions(self, side: str) -> int:
        """How many queries there are."""
        return self.batch * self.lengths[side][0]

    def causal(self, side: str) -> bool:
        """Whether position t of `side` sees up to t only."""
        return side == "target" and self._causal

    def packed(self, side: str, like: Tensor) -> Tensor | None:
        """Broadcast to [batch * n_heads, q_len, padded k_len]; None where all may be seen."""
        key = (self._read(side), True)
        if key not in self._made:
            self._made[key] = self._packed(key[0], like)
        return self._made[key]

    def fused(self, side: str, like: Tensor) -> Tensor | None:
        """[batch, n_heads, 1, k_len]; None where all keys may be seen."""
        key = (self._read(side), False)
        if key not in self._made:
            mask = self._kept[key[0]]
            self._made[key] = None if bool(mask.all()) else _numbers(mask, like)[:, None, None]
        return self._made[key]

    def _read(self, side: str) -> str:
        """The side whose pieces are read."""
        return "source" if side == "cross" else side

    def _packed(self, side: str, like: Tensor) -> Tensor | None:
        mask = self._kept[side]
        length = mask.shape[1]
        room = max(LANES - length, 0)
        if self.causal(side):
            mask = torch.ones(length, length, dtype=torch.bool).tril()
            return _numbers(functional.pad(mask, (0, room)), like)[None]
        if not room and bool(mask.all()):
            return None
        numbers = _numbers(functional.pad(mask, (0, room)), like)
        return numbers[:, None].expand(-1, self._n_heads, -1).reshape(self.batch * self._n_heads, 1, -1)


def _numbers(mask: Tensor, like: Tensor) -> Tensor:
    return like.new_zeros(mask.shape).masked_fill_(~mask, float("-inf"))


class _Pair:
    """Queries and their outputs' gradients, or keys and values: [heads, rows, d_k] and [heads, rows, d_v], unwritten.

    They lie beside each other where both together are no wider than a register. A product that makes 8 columns takes
    longer than one that makes 16, so there it is made with both, and its half taken.
    """

    def __init__(self, like: Tensor, heads: int, rows: int, d_k: int, d_v: int) -> None:
        if d_k + d_v > LANES:
            self.first = self.with_first = like.new_empty((heads, rows, d_k))
            """Queries or keys; and what a product with them is made with, whose columns are the first d_k."""
            self._width = d_v
        else:
            self.with_first = self.with_second = like.new_empty((heads, rows, d_k + d_v))
            self.first, self.second = self.with_first.narrow(2, 0, d_k), self.with_first.narrow(2, d_k, d_v)
            self._width = 0

    def add_second(self) -> None:
        """Make room for gradients or values, which take memory from here on."""
        if self._width:
            self.second = self.with_second = self.first.new_empty((*self.first.shape[:2], self._width))
            """Gradients or values; and what a product with them is made with, whose columns are the last d_v."""


class Core:
    """One layer's attention, from queries and keys beside values, both [rows, ...], a row for each position.

    There may be rows after the last position: in what is given they do not count, in what is made they are zero. Few
    keys are attended to by batched products; many, where these lose, by torch's fused operator.
    """

    def __init__(self, module: Attention, masks: Masks, side: str) -> None:
        self._scale, self._dropout, self._masks, self._side = module.scale, module.dropout, masks, side
        self._heads, self._d_k, self._d_v = module.n_heads, module.d_k, module.d_v
        self._batch, (self._q_len, self._k_len) = masks.batch, masks.lengths[side]
        self._keys = 0 if side == "cross" else self._heads * self._d_k
        """Column at which the keys begin."""
        self._values = self._keys + self._heads * self._d_k
        self._drops = self._dropout.training and self._dropout.probability > 0.0
        self._fused = not self._drops and self._d_k == self._d_v and self._k_len * self._d_k > PACKED

    def forward(self, q: Tensor, kv: Tensor) -> Tensor:
        """The heads' outputs side by side, [rows, n_heads * d_v].

        `q` holds the queries in its first n_heads * d_k columns, `kv` keys and values in its last; where a sequence
        attends to itself both are the same [rows, n_heads * (2 * d_k + d_v)].
        """
        made = q.new_empty((q.shape[0], self._heads * self._d_v))
        self._clear(made, self._q_len)
        context = (self._forward_fused if self._fused else self._forward_packed)(q, kv)
        self._rows(made, self._q_len, 0, self._d_v).copy_(context)
        return made

    def backward(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        """From the `grad` of what `forward` gave, write the gradients of `q` and `kv`, shaped as these."""
        self._clear(of_q, self._q_len)
        self._clear(of_kv, self._k_len)
        (self._backward_fused if self._fused else self._backward_packed)(grad, of_q, of_kv)

    def _clear(self, x: Tensor, length: int) -> None:
        """Zero what follows the positions."""
        count = self._batch * length
        if x.shape[0] > count:
            x[count:].zero_()

    def _rows(self, x: Tensor, length: int, column: int, width: int) -> Tensor:
        """What `x` [rows, ...] holds from `column` on, by heads: a view [batch, n_heads, length, width].

        `x` is contiguous and has its memory to itself.
        """
        stride = x.shape[1]
        return x.as_strided((self._batch, self._heads, length, width), (length * stride, width, stride, 1), column)

    def _pair(self, like: Tensor, rows: int) -> _Pair:
        return _Pair(like, self._batch * self._heads, rows, self._d_k, self._d_v)

    def _fill(self, into: Tensor, x: Tensor, length: int, column: int) -> None:
        """Copy what `x` holds from `column` on to `into` [batch * n_heads, rows, width], zeros after `length`."""
        rows, width = into.shape[1:]
        parts = into.view(self._batch, self._heads, rows, width)
        if rows > length:
            parts.narrow(2, length, rows - length).zero_()
            parts = parts.narrow(2, 0, length)
        parts.copy_(self._rows(x, length, column, width))

    def _put(self, x: Tensor, length: int, column: int, made: Tensor) -> None:
        """Copy `made` [batch * n_heads, `length` or more, width] to where `_rows` has it."""
        rows, width = made.shape[1:]
        parts = made.view(self._batch, self._heads, rows, width)
        self._rows(x, length, column, width).copy_(parts.narrow(2, 0, length) if rows > length else parts)

    def _forward_packed(self, q: Tensor, kv: Tensor) -> Tensor:
        q_len, k_len, d_v = self._q_len, self._k_len, self._d_v
        rows = max(k_len, LANES)
        self._asks = asks = self._pair(q, q_len)
        self._reads = reads = self._pair(kv, rows)
        self._fill(asks.first, q, q_len, 0)
        self._fill(reads.first, kv, k_len, self._keys)
        reads.add_second()
        self._fill(reads.second, kv, k_len, self._values)
        scores = _product(self._masks.packed(self._side, q), asks.first, reads.first.transpose(1, 2), self._scale)
        # Written over its scores it takes three times as long unless the rows are whole registers.
        self._weights = self._dropped = torch.softmax(scores, -1, out=None if rows % LANES else scores)
        if self._drops:
            mask = self._dropout.mask(q.new_empty(()).expand(scores.shape[0], q_len, k_len))
            assert mask is not None
            self._mask = functional.pad(mask, (0, rows - k_len))
            self._dropped = self._weights * self._mask
        context = torch.bmm(self._dropped, reads.with_second).narrow(2, -d_v, d_v)
        return context.view(self._batch, self._heads, q_len, d_v)

    def _backward_packed(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        q_len, k_len, d_k, d_v = self._q_len, self._k_len, self._d_k, self._d_v
        asks, reads = self._asks, self._reads
        asks.add_second()
        self._fill(asks.second, grad, q_len, 0)
        of_weights = torch.bmm(asks.second, reads.second.transpose(1, 2))
        if self._drops:
            of_weights.mul_(self._mask)
        _softmax_back(of_weights, self._weights, -1, of_weights.dtype, grad_input=of_weights)
        of_scores, across = of_weights, of_weights.transpose(1, 2)
        self._put(of_q, q_len, 0, _product(None, of_scores, reads.with_first, self._scale).narrow(2, 0, d_k))
        self._put(of_kv, k_len, self._keys, _product(None, across, asks.with_first, self._scale).narrow(2, 0, d_k))
        self._put(
            of_kv, k_len, self._values, torch.bmm(self._dropped.transpose(1, 2), asks.with_second).narrow(2, -d_v, d_v)
        )

    def _forward_fused(self, q: Tensor, kv: Tensor) -> Tensor:
        causal = self._masks.causal(self._side)
        mask = self._bias = None if causal else self._masks.fused(self._side, q)
        heads = self._split(q, kv)
        context, log_sums = _flash(*heads, 0.0, causal, attn_mask=mask, scale=self._scale)
        self._saved = (*heads, context, log_sums, 0.0, causal)
        return context

    def _backward_fused(self, grad: Tensor, of_q: Tensor, of_kv: Tensor) -> None:
        of_context = self._rows(grad, self._q_len, 0, self._d_v)
        gradients = _flash_back(of_context, *self._saved, attn_mask=self._bias, scale=self._scale)
        for gradient, into in zip(gradients, self._split(of_q, of_kv), strict=True):
            into.copy_(gradient)

    def _split(self, q: Tensor, kv: Tensor) -> Sequence[Tensor]:
        """Views [batch, n_heads, length, width] of queries, keys and values."""
        return [
            self._rows(q, self._q_len, 0, self._d_k),
            self._rows(kv, self._k_len, self._keys, self._d_k),
            self._rows(kv, self._k_len, self._values, self._d_v),
        ]


def _product(bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`bias` + scale * a b for [n, rows, inner] and [n, inner, columns]."""
    if bias is None:
        return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)
    return torch.baddbmm(bias, a, b, alpha=scale)


def _flash(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
    made: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*arguments, **options)
    return made


def _flash_back(*arguments: Any, **options: Any) -> Sequence[Tensor]:
    made: Sequence[Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*arguments, **options)
    return made
