"""What a run has done so far: every number that a resumed run must go on counting from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from repro.config import TrainConfig
from repro.config.schema import from_document


@dataclass(kw_only=True, slots=True)
class Seconds:
    """Wall-clock seconds by what they were spent on."""

    train: float = 0.0
    data: float = 0.0
    evaluate: float = 0.0
    decode: float = 0.0
    checkpoint: float = 0.0


@dataclass(kw_only=True, slots=True)
class Counters:
    """Counts since the run's first step. Tokens and `flops` leave padding out; `padded_flops` has it in."""

    step: int = 0
    """Updates applied."""
    skipped: int = 0
    """Updates left out because their loss or gradient was not finite."""
    epoch: int = 0
    next_batch: int = 0
    """Index, in the epoch, of the batch that comes next."""
    source_tokens: int = 0
    target_tokens: int = 0
    source_positions: int = 0
    """Source tokens and their padding."""
    target_positions: int = 0
    flops: float = 0.0
    padded_flops: float = 0.0
    flops_source: float = 0.0
    flops_target: float = 0.0
    flops_attention: float = 0.0
    flops_softmax: float = 0.0
    seconds: Seconds = field(default_factory=Seconds)

    @property
    def updates(self) -> int:
        """Updates tried, applied or not: the index of the next batch since the start."""
        return self.step + self.skipped

    @property
    def padding_share(self) -> float:
        """Share of padding among all positions of the batches so far, both sides together."""
        positions = self.source_positions + self.target_positions
        return 1.0 - (self.source_tokens + self.target_tokens) / positions if positions else 0.0

    @property
    def train_seconds(self) -> float:
        """Seconds of training with its data; evaluation, decoding and saving are left out."""
        return self.seconds.train + self.seconds.data

    @property
    def target_tokens_per_second(self) -> float:
        """Target tokens without padding a second of training time."""
        return self.target_tokens / self.train_seconds if self.train_seconds else 0.0

    def progress(self, train: TrainConfig) -> float:
        """Share of the budget spent, 1 or more when the run is done."""
        spent = {
            "steps": self.step,
            "tokens": self.target_tokens,
            "flops": self.flops,
            "seconds": self.train_seconds,
        }[train.budget_unit]
        return spent / train.budget

    def document(self) -> dict[str, Any]:
        """The plain document that `Counters.read` reads back."""
        return dataclasses.asdict(self)

    @staticmethod
    def read(document: dict[str, Any]) -> Counters:
        """The counters of a document."""
        return from_document(Counters, document)
