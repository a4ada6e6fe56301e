"""A trainer's updates on a device that computes while the host goes on: begun here, their values read later.

Nothing in an update waits for the device. Its loss, its gradient's norm and whether it is applied stay there; the
learning rate follows from the updates applied so far, which the device counts. A pass over packed sentences whose
sizes were met before is replayed from a recording (a CUDA graph).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.config import RunConfig
from repro.data.pieces import PAD, Batch
from repro.models.attention import refusal
from repro.models.seq2seq import Seq2Seq, count_parameters
from repro.models.transformer import Transformer
from repro.shortage import is_shortage, release
from repro.training import cuda
from repro.training.loss import Loss, smoothed_loss
from repro.training.packed import Shape, hidden_states, pack, tables, unpack

MOST_RECORDINGS = 96
"""Passes of so many sizes are recorded; those of other sizes that come after them are not."""


class Values(NamedTuple):
    """What one update saw, as numbers of the host."""

    loss: float
    """A target token of the batch, as `nll`."""
    nll: float
    norm: float
    """Of the gradient, before it is clipped."""
    tokens: int


class Recording(NamedTuple):
    """A pass that can be done again."""

    replay: Callable[[], None]
    given: Tensor
    """Where the pass reads its batch."""
    kept: list[Tensor | None]
    """What else it reads and nobody else keeps."""


def flat_gradients(model: torch.nn.Module, device: torch.device) -> Tensor:
    """One buffer that the gradients of all parameters are views of from now on."""
    flat = torch.zeros(count_parameters(model), device=device)
    start = 0
    for parameter in model.parameters():
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat


class Ahead:
    """The gradients and Adam's steps of one model on its device."""

    def __init__(
        self,
        config: RunConfig,
        model: Seq2Seq[Any, Any],
        optimizer: torch.optim.Adam,
        device: torch.device,
        *,
        bf16: bool,
    ) -> None:
        self._config, self._model, self._bf16 = config, model, bf16
        self._optimizer: Any = optimizer
        cuda.leave_default_stream(device)
        self.flat = flat_gradients(model, device)
        """All gradients, one after the other."""
        self._device = device = self.flat.device  # with its number, as generators are found by it
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        self._applied = torch.zeros((), dtype=torch.float64, device=device)
        self._pending: list[tuple[Tensor, int]] = []
        self.refusal = self._refusal()
        """Why sentences are not packed, in words; empty where they are."""
        self._recorder = None if self.refusal else cuda.recorder(device)
        self._seen: set[Shape] = set()
        self._recordings: dict[Shape, Recording] = {}
        self._recording_seconds = 0.0
        self._failure = ""

    @property
    def pending(self) -> int:
        """How many updates were begun whose values nobody has read."""
        return len(self._pending)

    @property
    def way(self) -> str:
        """How passes are computed, in words."""
        if self.refusal:
            return f"sentences are padded and attention is masked: {self.refusal}"
        way, made = "flash attention over packed sentences", len(self._recordings)
        if made:
            way += f", {made} CUDA graph{'s' * (made > 1)} of them recorded in {self._recording_seconds:.1f} s"
        elif self._recorder is None:
            way += ", no CUDA graphs"
        else:
            way += ", CUDA graphs of the sizes that come again"
        return f"{way} ({self._failure})" if self._failure else way

    def record(self, wanted: bool) -> bool:
        """With False, forget all recordings and make no more; returns whether there were any."""
        had = bool(self._recordings)
        if self._recordings:
            cuda.wait(self._device)
            self._recordings.clear()
        self._recorder = cuda.recorder(self._device) if wanted and not self.refusal else None
        release()
        return had

    def gradients(self, micros: list[Batch], tokens: int, seeds: list[int], full: int) -> tuple[bool, bool]:
        """Begin the gradients of `micros`, parts of a batch of `tokens` target tokens: whether memory was short, and
        for a single sentence. Then they are worth nothing.

        Dropout masks come from `seeds`, one a part. A full part has `full` padded positions a side. Recordings hold
        memory of their own: they are given up before memory counts as short.
        """
        while True:
            self.flat.zero_()
            self._sums.zero_()
            single = False
            try:
                for micro, seed in zip(micros, seeds, strict=True):
                    single = len(micro.src) == 1
                    self._add(micro, tokens, seed, full)
                return False, False
            except (RuntimeError, MemoryError) as error:
                if not is_shortage(error):
                    raise
            if not self.record(False):
                self.record(True)  # for smaller parts
                return True, single

    def _add(self, micro: Batch, tokens: int, seed: int, full: int) -> None:
        self._model.random.seed(seed)
        if self.refusal or not isinstance(self._model, Transformer):
            self._add_padded(micro, tokens)
        else:
            self._add_packed(self._model, micro, tokens, full)

    def sums(self) -> tuple[float, float]:
        """Loss and nll a token of the gradients begun last; waits for the device."""
        loss, nll = self._sums.tolist()
        return loss, nll

    def step(self, applied: int, target_tokens: int) -> None:
        """Apply the gradients, unless they or the loss are not finite; the values are left to `read`.

        `applied` updates were applied before. While updates are pending the device knows better, and it is not used.
        """
        train = self._config.train
        if not self._pending:
            self._applied.fill_(applied)
        parts = torch._foreach_norm([p.grad for p in self._model.parameters() if p.grad is not None])
        norm = torch.linalg.vector_norm(torch.stack(parts))
        finite = self._sums[0].isfinite() & norm.isfinite()
        if train.clip_norm:
            self.flat.mul_((train.clip_norm / norm).clamp(max=1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._applied + 1.0).float()
        # torch's fused Adam leaves parameters, moments and step counts alone where `found_inf` is 1.
        self._optimizer.grad_scale, self._optimizer.found_inf = None, (~finite).float()
        self._optimizer.step()
        self._applied.add_(finite)
        self._pending.append((torch.cat((self._sums, norm.double()[None])), target_tokens))

    def read(self) -> list[Values]:
        """The values of all updates begun since the last call, in order; waits for the device once."""
        pending, self._pending = self._pending, []
        if not pending:
            return []
        rows = torch.stack([values for values, _ in pending]).tolist()
        return [Values(loss, nll, norm, tokens) for (loss, nll, norm), (_, tokens) in zip(rows, pending, strict=True)]

    def _refusal(self) -> str:
        model = self._config.model
        if model.family != "transformer":
            return f"there is no packed pass for the family {model.family}"
        if not cuda.has_flash(self._device, bf16=self._bf16):
            return "flash attention is for bf16 on NVIDIA GPUs from Ampere on"
        return refusal(model, cuda.widest_head(self._device))

    def _rate(self, step: Tensor) -> Tensor:
        """`learning_rate` of the update `step`, a double of the device."""
        train = self._config.train
        peak = train.learning_rate_factor * self._config.model.d_model**-0.5
        rate: Tensor = torch.minimum(step.rsqrt(), step * train.warmup_steps**-1.5) * peak
        return rate

    def _add_packed(self, model: Transformer, micro: Batch, tokens: int, full: int) -> None:
        shape = Shape.of(micro.src_lengths, micro.tgt_lengths, full)
        rows = tables(model, shape, int(max(micro.src_lengths.max(), micro.tgt_lengths.max())))
        given = cuda.upload(pack(micro, shape, tokens), self._device)
        recording = self._recordings.get(shape)
        if recording is not None:
            recording.given.copy_(given)
            recording.replay()
            return
        again = shape in self._seen and len(self._recordings) < MOST_RECORDINGS
        self._seen.add(shape)
        if self._recorder is not None and again:
            recording = self._recorded(self._recorder, model, given, shape, rows)
        if recording is None:
            self._pass(model, given, shape, rows)
        else:
            recording.replay()

    def _recorded(
        self, recorder: cuda.Recorder, model: Transformer, given: Tensor, shape: Shape, rows: list[Tensor | None]
    ) -> Recording | None:
        """The pass over what stands in `given`, recorded; None, and no more is recorded, where that cannot be done."""
        started, generator = time.perf_counter(), model.random.on(self._device)
        try:
            replay = recorder.record(lambda: self._pass(model, given, shape, rows), generator)
        except RuntimeError as error:
            if is_shortage(error):
                raise
            self._failure = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._recorder = None  # what was recorded before goes on to be replayed
            return None
        self._recordings[shape] = Recording(replay, given, rows)
        self._recording_seconds += time.perf_counter() - started
        return self._recordings[shape]

    def _pass(self, model: Transformer, given: Tensor, shape: Shape, rows: list[Tensor | None]) -> None:
        """Forth and back over one packed batch: gradients and sums are added to."""
        packed = unpack(given, shape)
        with self._precision():
            hidden = hidden_states(model, packed, rows)
            loss = self._loss(hidden[None], packed.tgt_out[None], packed.tokens)
        self._back(loss, packed.tokens)

    def _add_padded(self, micro: Batch, tokens: int) -> None:
        sides = (micro.src, micro.tgt_in, micro.tgt_out)
        flat = torch.cat([*(side.flatten() for side in sides), torch.tensor([tokens])])
        parts = torch.split(cuda.upload(flat, self._device), [*(side.numel() for side in sides), 1])
        src, tgt_in, tgt_out = (part.view(side.shape) for part, side in zip(parts, sides, strict=False))
        with self._precision():
            loss = self._loss(self._model(src, src != PAD, tgt_in), tgt_out, parts[-1][0])
        self._back(loss, parts[-1][0])

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16)

    def _loss(self, hidden: Tensor, tgt_out: Tensor, tokens: Tensor) -> Loss:
        train = self._config.train
        return smoothed_loss(
            hidden,
            tgt_out,
            self._model.output(),
            smoothing=train.label_smoothing,
            kind=train.label_smoothing_kind,
            normaliser=tokens,
            compact=False,
        )

    def _back(self, loss: Loss, tokens: Tensor) -> None:
        loss.total.backward()  # type: ignore[no-untyped-call]
        self._sums.add_(torch.stack((loss.total.detach(), loss.nll / tokens)))
