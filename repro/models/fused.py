"""The Transformer's training pass on a CPU: each sub-layer with its frame as one operator, its gradient by hand.

It computes what `repro.models.transformer` says, with the same parameters and the same dropout masks, up to rounding.
What it leaves out is torch's record of every step, copies between layouts, and softmaxes over fewer keys than a vector
register holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from repro.data.pieces import PAD
from repro.models.fused_attention import Core, Masks
from repro.models.products import input_gradient, linear, room, weight_gradient

if TYPE_CHECKING:
    from repro.models.attention import CrossAttention, SelfAttention
    from repro.models.dropout import Dropout
    from repro.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer


def serves(model: Transformer, src_mask: Tensor, tgt_in: Tensor) -> bool:
    """Whether `hidden_states` can compute it: training on a CPU, not below single precision, no sentence empty."""
    return (
        model.training
        and torch.is_grad_enabled()
        and src_mask.device.type == "cpu"
        and model.embedding.device.type == "cpu"
        and model.embedding.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and bool(src_mask.any(1).all())
        and bool((tgt_in != PAD).any(1).all())
    )


def hidden_states(model: Transformer, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
    """The hidden states [batch, tgt_len, d_model] of `model`, as its `forward` gives them; arguments as there."""
    tables = [
        None if positions is None else positions(pieces[..., None])
        for positions, pieces in ((model.src_positions, src), (model.tgt_positions, tgt_in))
    ]
    embedded = EmbeddingOperator.apply(src, tgt_in, model.embedding, *tables)  # type: ignore[no-untyped-call]
    masks = Masks(src_mask, tgt_in, model.config)
    x = _dropped(model.embedding_dropout, embedded[0], src.numel())
    for layer in cast("Iterable[EncoderLayer]", model.encoder):
        x = _self_attention(layer.attention, layer.attention_frame, x, masks, "source")
        x = _feed_forward(layer.feed_forward, layer.feed_forward_frame, x, src.numel())
    memory = x if model.encoder_norm is None else model.encoder_norm(x)
    x = _dropped(model.embedding_dropout, embedded[1], tgt_in.numel())
    for block in cast("Iterable[DecoderLayer]", model.decoder):
        x = _self_attention(block.attention, block.attention_frame, x, masks, "target")
        x = _cross_attention(block.cross, block.cross_frame, x, memory, masks)
        x = _feed_forward(block.feed_forward, block.feed_forward_frame, x, tgt_in.numel())
    x = x[: tgt_in.numel()].view(*tgt_in.shape, -1)
    return x if model.decoder_norm is None else model.decoder_norm(x)


def _dropped(dropout: Dropout, x: Tensor, positions: int) -> Tensor:
    mask = dropout.mask(x.detach(), positions)
    return x if mask is None else x * mask


class _Frame:
    """`Residual` around a sub-layer, forth and back, on rows [rows, d_model] of which `positions` count."""

    def __init__(self, module: Residual, positions: int, weight: Tensor, bias: Tensor) -> None:
        self._positions = positions
        self.pre, self.eps, self._dropout = module.pre, module.norm.eps, module.dropout
        self._affine = (weight, bias)

    def enter(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self._normalise(x) if self.pre else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The frame's output, from its input `x` and the sub-layer's output `y`."""
        self._mask = self._dropout.mask(y, self._positions)
        total = x + y if self._mask is None else torch.addcmul(x, y, self._mask)
        return total if self.pre else self._normalise(total)

    def leave_back(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the sum's two parts: the residual's, and that of the sub-layer's output."""
        if not self.pre:
            grad = self._normalise_back(grad)
        return grad, grad if self._mask is None else grad * self._mask

    def enter_back(self, grad: Tensor, residual: Tensor) -> Tensor:
        """The gradient of the frame's input, from that of what the sub-layer read and that of the residual."""
        return self._normalise_back(grad).add_(residual) if self.pre else grad.add_(residual)

    def _normalise(self, x: Tensor) -> Tensor:
        weight, bias = self._affine
        y, mean, scale = torch.native_layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        self._normalised = (x, mean, scale)
        return y

    def _normalise_back(self, grad: Tensor) -> Tensor:
        x, mean, scale = self._normalised
        back: Tensor
        back, *self.gradients = torch.ops.aten.native_layer_norm_backward(
            grad, x, x.shape[-1:], mean, scale, *self._affine, [True, True, True]
        )
        return back


class _SelfAttention:
    """`SelfAttention` in its frame."""

    def __init__(self, module: SelfAttention, frame: Residual, masks: Masks, side: str) -> None:
        self._width = module.n_heads * module.d_k
        self._residual, self._core, self._positions = frame, Core(module, masks, side), masks.positions(side)

    def forward(
        self, x: Tensor, qkv: Tensor, qkv_bias: Tensor | None, out: Tensor, out_bias: Tensor | None, *norm: Tensor
    ) -> Tensor:
        self._frame = _Frame(self._residual, self._positions, *norm)
        self._qkv, self._out = (qkv, qkv_bias), (out, out_bias)
        self._read = self._frame.enter(x)
        packed = linear(self._read, qkv, qkv_bias)
        self._context = self._core.forward(packed[:, : self._width], packed[:, self._width :])
        return self._frame.leave(x, linear(self._context, out, out_bias))

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, of_y = self._frame.leave_back(grad)
        of_out = _weights_back(of_y, self._context, self._out)
        of_context = input_gradient(of_y, self._out[0])
        of_packed = grad.new_empty((grad.shape[0], self._qkv[0].shape[0]))
        self._core.backward(of_context, of_packed[:, : self._width], of_packed[:, self._width :])
        of_qkv = _weights_back(of_packed, self._read, self._qkv)
        of_x = self._frame.enter_back(input_gradient(of_packed, self._qkv[0]), residual)
        return of_x, *of_qkv, *of_out, *self._frame.gradients


class _CrossAttention:
    """`CrossAttention` in its frame, with the projection of the memory."""

    def __init__(self, module: CrossAttention, frame: Residual, masks: Masks) -> None:
        self._residual, self._core, self._positions = frame, Core(module, masks, "cross"), masks.positions("cross")

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        q: Tensor,
        q_bias: Tensor | None,
        kv: Tensor,
        kv_bias: Tensor | None,
        out: Tensor,
        out_bias: Tensor | None,
        *norm: Tensor,
    ) -> Tensor:
        self._memory, self._frame = memory, _Frame(self._residual, self._positions, *norm)
        self._q, self._kv, self._out = (q, q_bias), (kv, kv_bias), (out, out_bias)
        self._read = self._frame.enter(x)
        self._context = self._core.forward(linear(self._read, q, q_bias), linear(memory, kv, kv_bias))
        return self._frame.leave(x, linear(self._context, out, out_bias))

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, of_y = self._frame.leave_back(grad)
        of_out = _weights_back(of_y, self._context, self._out)
        of_context = input_gradient(of_y, self._out[0])
        of_queries = grad.new_empty((grad.shape[0], self._q[0].shape[0]))
        of_packed = grad.new_empty((self._memory.shape[0], self._kv[0].shape[0]))
        self._core.backward(of_context, of_queries, of_packed)
        of_q = _weights_back(of_queries, self._read, self._q)
        of_kv = _weights_back(of_packed, self._memory, self._kv)
        of_x = self._frame.enter_back(input_gradient(of_queries, self._q[0]), residual)
        of_memory = input_gradient(of_packed, self._kv[0])
        return of_x, of_memory, *of_q, *of_kv, *of_out, *self._frame.gradients


class _FeedForward:
    """`FeedForward` in its frame."""

    def __init__(self, module: FeedForward, frame: Residual, positions: int) -> None:
        self._dropout, self._residual, self._positions = module.dropout, frame, positions

    def forward(
        self, x: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, outer_bias: Tensor, *norm: Tensor
    ) -> Tensor:
        self._frame = _Frame(self._residual, self._positions, *norm)
        self._inner, self._outer = (inner, inner_bias), (outer, outer_bias)
        self._read = self._frame.enter(x)
        self._hidden = linear(self._read, inner, inner_bias, relu=True)
        self._mask = self._dropout.mask(self._hidden, self._positions)
        if self._mask is not None:
            self._hidden.mul_(self._mask)
        return self._frame.leave(x, linear(self._hidden, outer, outer_bias))

    def backward(self, grad: Tensor) -> tuple[Tensor | None, ...]:
        residual, of_y = self._frame.leave_back(grad)
        of_outer = _weights_back(of_y, self._hidden, self._outer)
        of_hidden = input_gradient(of_y, self._outer[0])
        if self._mask is not None:
            of_hidden.mul_(self._mask)
        torch.ops.aten.threshold_backward(of_hidden, self._hidden, 0.0, grad_input=of_hidden)
        of_inner = _weights_back(of_hidden, self._read, self._inner)
        of_x = self._frame.enter_back(input_gradient(of_hidden, self._inner[0]), residual)
        return of_x, *of_inner, *of_outer, *self._frame.gradients


def _weights_back(grad: Tensor, x: Tensor, layer: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """The gradients of a linear layer's weight and bias from its output's `grad` and its input `x`."""
    return weight_gradient(grad, x), None if layer[1] is None else grad.sum(0)


class _Operator(torch.autograd.Function):
    """A sub-layer of this module as torch's autograd sees it: arguments (sub-layer, input, ..., parameters)."""

    @staticmethod
    def forward(ctx: Any, work: Any, *given: Tensor | None) -> Tensor:
        ctx.work = work
        y: Tensor = work.forward(*given)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        work, ctx.work = ctx.work, None  # what it holds is freed with it, in a retained graph too
        if work is None:
            raise RuntimeError("a fused pass can be gone through backward once; set `fused` to False for more")
        return None, *work.backward(grad)


class AttentionOperator(_Operator):
    """Attention; the class has the name under which a profile shows it."""


class FeedForwardOperator(_Operator):
    """The feed-forward network; the class has the name under which a profile shows it."""


class EmbeddingOperator(torch.autograd.Function):
    """Source and target pieces embedded, times sqrt(d_model), plus positions: [rows, d_model] each.

    One gradient of the matrix for both. Rows after the last position are zero.
    """

    @staticmethod
    def forward(
        ctx: Any, src: Tensor, tgt: Tensor, matrix: Tensor, src_rows: Tensor | None, tgt_rows: Tensor | None
    ) -> tuple[Tensor, ...]:
        """`src`, `tgt` [batch, length] pieces; `matrix` [vocabulary, d_model]; `..._rows` [length, d_model]."""
        ctx.save_for_backward(src, tgt)
        ctx.kinds, ctx.scale = matrix.shape[0], math.sqrt(matrix.shape[1])
        made = []
        for pieces, rows in ((src, src_rows), (tgt, tgt_rows)):
            count = pieces.numel()
            x = matrix.new_empty((room(count), matrix.shape[1]))
            x[count:].zero_()
            vectors = nn.functional.embedding(pieces, matrix)
            into = x[:count].view_as(vectors)
            if rows is None:
                torch.mul(vectors, ctx.scale, out=into)
            else:
                torch.add(rows, vectors, alpha=ctx.scale, out=into)
            made.append(x)
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_rows: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of `forward`'s arguments."""
        sides = [grad[: pieces.numel()] for grad, pieces in zip(of_rows, ctx.saved_tensors, strict=True)]
        pieces = torch.cat([pieces.flatten() for pieces in ctx.saved_tensors])
        grads = torch.cat(sides).mul_(ctx.scale)
        of_matrix = torch.ops.aten.embedding_dense_backward(grads, pieces, ctx.kinds, -1, False)
        of_tables = (
            side.view(*pieces.shape, -1).sum(0) if needed else None
            for side, pieces, needed in zip(sides, ctx.saved_tensors, ctx.needs_input_grad[3:], strict=True)
        )
        return None, None, of_matrix, *of_tables


def _self_attention(module: SelfAttention, frame: Residual, x: Tensor, masks: Masks, side: str) -> Tensor:
    work, parameters = _SelfAttention(module, frame, masks, side), _parameters(module.qkv, module.out, frame.norm)
    y: Tensor = AttentionOperator.apply(work, x, *parameters)  # type: ignore[no-untyped-call]
    return y


def _cross_attention(module: CrossAttention, frame: Residual, x: Tensor, memory: Tensor, masks: Masks) -> Tensor:
    parameters = _parameters(module.q, module.kv, module.out, frame.norm)
    work = _CrossAttention(module, frame, masks)
    y: Tensor = AttentionOperator.apply(work, x, memory, *parameters)  # type: ignore[no-untyped-call]
    return y


def _feed_forward(module: FeedForward, frame: Residual, x: Tensor, positions: int) -> Tensor:
    work, parameters = _FeedForward(module, frame, positions), _parameters(module.inner, module.outer, frame.norm)
    y: Tensor = FeedForwardOperator.apply(work, x, *parameters)  # type: ignore[no-untyped-call]
    return y


def _parameters(*layers: nn.Linear | nn.LayerNorm) -> list[Tensor]:
    return [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
