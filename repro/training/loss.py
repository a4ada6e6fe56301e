"""The training loss: label-smoothed cross-entropy on real positions, in chunks, its gradient in the same pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from repro.data.pieces import PAD
from repro.models.products import input_gradient, linear, room, weight_gradient, within
from repro.models.seq2seq import Output

SmoothingKind = Literal["uniform", "exclude_gold"]

CPU_CHUNK, DEVICE_CHUNK = 1 << 21, 1 << 26
"""Logits held at once, on a CPU (what its caches carry) and elsewhere."""
LEAST_ROWS = 256
"""Under so many rows a chunk's products with the output matrix are bound by memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The loss of one micro-batch over its real target positions."""

    total: Tensor
    """Scalar to call `backward` on: the smoothed sum divided by the normaliser."""
    smoothed: Tensor
    """Scalar: the sum of label-smoothed cross-entropies, in nats, without gradient."""
    nll: Tensor
    """Scalar: the sum of unsmoothed negative log-likelihoods, in nats, without gradient: what perplexity is made of."""


def smoothing_targets(smoothing: float, kind: SmoothingKind, vocabulary_size: int) -> tuple[float, float]:
    """The target probability of the gold piece and of every other piece.

    `uniform` mixes with the uniform distribution over all pieces (torch's `label_smoothing`); `exclude_gold` shares
    `smoothing` among the other pieces (tensor2tensor). The paper (section 5.4) leaves the choice open.
    """
    if kind == "uniform":
        low = smoothing / vocabulary_size
        return 1.0 - smoothing + low, low
    return 1.0 - smoothing, smoothing / (vocabulary_size - 1)


def real_positions(tgt_out: Tensor) -> Tensor:
    """Indices [tokens] of the positions of `tgt_out` [batch, tgt_len], read row by row, that are not padding."""
    return (tgt_out != PAD).flatten().nonzero().squeeze(1)


def smoothed_loss(
    hidden: Tensor,
    tgt_out: Tensor,
    output: Output,
    *,
    smoothing: float = 0.0,
    kind: SmoothingKind = "uniform",
    normaliser: float | Tensor = 1.0,
    positions: Tensor | None = None,
    compact: bool | None = None,
) -> Loss:
    """The loss of `hidden` [batch, tgt_len, d_out] against `tgt_out` [batch, tgt_len] under the layer `output`.

    `normaliser` is the number of target tokens of the whole effective batch, so that accumulated micro-batches add up
    to the gradient of the one large batch; a scalar of `hidden`'s device where the host is not to be waited for.
    `positions` is `real_positions(tgt_out)` on `hidden`'s device, where the caller has it already. With `compact` it
    is found here; without, all positions are computed and those of padding count nothing. None: `compact` on a CPU
    only, since elsewhere the host would wait for the device, and sizes would change from batch to batch.

    The gradients are computed along with the loss (none under `torch.no_grad`), so the logits of a chunk are thrown
    away at once. Products run in autocast's type where autocast is on; the softmax always in single precision.
    """
    if compact is None:
        compact = tgt_out.device.type == "cpu"
    if positions is None:
        positions = real_positions(tgt_out) if compact else torch.arange(tgt_out.numel(), device=tgt_out.device)
    targets = tgt_out.flatten().index_select(0, positions)
    gold, low = smoothing_targets(smoothing, kind, output.weight.shape[0])
    smoothed, nll = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        hidden.flatten(0, 1),
        output.weight,
        output.bias,
        positions,
        targets,
        gold,
        low,
        torch.is_grad_enabled(),
        compact,
    )
    return Loss(total=smoothed / normaliser, smoothed=smoothed.detach(), nll=nll)


class _ChunkedLoss(torch.autograd.Function):
    """(smoothed sum, unsmoothed sum), both float64 scalars; the first carries gradients to hidden, weight and bias."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        positions: Tensor,
        targets: Tensor,
        gold: float,
        low: float,
        train: bool,
        compact: bool,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        product_type = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        with torch.autocast(device, enabled=False):
            exact = compact and device == "cpu" and product_type in (torch.float32, torch.float64)
            chunks = (_CpuChunks if exact else _Chunks)(hidden, weight, bias, product_type, train)
            for start in range(0, positions.shape[0], chunks.rows):
                end = start + chunks.rows
                chunks.add(positions[start:end], targets[start:end, None], gold, low)
        ctx.save_for_backward(*chunks.gradients)
        ctx.mark_non_differentiable(chunks.nll)
        return chunks.smoothed, chunks.nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight, *of_bias = (gradient * grad for gradient in ctx.saved_tensors)
        return of_hidden, of_weight, of_bias[0] if of_bias else None, None, None, None, None, None, None


class _Chunks:
    """The running sums over chunks of positions, and the two buffers that all chunks share."""

    def __init__(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, product_type: torch.dtype, train: bool):
        vocabulary = weight.shape[0]
        numbers = CPU_CHUNK if hidden.device.type == "cpu" else DEVICE_CHUNK
        self.rows = min(self._most(max(LEAST_ROWS, numbers // vocabulary)), hidden.shape[0])
        self.hidden, self.bias, self.train = hidden, bias, train
        self.weight = weight.to(product_type)
        self._allocate(product_type)
        self.smoothed = hidden.new_zeros((), dtype=torch.float64)
        self.nll = self.smoothed.clone()
        self.gradients: list[Tensor] = []
        if train:
            self.gradients = [torch.zeros_like(x) for x in (hidden, weight, bias) if x is not None]

    def _most(self, rows: int) -> int:
        """The rows of a chunk that may have `rows`: whole tiles of a product."""
        return rows - rows % 128 if rows > 128 else rows

    def _allocate(self, product_type: torch.dtype) -> None:
        """Make the buffers of a chunk's logits and of their softmax."""
        shape = self.rows, self.weight.shape[0]
        self._logits = self.hidden.new_empty(shape, dtype=product_type)
        self._scratch = self.hidden.new_empty(shape, dtype=torch.promote_types(product_type, torch.float32))
        self._share = self.weight.sum(0, dtype=self._scratch.dtype)

    def add(self, positions: Tensor, targets: Tensor, gold: float, low: float) -> None:
        """Account for `positions` [n] of the flat hidden states, whose right pieces are `targets` [n, 1].

        A position whose right piece is PAD counts nothing.
        """
        real = targets != PAD
        rows = self.hidden.index_select(0, positions).to(self.weight.dtype).masked_fill_(~real, 0.0)
        logits = torch.mm(rows, self.weight.t(), out=self._logits[: rows.shape[0]])
        if self.bias is not None:
            logits.add_(self.bias)
        p = torch.softmax(logits, 1, dtype=self._scratch.dtype, out=self._scratch[: rows.shape[0]])
        # log sum exp(logits) from the largest logit and its probability: no second pass of exponentials.
        largest, place = logits.max(1, keepdim=True)
        log_sum = largest.to(p.dtype) - p.gather(1, place).log()
        nll = (log_sum - logits.gather(1, targets)).where(real, 0.0).sum(dtype=torch.float64)
        self.nll += nll
        self.smoothed += (gold - low) * nll
        if low > 0.0:
            everywhere = log_sum.mul_(logits.shape[1]) - logits.sum(1, keepdim=True, dtype=p.dtype)
            self.smoothed += low * everywhere.where(real, 0.0).sum(dtype=torch.float64)
        if self.train:
            self._add_gradients(positions, rows, targets, real, p, gold, low)

    def _add_gradients(
        self, positions: Tensor, rows: Tensor, targets: Tensor, real: Tensor, p: Tensor, gold: float, low: float
    ) -> None:
        """Add the chunk's gradients; `p` [n, vocabulary], its softmax, becomes the gradient of its logits plus `low`,
        which all pieces share and which is left to the smaller matrices on the other side of the products.
        """
        p.scatter_add_(1, targets, p.new_full((1, 1), low - gold).expand_as(targets))
        of_hidden, of_weight, *of_bias = self.gradients
        for gradient in of_bias:
            gradient += torch.mv(p.t(), real.squeeze(1).to(p.dtype)) - low * real.sum(dtype=p.dtype)
        p = p.to(rows.dtype)
        back = torch.mm(p, self.weight).to(of_hidden.dtype)
        if low > 0.0:
            back -= low * self._share
            of_weight -= low * rows.sum(0, dtype=of_weight.dtype)
        of_hidden.index_copy_(0, positions, back.masked_fill_(~real, 0.0))
        if of_weight.dtype == p.dtype:
            of_weight.addmm_(p.t(), rows)
        else:
            of_weight += torch.mm(p.t(), rows)


class _CpuChunks(_Chunks):
    """The same in single or double precision on a CPU, with fewer passes over the logits.

    With e = exp(logits - largest) and its sums s by row, the gradient of the logits is e / s less the targets'
    probabilities. Division by s and the probability that all pieces share are left to the matrices on the other side of
    the products, which are smaller.
    """

    def _most(self, rows: int) -> int:
        if rows == LEAST_ROWS:
            rows *= 2  # one buffer where the other way has two
        return within(rows)

    def _allocate(self, product_type: torch.dtype) -> None:
        """Nothing: the products make what they need."""

    def add(self, positions: Tensor, targets: Tensor, gold: float, low: float) -> None:
        """Account for `positions` [n] of the flat hidden states, whose right pieces are `targets` [n, 1]."""
        real = positions.shape[0]
        rows = self.hidden.new_zeros(room(real), self.hidden.shape[1])
        torch.index_select(self.hidden, 0, positions, out=rows[:real])
        e = linear(rows, self.weight, self.bias)
        logits, _ = e[:real], e[real:].zero_()
        largest, right = logits.amax(1, keepdim=True), logits.gather(1, targets)
        everywhere = logits.sum(1, keepdim=True) if low > 0.0 else largest
        sums = logits.sub_(largest).exp_().sum(1, keepdim=True)
        log_sum = sums.log().add_(largest)
        nll = (log_sum - right).sum(dtype=torch.float64)
        self.nll += nll
        self.smoothed += (gold - low) * nll
        if low > 0.0:
            self.smoothed += low * (log_sum.mul_(e.shape[1]) - everywhere).sum(dtype=torch.float64)
        if self.train:
            logits.scatter_add_(1, targets, sums * (low - gold))
            self._add(positions, rows, e, sums.reciprocal_(), low)

    def _add(self, positions: Tensor, rows: Tensor, e: Tensor, shares: Tensor, low: float) -> None:
        """Add the chunk's gradients; that of the logits is `e` [n or more, vocabulary] times `shares` [n, 1], less
        `low`.
        """
        real = shares.shape[0]
        of_hidden, of_weight, *of_bias = self.gradients
        for gradient in of_bias:
            gradient.add_(torch.mv(e[:real].t(), shares.squeeze(1))).sub_(low * real)
        back = input_gradient(e, self.weight)[:real].mul_(shares)
        if low > 0.0:
            back.sub_(self.weight.sum(0), alpha=low)
            of_weight.sub_(rows.sum(0), alpha=low)
        of_hidden.index_copy_(0, positions, back)
        rows[:real].mul_(shares)
        of_weight.add_(weight_gradient(e, rows))
