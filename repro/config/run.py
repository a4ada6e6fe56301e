"""What a run is: model, data, training and decoding, frozen; its hash is the run's identity."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repro import SEMANTICS_VERSION
from repro.config.baselines import ConvS2SConfig, GnmtConfig, LstmAttentionConfig, LstmConfig
from repro.config.model import TransformerConfig
from repro.config.schema import from_document, to_document
from repro.config.sizes import LARGEST_VOCABULARY
from repro.errors import UsageError
from repro.files import digest_of

ModelConfig = TransformerConfig | LstmConfig | LstmAttentionConfig | GnmtConfig | ConvS2SConfig
"""Any family's configuration; told apart by `family`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text, cut how. `digest` names the prepared corpus (text, vocabulary and settings) that was used."""

    corpus: str = "smoke"
    vocabulary_size: int = 4000
    """Pieces of the joint source and target BPE vocabulary, the four special ones included."""
    max_pieces: int = 256
    """Longest training sentence, in pieces with the end mark; longer pairs are left out with a count."""
    digest: str = ""

    def __post_init__(self) -> None:
        _positive("data", vocabulary_size=self.vocabulary_size, max_pieces=self.max_pieces)
        if self.vocabulary_size > LARGEST_VOCABULARY:
            what = f"vocabulary_size is {self.vocabulary_size}, the most is {LARGEST_VOCABULARY}"
            raise UsageError(what, where="data")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Optimizer, schedule, batches, budget and rhythm; the defaults are the paper's (section 5)."""

    budget: float = 100_000
    budget_unit: Literal["steps", "tokens", "flops", "seconds"] = "steps"
    """steps: applied updates; tokens: target tokens without padding; flops: our count; seconds: training only."""
    batch_tokens: int = 25_000
    """Size of one update's batch: at most this many padded positions on the source and on the target side each."""
    micro_batch_tokens: int | None = None
    """Most padded positions a side that the device holds at once; a larger batch is accumulated. None: all."""
    warmup_steps: int = 4000
    learning_rate_factor: float = 1.0
    """Multiplies the paper's schedule d_model^-0.5 * min(step^-0.5, step * warmup^-1.5) (section 5.3, eq. 3)."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.98
    adam_eps: float = 1e-9
    clip_norm: float = 0.0
    """Largest gradient norm; 0: no clipping, as in the paper."""
    label_smoothing: float = 0.1
    label_smoothing_kind: Literal["uniform", "exclude_gold"] = "uniform"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: fp32 on a CPU, bf16 autocast on CUDA."""
    threads: int = 1
    """CPU threads of the run. Another number gives other bits, so it is part of the run's identity."""
    evaluate_every: int = 1000
    """Steps between evaluations on the validation side."""
    valid_decode: Literal["greedy", "beam", "none"] = "greedy"
    """How validation BLEU is decoded during training."""
    log_every: int = 50
    checkpoint_seconds: float = 60.0
    """Least training time between two checkpoints; stretched so that saving stays under 2 % of training."""
    average_checkpoints: int = 0
    """Weights averaged over n evaluations before testing; 0: off, as in Table 3."""
    average_select: Literal["last", "best"] = "last"
    """Which evaluations are averaged: the last ones, or those with the least validation perplexity."""
    max_skipped_steps: int = 20
    """Updates with a non-finite loss or gradient that are skipped before the run ends as diverged."""

    def __post_init__(self) -> None:
        _positive(
            "train",
            budget=self.budget,
            batch_tokens=self.batch_tokens,
            warmup_steps=self.warmup_steps,
            learning_rate_factor=self.learning_rate_factor,
            adam_eps=self.adam_eps,
            threads=self.threads,
            evaluate_every=self.evaluate_every,
            log_every=self.log_every,
        )
        if self.micro_batch_tokens is not None:
            _positive("train", micro_batch_tokens=self.micro_batch_tokens)
        for name in ("clip_norm", "checkpoint_seconds", "average_checkpoints", "max_skipped_steps"):
            if getattr(self, name) < 0:  # declared fields
                raise UsageError(f"{name} is {getattr(self, name)}, the least is 0", where="train")
        if not 0.0 <= self.label_smoothing < 1.0:
            raise UsageError(
                f"label_smoothing is {self.label_smoothing}", where="train", fix="choose from 0 up to, not including, 1"
            )
        for name in ("adam_beta1", "adam_beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise UsageError(
                    f"{name} is {getattr(self, name)}", where="train", fix="choose from 0 up to, not including, 1"
                )


LARGEST_BEAM = 1000
"""Above it a search that runs out of memory would be noticed after the training only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeConfig:
    """Beam search as in section 6.1: beam 4, alpha 0.6, at most source length + 50 pieces."""

    beam: int = 4
    alpha: float = 0.6
    length_penalty: Literal["gnmt", "power"] = "gnmt"
    extra_length: int = 50
    batch_tokens: int = 8000
    """Padded source positions times beams decoded at once: memory only, results do not depend on it."""

    def __post_init__(self) -> None:
        _positive("decode", beam=self.beam, extra_length=self.extra_length, batch_tokens=self.batch_tokens)
        if self.beam > LARGEST_BEAM:
            raise UsageError(f"beam is {self.beam}, the most is {LARGEST_BEAM}", where="decode", fix="the paper's is 4")
        if abs(self.alpha) > 10.0:
            raise UsageError(f"alpha is {self.alpha}", where="decode", fix="choose from -10 to 10; the paper's is 0.6")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """One variant with one seed, resolved. `table`, `scale` and `variant` are labels outside the hash, except scale,
    from which the seeds derive."""

    variant: str = "base"
    table: str = ""
    scale: str = "smoke"
    seed: int = 1
    model: ModelConfig = field(default_factory=TransformerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)

    def document(self) -> dict[str, Any]:
        """The plain document; `RunConfig.read` reads it back."""
        return to_document(self)

    @staticmethod
    def read(document: Mapping[str, Any]) -> RunConfig:
        """The configuration of a document; raises UsageError for unknown keys and wrong values."""
        return from_document(RunConfig, document)

    def resolved(self) -> RunConfig:
        """With everything that follows from other settings filled in (d_k, d_v)."""
        return dataclasses.replace(self, model=self.model.resolved())

    def hash(self) -> str:
        """SHA-256 (hex) over the resolved configuration, the data digest and the code-semantics version."""
        document = self.resolved().document()
        del document["variant"], document["table"]
        return digest_of({"config": document, "semantics": SEMANTICS_VERSION})

    def run_id(self) -> str:
        """The run directory's name: `<variant>-s<seed>-<hash12>`."""
        return f"{self.variant}-s{self.seed}-{self.hash()[:12]}"


def _positive(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise UsageError(f"{name} is {value}, it must be above 0", where=where)
