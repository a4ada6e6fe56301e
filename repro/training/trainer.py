"""One update after another: batch, loss, gradient, Adam, schedule; and the state that a resumed run needs."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from repro.accounting.flops import Lengths, train_flops
from repro.config import RunConfig
from repro.data.batches import split_batch
from repro.data.pieces import Batch
from repro.errors import UserError
from repro.models.build import build_model
from repro.seeds import derive_seed
from repro.training.counters import Counters
from repro.training.loss import smoothed_loss
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
    """

    def __init__(self, config: RunConfig, vocabulary_size: int, device: torch.device) -> None:
        self.config, self.device = config.resolved(), device
        self.vocabulary_size = vocabulary_size
        self.model = build_model(
            self.config.model, vocabulary_size, derive_seed(config.scale, config.seed, "init"), device
        )
        self.counters = Counters()
        train = config.train
        self._bf16 = train.precision == "bf16" or (train.precision == "auto" and device.type == "cuda")
        self._parameters = dict(self.model.named_parameters())
        self._optimizer = torch.optim.Adam(
            self._parameters.values(),
            lr=0.0,
            betas=(train.adam_beta1, train.adam_beta2),
            eps=train.adam_eps,
            fused=True,
        )

    @property
    def precision(self) -> str:
        """The arithmetic of the matrix products: fp32 or bf16."""
        return "bf16" if self._bf16 else "fp32"

    def update(self, batch: Batch) -> Update:
        """One update on an effective batch, accumulated over micro-batches if it must be.

        The loss is divided by the target tokens of the whole batch, so micro-batches of any size give the same
        gradient. A non-finite loss or gradient leaves the parameters alone and counts as skipped. Raises
        DivergenceError when more than `train.max_skipped_steps` were.
        """
        started = time.perf_counter()
        train = self.config.train
        tokens = int(batch.tgt_lengths.sum())
        self.model.train()
        self._optimizer.zero_grad(set_to_none=True)
        loss = nll = 0.0
        micros = split_batch(batch, train.micro_batch_tokens or train.batch_tokens)
        for index, micro in enumerate(micros):
            self.model.random.seed(
                derive_seed(self.config.scale, self.config.seed, "dropout", self.counters.updates, index)
            )
            smoothed, unsmoothed = self._backward(micro, tokens)
            loss, nll = loss + smoothed, nll + unsmoothed
        norm = self._gradient_norm()
        applied = math.isfinite(loss) and math.isfinite(norm)
        rate = learning_rate(
            self.counters.step + 1,
            d_model=self.config.model.d_model,
            warmup_steps=train.warmup_steps,
            factor=train.learning_rate_factor,
        )
        if applied:
            self._apply(rate, norm)
        self._count(batch, micros, applied)
        self.counters.seconds.train += time.perf_counter() - started
        if self.counters.skipped > train.max_skipped_steps:
            raise DivergenceError(
                f"{self.counters.skipped} updates had a non-finite loss or gradient, the last at step "
                f"{self.counters.step + 1} (loss {loss}, gradient norm {norm})"
            )
        return Update(loss=loss, nll=nll, learning_rate=rate, gradient_norm=norm, target_tokens=tokens, applied=applied)

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
        self._optimizer.step()

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

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Copy `weights` into the model. Raises KeyError when it belongs to another model."""
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])
