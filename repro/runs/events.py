"""What a run tells whoever watches it, and what may end it early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run is, for a progress bar or a log line."""

    step: int
    progress: float
    """Share of the budget, 0 to 1."""
    loss: float
    learning_rate: float
    target_tokens_per_second: float
    note: str = ""
    """What happened besides training, in words: "valid BLEU 31.2", "checkpoint"."""


class Observer(Protocol):
    """Somebody who watches a run."""

    def progress(self, event: Progress) -> None:
        """Called in the run's process, every `train.log_every` steps and whenever there is a note."""


class Silent:
    """An observer that does nothing."""

    def progress(self, event: Progress) -> None:
        """Nothing."""


class Interrupted(Exception):  # noqa: N818 - not an error: a run that was asked to stop and can go on
    """The run was asked to stop; it has saved and can go on from there."""


class Superseded(Exception):  # noqa: N818 - not an error of this process
    """Another process took this run over while this one was thought dead: nothing more may be written."""
