"""One update after another: batch, loss, gradient, Adam, schedule; and the state that a resumed run needs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.accounting.flops import Lengths, train_flops
from repro.config import RunConfig
from repro.data.batches import split_batch
from repro.data.pieces import Batch
from repro.errors import CheckError, UserError
from repro.models.build import build_model
from repro.models.seq2seq import count_parameters
from repro.seeds import derive_seed
from repro.shortage import is_shortage, release
from repro.training import cuda
from repro.training.adam import Adam
from repro.training.ahead import Ahead, flat_gradients
from repro.training.counters import Counters
from repro.training.device import device_memory, device_name
from repro.training.loss import smoothed_loss
from repro.training.parallel import ALONE, Group
from repro.training.schedule import learning_rate


@dataclass(frozen=True, kw_only=True, slots=True)
class Update:
    """What one update saw."""

    loss: float
    """Training loss a target token, smoothed as configured."""
    nll: float
    """Negative log-likelihood a target token, unsmoothed."""
    learning_rate: float
    gradient_norm: float
    target_tokens: int
    applied: bool
    """False: loss or gradient was not finite and the parameters were left alone."""


class DivergenceError(UserError):
    """Too many updates without a finite loss and gradient."""


class Trainer:
    """A model with its optimizer. Parameters and every draw follow from the configuration and the vocabulary's size.

    Nothing here depends on how often, or whether, the run was stopped and resumed: the dropout masks of an update
    follow from its index, the data order from the epoch, the learning rate from the step.

    The parts in which a batch is computed are numbered, and the masks follow from these numbers too. Of several
    processes, that of rank r computes the parts r, r + size, ...: with the same parts, one process and several draw
    the same masks and give the same update but for the order of additions. A batch that would make fewer parts than
    there are processes is cut further, and memory that runs out makes the parts smaller for the rest of the run
    (`micro_batch_tokens`, part of every checkpoint): other parts draw other masks, as good as the first ones. So the
    same bits come from the same number of processes with the same memory; without dropout all splits agree up to
    rounding.
    """

    def __init__(self, config: RunConfig, vocabulary_size: int, device: torch.device, group: Group = ALONE) -> None:
        self.config, self.device = config.resolved(), device
        self.vocabulary_size, self._group = vocabulary_size, group
        self.model = build_model(
            self.config.model, vocabulary_size, derive_seed(config.scale, config.seed, "init"), device
        )
        self.model.fused = True
        self.counters = Counters()
        train = config.train
        self._configured = min(train.batch_tokens, train.micro_batch_tokens or train.batch_tokens)
        self.micro_batch_tokens = self._configured
        """Padded positions a side that are computed at once; halved when memory runs out."""
        self._bf16 = train.precision == "bf16" or (train.precision == "auto" and device.type == "cuda")
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = Adam(
            self._parameters.values(), betas=(train.adam_beta1, train.adam_beta2), eps=train.adam_eps
        )
        self._ahead = (
            Ahead(self.config, self.model, self._optimizer, device, bf16=self._bf16)
            if cuda.runs_ahead(device)
            else None
        )
        self._flat = self._ahead.flat if self._ahead is not None else None
        if self._flat is None and group.size > 1:
            self._flat = flat_gradients(self.model, device)
        self._made: list[Update] = []

    @property
    def processes(self) -> int:
        """How many processes share each batch."""
        return self._group.size

    @property
    def cut_smaller(self) -> bool:
        """Whether memory ran out and batches are computed in smaller parts than configured."""
        return self.micro_batch_tokens < self._configured

    @property
    def way(self) -> str:
        """How a device other than the CPU computes, in words; empty on a CPU."""
        return self._ahead.way if self._ahead is not None else ""

    def record(self, wanted: bool) -> None:
        """With False, compute every pass anew: a profile then sees what it is made of. True is how a trainer begins."""
        if self._ahead is not None:
            self._ahead.record(wanted)

    @property
    def precision(self) -> str:
        """The arithmetic of the matrix products: fp32 or bf16."""
        return "bf16" if self._bf16 else "fp32"

    def update(self, batch: Batch) -> Update:
        """One update on an effective batch, accumulated over micro-batches if it must be.

        The loss is divided by the target tokens of the whole batch, so micro-batches of any size give the same
        gradient. A non-finite loss or gradient leaves the parameters alone and counts as skipped. Raises
        DivergenceError when more than `train.max_skipped_steps` were. Where memory runs out, the micro-batches are
        halved and the batch is computed anew; CheckError when not even a single sentence fits.
        """
        if self._defers:
            self.launch(batch)
            return self.settle()[-1]
        started = time.perf_counter()
        tokens = int(batch.tgt_lengths.sum())
        if not self.model.training:
            self.model.train()
        micros, loss, nll = self._gradients(batch, tokens)
        norm = self._gradient_norm()
        applied = math.isfinite(loss) and math.isfinite(norm)
        rate = self._rate(self.counters.step + 1)
        if applied:
            self._apply(rate, norm)
        self._count(batch, micros, applied)
        self.counters.seconds.train += time.perf_counter() - started
        self._check_divergence(loss, norm)
        return Update(loss=loss, nll=nll, learning_rate=rate, gradient_norm=norm, target_tokens=tokens, applied=applied)

    @property
    def behind(self) -> int:
        """How many updates were launched whose outcome only the device knows; the counters take them as applied."""
        return self._ahead.pending if self._ahead is not None else 0

    @property
    def _defers(self) -> bool:
        return self._ahead is not None and self._group.size == 1

    def launch(self, batch: Batch) -> None:
        """Begin `update` on `batch`; what it saw is told by `settle`. On a CPU, and with several processes, it is over
        when this returns; otherwise the device is still at it. Errors as `update`'s, a divergence by `settle`.
        """
        if not self._defers:
            self._made.append(self.update(batch))
            return
        assert self._ahead is not None
        started = time.perf_counter()
        tokens = int(batch.tgt_lengths.sum())
        if not self.model.training:
            self.model.train()
        micros, *_ = self._gradients(batch, tokens)
        with self._for_the_state():
            self._ahead.step(self.counters.step, tokens)
        self._count(batch, micros, applied=True)
        self.counters.seconds.train += time.perf_counter() - started

    def settle(self) -> list[Update]:
        """The updates launched since the last call, in order, when all are over; then the counters are exact."""
        if self._ahead is None or not self._ahead.pending:
            made, self._made = self._made, []
            return made
        started = time.perf_counter()
        values = self._ahead.read()
        counters, updates = self.counters, []
        counters.step -= len(values)
        counters.seconds.train += time.perf_counter() - started
        for loss, nll, norm, tokens in values:
            applied, rate = math.isfinite(loss) and math.isfinite(norm), self._rate(counters.step + 1)
            counters.step += applied
            counters.skipped += not applied
            self._check_divergence(loss, norm)
            update = Update(
                loss=loss, nll=nll, learning_rate=rate, gradient_norm=norm, target_tokens=tokens, applied=applied
            )
            updates.append(update)
        return updates

    def _check_divergence(self, loss: float, norm: float) -> None:
        if self.counters.skipped > self.config.train.max_skipped_steps:
            raise DivergenceError(
                f"{self.counters.skipped} updates had a non-finite loss or gradient, the last at step "
                f"{self.counters.step + 1} (loss {loss}, gradient norm {norm})"
            )

    def _rate(self, step: int) -> float:
        train = self.config.train
        return learning_rate(
            step,
            d_model=self.config.model.d_model,
            warmup_steps=train.warmup_steps,
            factor=train.learning_rate_factor,
        )

    def _gradients(self, batch: Batch, tokens: int) -> tuple[list[Batch], float, float]:
        """Give every parameter its gradient of the whole `batch`; returns the parts it took, loss and nll a token."""
        while True:
            micros = split_batch(batch, self.micro_batch_tokens, least=self._group.size)
            loss, nll, short, single = self._group.sum(*self._share(micros, tokens))
            if not short:
                if self._flat is not None:
                    self._group.sum_tensor(self._flat)
                return micros, loss, nll
            release()
            if single:
                raise self._too_large("a micro-batch of a single sentence")
            largest = max(len(micro.src) * max(micro.src.shape[1], micro.tgt_out.shape[1]) for micro in micros)
            self.micro_batch_tokens = min(self.micro_batch_tokens, largest) // 2

    def _share(self, micros: list[Batch], tokens: int) -> tuple[float, float, float, float]:
        """The gradients of this process's share of `micros`: its part of loss and nll, whether memory ran out (the
        gradients are then cleared), and whether it did so on a single sentence.
        """
        indices = range(self._group.rank, len(micros), self._group.size)
        if self._ahead is not None:
            seeds = [self._mask_seed(index) for index in indices]
            short, single = self._ahead.gradients(
                [micros[index] for index in indices], tokens, seeds, full=self.micro_batch_tokens
            )
            sums = (0.0, 0.0) if short or self._defers else self._ahead.sums()
            return *sums, float(short), float(single)
        self._clear_gradients()
        loss = nll = 0.0
        for index in indices:
            self.model.random.seed(self._mask_seed(index))
            try:
                smoothed, unsmoothed = self._backward(micros[index], tokens)
            except (RuntimeError, MemoryError) as error:
                if not is_shortage(error):
                    raise
                self._clear_gradients()
                return 0.0, 0.0, 1.0, float(len(micros[index].src) == 1)
            loss, nll = loss + smoothed, nll + unsmoothed
        return loss, nll, 0.0, 0.0

    def _mask_seed(self, index: int) -> int:
        """The seed of the dropout masks of part `index` of the present update."""
        return derive_seed(self.config.scale, self.config.seed, "dropout", self.counters.updates, index)

    def _clear_gradients(self) -> None:
        if self._flat is None:
            self._optimizer.clear_gradients()
        else:
            self._flat.zero_()

    def _too_large(self, what: str) -> CheckError:
        size = count_parameters(self.model) / 1e6
        memory = f"{device_memory(self.device) / 2**30:.1f} GB on {device_name(self.device)}"
        model = f"the {self.config.model.family} with {size:.1f} M parameters"
        return CheckError(
            f"out of memory: {what} of {model} does not fit ({memory})",
            where=f"variant {self.config.variant}",
            fix="run fewer at once, take a device with more memory, lower data.max_pieces or choose a smaller model",
        )

    def _backward(self, micro: Batch, tokens: int) -> tuple[float, float]:
        micro = micro.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            hidden = self.model(micro.src, micro.src_mask, micro.tgt_in)
            loss = smoothed_loss(
                hidden,
                micro.tgt_out,
                self.model.output(),
                smoothing=self.config.train.label_smoothing,
                kind=self.config.train.label_smoothing_kind,
                normaliser=tokens,
            )
        loss.total.backward()  # type: ignore[no-untyped-call]
        return float(loss.total.detach()), float(loss.nll) / tokens

    def _gradient_norm(self) -> float:
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        return float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))

    def _apply(self, rate: float, norm: float) -> None:
        limit = self.config.train.clip_norm
        if limit and norm > limit:
            torch._foreach_mul_([p.grad for p in self._parameters.values() if p.grad is not None], limit / norm)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self._for_the_state():
            self._optimizer.step()

    @contextmanager
    def _for_the_state(self) -> Iterator[None]:
        """Around an optimizer's step, whose first one allocates the moments."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_shortage(error):
                raise
            raise self._too_large("Adam's state") from error

    def _count(self, batch: Batch, micros: list[Batch], applied: bool) -> None:
        """Count `batch` in; its padding is that of `micros`, the parts in which it was computed."""
        counters, model = self.counters, self.config.model
        counters.step += applied
        counters.skipped += not applied
        computed = Lengths()
        for micro in micros:
            computed += Lengths.rectangle(len(micro.src), micro.src.shape[1], micro.tgt_out.shape[1])
        flops = train_flops(model, self.vocabulary_size, Lengths.of(batch.src_lengths, batch.tgt_lengths))
        padded = train_flops(model, self.vocabulary_size, computed)
        counters.source_tokens += int(batch.src_lengths.sum())
        counters.target_tokens += int(batch.tgt_lengths.sum())
        counters.source_positions += computed.src
        counters.target_positions += computed.tgt
        counters.flops += flops.total
        counters.padded_flops += padded.total
        counters.flops_source += flops.source
        counters.flops_target += flops.target
        counters.flops_attention += flops.attention
        counters.flops_softmax += flops.softmax

    # What a checkpoint holds.

    def weights(self) -> dict[str, Tensor]:
        """The parameters by name; a shared matrix once."""
        return {name: parameter.detach() for name, parameter in self._parameters.items()}

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Adam's moments and step counts as "<parameter>/<part>"."""
        return {
            f"{name}/{part}": value
            for name, parameter in self._parameters.items()
            for part, value in self._optimizer.state[parameter].items()
        }

    def restore(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor], counters: Counters) -> None:
        """Continue from a checkpoint. Raises KeyError when it belongs to another model."""
        self.load_weights(weights)
        for name, parameter in self._parameters.items():
            parts = {part: optimizer[f"{name}/{part}"] for part in ("step", "exp_avg", "exp_avg_sq")}
            self._optimizer.state[parameter] = {part: value.to(self.device).clone() for part, value in parts.items()}
        self.counters = counters

    def share(self) -> None:
        """Let every process of the group continue from the state of rank 0."""
        if self._group.size == 1:
            return
        told = self._group.tell(
            {
                "counters": self.counters.document(),
                "micro_batch_tokens": self.micro_batch_tokens,
                "begun": bool(self._optimizer.state),
            }
        )
        if self._group.rank:
            self.counters = Counters.read(told["counters"])
            self.micro_batch_tokens = told["micro_batch_tokens"]
        if told["begun"]:
            if self._group.rank:
                self._optimizer.state.update({p: self._no_state(p) for p in self._parameters.values()})
            self._group.share(list(self.weights().values()))
            self._group.share([value for _, value in sorted(self.optimizer_tensors().items())])

    def _no_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """Adam's state of one parameter, to be filled."""
        return {
            "step": torch.zeros((), device=self.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights` into the model. Raises KeyError when it belongs to another model."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])
