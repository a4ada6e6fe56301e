"""Training loss since the last log line; part of a checkpoint, so that a resumed run logs the same numbers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from repro.config.schema import from_document
from repro.training.trainer import Update


@dataclass(kw_only=True, slots=True)
class Window:
    """Sums over target tokens."""

    loss: float = 0.0
    nll: float = 0.0
    tokens: int = 0

    def add(self, update: Update) -> None:
        """Count one applied update in."""
        self.loss += update.loss * update.target_tokens
        self.nll += update.nll * update.target_tokens
        self.tokens += update.target_tokens

    def take(self) -> tuple[float, float]:
        """Mean loss and mean unsmoothed negative log-likelihood a token; the window starts anew."""
        means = self.loss / self.tokens, self.nll / self.tokens
        self.loss, self.nll, self.tokens = 0.0, 0.0, 0
        return means

    def document(self) -> dict[str, Any]:
        """The plain document that `Window.read` reads back."""
        return dataclasses.asdict(self)

    @staticmethod
    def read(document: dict[str, Any]) -> Window:
        """The window of a document."""
        return from_document(Window, document)
