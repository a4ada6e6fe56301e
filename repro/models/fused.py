"""The Transformer's training pass on a CPU: all of it one operator of torch's autograd, its gradient by hand.

It computes what `repro.models.transformer` says, with the same parameters and the same dropout masks, up to rounding.
What it leaves out is torch's record of every step, copies between layouts, and softmaxes over fewer keys than a vector
register holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from repro.data.pieces import PAD
from repro.models.fused_attention import Core, Masks
from repro.models.products import input_gradient, linear, room, weight_gradient

if TYPE_CHECKING:
    from repro.models.attention import CrossAttention, SelfAttention
    from repro.models.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer

_norm_back = torch.ops.aten.native_layer_norm_backward.default
_positive_back = torch.ops.aten.threshold_backward.grad_input
_embedding_back = torch.ops.aten.embedding_dense_backward.default
_BelowAutograd = torch._C._AutoDispatchBelowAutograd
"""In it torch's operators do not ask whether autograd is to know of them: a third of a microsecond each."""


def serves(model: Transformer, src_mask: Tensor, tgt_in: Tensor) -> bool:
    """Whether `hidden_states` can compute it: training on a CPU, not below single precision, no sentence empty."""
    return (
        model.training
        and torch.is_grad_enabled()
        and src_mask.device.type == "cpu"
        and model.embedding.device.type == "cpu"
        and model.embedding.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and bool(src_mask[:, 0].all())  # padding stands at the end: a sentence without a first piece is empty
        and bool((tgt_in[:, 0] != PAD).all())
    )


def hidden_states(model: Transformer, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
    """The hidden states [batch, tgt_len, d_model] of `model`, as its `forward` gives them; arguments as there."""
    work = _Pass(model, src, src_mask, tgt_in)
    anchor = torch.empty(0, requires_grad=work.trains)
    y: Tensor = _Operator.apply(work, anchor, *work.embedded)  # type: ignore[no-untyped-call]
    return y


class _Operator(torch.autograd.Function):
    """A pass as torch's autograd sees it: arguments (pass, anchor, what embeds the pieces).

    Autograd's account of a small parameter costs as much as its gradient, so the pass itself adds gradients to the
    `grad` of its parameters. Only what is used outside the pass, too, goes through autograd: the matrix, and learned
    positions, of which a batch reads a part. The anchor stands for the others: it wants a gradient where one of them
    does.
    """

    @staticmethod
    def forward(ctx: Any, work: _Pass, *_: Tensor) -> Tensor:
        ctx.work = work
        with _BelowAutograd():
            return work.forward()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a fused pass gives gradients without a graph of their own; set `fused` to False for one"
            )
        work, ctx.work = ctx.work, None  # what it holds is freed with it, in a retained graph too
        if work is None:
            raise RuntimeError("a fused pass can be gone through backward once; set `fused` to False for more")
        with _BelowAutograd():
            return None, None, *work.backward(grad)


class _Pass:
    """One batch through the model, forth and back. What a part of it keeps is freed as the way back leaves it."""

    def __init__(self, model: Transformer, src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> None:
        masks, source, target = Masks(src_mask, tgt_in, model.config), src.numel(), tgt_in.numel()
        self._shape, self._embeddings = tgt_in.shape, _Embeddings(model, src, tgt_in)
        self._encoder: list[_Part] = []
        for layer in cast("Sequence[EncoderLayer]", model.encoder):
            self._encoder += (
                SelfAttentionPart(layer.attention, layer.attention_frame, masks, "source"),
                FeedForwardPart(layer.feed_forward, layer.feed_forward_frame, source),
            )
        self._decoder: list[_Part | CrossAttentionPart] = []
        for block in cast("Sequence[DecoderLayer]", model.decoder):
            self._decoder += (
                SelfAttentionPart(block.attention, block.attention_frame, masks, "target"),
                CrossAttentionPart(block.cross, block.cross_frame, masks),
                FeedForwardPart(block.feed_forward, block.feed_forward_frame, target),
            )
        if model.encoder_norm is not None:
            self._encoder.append(_Norm(model.encoder_norm))
        if model.decoder_norm is not None:
            self._decoder.append(_Norm(model.decoder_norm))
        self.embedded = self._embeddings.parameters
        """What goes through autograd."""
        self.trains = any(x is not None for part in (*self._encoder, *self._decoder) for x in part.trained)
        """Whether any other parameter is trained."""

    def forward(self) -> Tensor:
        """The hidden states."""
        memory = self._embeddings.forward(0)
        for below in self._encoder:
            memory = below.forward(memory)
        x = self._embeddings.forward(1)
        for part in self._decoder:
            x = part.forward(x, memory) if isinstance(part, CrossAttentionPart) else part.forward(x)
        return x[: self._shape.numel()].view(*self._shape, -1)

    def backward(self, grad: Tensor) -> list[Tensor | None]:
        """From the gradient of the hidden states, those of `embedded`; those of the others are in their `grad`, where
        nothing is written before all is done: memory may run out on the way.
        """
        found: list[tuple[Tensor, Tensor]] = []
        of_memory: Tensor | None = None
        of_target = _filled_up(grad.reshape(self._shape.numel(), -1))
        while self._decoder:
            part = self._decoder.pop()
            of_target = part.backward(of_target)
            found += _found(part)
            if isinstance(part, CrossAttentionPart):
                of_memory = part.of_memory if of_memory is None else of_memory.add_(part.of_memory)
        assert of_memory is not None
        while self._encoder:
            below = self._encoder.pop()
            of_memory = below.backward(of_memory)
            found += _found(below)
        of_embedded = self._embeddings.backward(of_memory, of_target)
        for parameter, gradient in found:
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad.add_(gradient)
        return of_embedded


def _filled_up(grad: Tensor) -> Tensor:
    """`grad` [positions, d_model] with zeros for the rows that products have more."""
    count, rows = grad.shape[0], room(grad.shape[0])
    if rows == count:
        return grad
    made = grad.new_empty((rows, grad.shape[1]))
    made[count:].zero_()
    made[:count].copy_(grad)
    return made


class _Embeddings:
    """Source and target pieces embedded, times sqrt(d_model), plus positions, with dropout: [rows, d_model] each.

    One gradient of the matrix for both. Rows after the last position are zero.
    """

    def __init__(self, model: Transformer, *sides: Tensor) -> None:
        """`sides` [batch, length] are the pieces of source and target."""
        self._matrix, self._dropout, self._sides = model.embedding, model.embedding_dropout, sides
        self._scale = math.sqrt(self._matrix.shape[1])
        self._tables = [
            None if positions is None else positions(pieces[..., None])
            for positions, pieces in zip((model.src_positions, model.tgt_positions), sides, strict=True)
        ]
        self._masks: list[Tensor | None] = []
        self.parameters = [self._matrix, *(table for table in self._tables if table is not None)]

    def forward(self, side: int) -> Tensor:
        """The source (0) or the target (1)."""
        pieces, table = self._sides[side], self._tables[side]
        count = pieces.numel()
        x = self._matrix.new_empty((room(count), self._matrix.shape[1]))
        x[count:].zero_()
        vectors = nn.functional.embedding(pieces, self._matrix)
        into = x[:count].view_as(vectors)
        if table is None:
            torch.mul(vectors, self._scale, out=into)
        else:
            torch.add(table, vectors, alpha=self._scale, out=into)
        mask = self._dropout.mask(x, count)
        self._masks.append(mask)
        return x if mask is None else x.mul_(mask)

    def backward(self, *of_rows: Tensor) -> list[Tensor | None]:
        """The gradients of `parameters`."""
        grads = [grad if mask is None else mask.mul_(grad) for grad, mask in zip(of_rows, self._masks, strict=True)]
        grads = [grad[: pieces.numel()] for grad, pieces in zip(grads, self._sides, strict=True)]
        pieces = torch.cat([pieces.flatten() for pieces in self._sides])
        of_all = torch.cat(grads).mul_(self._scale)
        gradients: list[Tensor | None] = [_embedding_back(of_all, pieces, self._matrix.shape[0], -1, False)]
        for grad, pieces, table in zip(grads, self._sides, self._tables, strict=True):
            if table is not None:
                gradients.append(grad.view(*pieces.shape, -1).sum(0) if table.requires_grad else None)
        return gradients


class _Norm:
    """A LayerNorm on rows [rows, d_model]."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        self._weight, self._bias = norm.weight, norm.bias
        self.trained = _trained((norm.weight, norm.bias))
        self._shape, self._eps = norm.normalized_shape, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        """`x` normalised."""
        y, mean, scale = torch.native_layer_norm(x, self._shape, self._weight, self._bias, self._eps)
        self._kept = (x, mean, scale)
        return y

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of `x`; those of the parameters are left in `gradients`."""
        x, mean, scale = self._kept
        back: Tensor
        back, *self.gradients = _norm_back(
            grad, x, self._shape, mean, scale, self._weight, self._bias, [True, True, True]
        )
        return back


class _Sublayer:
    """A sub-layer in its `Residual`, on rows [rows, d_model] of which `positions` count."""

    gradients: Sequence[Tensor | None]
    """Of `trained`, after `backward`."""

    def __init__(self, frame: Residual, positions: int, *layers: nn.Linear) -> None:
        self._pre, self._norm, self._dropout, self._positions = frame.pre, _Norm(frame.norm), frame.dropout, positions
        self._layers = [(layer.weight, layer.bias) for layer in layers]
        self.trained = [*_trained(x for layer in self._layers for x in layer), *self._norm.trained]

    def _enter(self, x: Tensor) -> Tensor:
        """What the sub-layer reads."""
        return self._norm.forward(x) if self._pre else x

    def _leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The frame's output, from its input `x` and the sub-layer's output `y`, which it may write over."""
        self._mask = self._dropout.mask(y, self._positions)
        total = y.add_(x) if self._mask is None else torch.addcmul(x, y, self._mask, out=y)
        return total if self._pre else self._norm.forward(total)

    def _leave_back(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of the sum's two parts: the residual's, and that of the sub-layer's output."""
        if not self._pre:
            grad = self._norm.backward(grad)
        return grad, grad if self._mask is None else self._mask.mul_(grad)

    def _enter_back(self, grad: Tensor, residual: Tensor) -> Tensor:
        """The gradient of the frame's input, from that of what the sub-layer read and that of the residual."""
        return (self._norm.backward(grad) if self._pre else grad).add_(residual)


class SelfAttentionPart(_Sublayer):
    """`SelfAttention` in its frame."""

    def __init__(self, module: SelfAttention, frame: Residual, masks: Masks, side: str) -> None:
        super().__init__(frame, masks.positions(side), module.qkv, module.out)
        self._core = Core(module, masks, side)

    def forward(self, x: Tensor) -> Tensor:
        """[rows, d_model] to the same."""
        qkv, out = self._layers
        self._read = self._enter(x)
        packed = linear(self._read, *qkv)
        self._context = self._core.forward(packed, packed)
        return self._leave(x, linear(self._context, *out))

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of `forward`'s `x`."""
        qkv, out = self._layers
        residual, of_y = self._leave_back(grad)
        of_out = _weights_back(of_y, self._context, out)
        of_context = input_gradient(of_y, out[0])
        of_packed = grad.new_empty((grad.shape[0], qkv[0].shape[0]))
        self._core.backward(of_context, of_packed, of_packed)
        of_qkv = _weights_back(of_packed, self._read, qkv)
        of_x = self._enter_back(input_gradient(of_packed, qkv[0]), residual)
        self.gradients = (*of_qkv, *of_out, *self._norm.gradients)
        return of_x


class CrossAttentionPart(_Sublayer):
    """`CrossAttention` in its frame, with the projection of the memory."""

    of_memory: Tensor
    """The gradient of the memory, after `backward`."""

    def __init__(self, module: CrossAttention, frame: Residual, masks: Masks) -> None:
        super().__init__(frame, masks.positions("cross"), module.q, module.kv, module.out)
        self._core = Core(module, masks, "cross")

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """[rows, d_model] to the same; `memory` [rows, d_model], its own rows."""
        q, kv, out = self._layers
        self._memory, self._read = memory, self._enter(x)
        self._context = self._core.forward(linear(self._read, *q), linear(memory, *kv))
        return self._leave(x, linear(self._context, *out))

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of `forward`'s `x`."""
        q, kv, out = self._layers
        residual, of_y = self._leave_back(grad)
        of_out = _weights_back(of_y, self._context, out)
        of_context = input_gradient(of_y, out[0])
        of_queries = grad.new_empty((grad.shape[0], q[0].shape[0]))
        of_packed = grad.new_empty((self._memory.shape[0], kv[0].shape[0]))
        self._core.backward(of_context, of_queries, of_packed)
        of_q = _weights_back(of_queries, self._read, q)
        of_kv = _weights_back(of_packed, self._memory, kv)
        of_x = self._enter_back(input_gradient(of_queries, q[0]), residual)
        self.of_memory = input_gradient(of_packed, kv[0])
        self.gradients = (*of_q, *of_kv, *of_out, *self._norm.gradients)
        return of_x


class FeedForwardPart(_Sublayer):
    """`FeedForward` in its frame."""

    def __init__(self, module: FeedForward, frame: Residual, positions: int) -> None:
        super().__init__(frame, positions, module.inner, module.outer)
        self._inner_dropout = module.dropout

    def forward(self, x: Tensor) -> Tensor:
        """[rows, d_model] to the same."""
        inner, outer = self._layers
        self._read = self._enter(x)
        self._hidden = linear(self._read, *inner, relu=True)
        self._inner_mask = self._inner_dropout.mask(self._hidden, self._positions)
        if self._inner_mask is not None:
            self._hidden.mul_(self._inner_mask)
        return self._leave(x, linear(self._hidden, *outer))

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient of `forward`'s `x`."""
        inner, outer = self._layers
        residual, of_y = self._leave_back(grad)
        of_outer = _weights_back(of_y, self._hidden, outer)
        of_hidden = input_gradient(of_y, outer[0])
        if self._inner_mask is not None:
            of_hidden.mul_(self._inner_mask)
        _positive_back(of_hidden, self._hidden, 0.0, grad_input=of_hidden)
        of_inner = _weights_back(of_hidden, self._read, inner)
        of_x = self._enter_back(input_gradient(of_hidden, inner[0]), residual)
        self.gradients = (*of_inner, *of_outer, *self._norm.gradients)
        return of_x


_Part = SelfAttentionPart | FeedForwardPart | _Norm


def _found(part: _Part | CrossAttentionPart) -> list[tuple[Tensor, Tensor]]:
    """The parameters of `part` that are trained, each with its gradient."""
    pairs = zip(part.trained, part.gradients, strict=True)
    return [(x, gradient) for x, gradient in pairs if x is not None and gradient is not None]


def _trained(parameters: Iterable[Tensor | None]) -> list[Tensor | None]:
    """`parameters` with None for those without a gradient. Raises RuntimeError where one is made of others."""
    trained: list[Tensor | None] = []
    for x in parameters:
        if x is None or not x.requires_grad:
            trained.append(None)
        elif x.is_leaf:
            trained.append(x)
        else:
            raise RuntimeError("a fused pass trains parameters, not what is computed from them; set `fused` to False")
    return trained


def _weights_back(grad: Tensor, x: Tensor, layer: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    """The gradients of a linear layer's weight and bias from its output's `grad` and its input `x`."""
    return weight_gradient(grad, x), None if layer[1] is None else grad.sum(0)
