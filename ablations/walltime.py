"""Runs as jobs of a batch system: several GPUs a run, and a limit on how long one job may take."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass

from repro.config import TrainConfig
from repro.errors import UsageError

_CLOCK = re.compile(r"(?:(\d+)-)?(\d{1,4}):([0-5]\d):([0-5]\d)")


def walltime_seconds(text: str) -> int:
    """The seconds of "HH:MM:SS" or "D-HH:MM:SS", as batch systems write a job's limit. Raises UsageError."""
    found = _CLOCK.fullmatch(text.strip())
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0, 0)
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if not total:
        raise UsageError(f"{text!r} is no time", where="--walltime", fix="write it as 24:00:00 or 2-00:00:00")
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Jobs:
    """What one run gets, and how long at a time."""

    gpus: int = 1
    """GPUs that share each batch of a run."""
    walltime: int | None = None
    """Seconds after which a job is ended; None: no limit."""

    def share(self, train: TrainConfig) -> TrainConfig:
        """`train` as one of the GPUs computes it: its part of each batch, or smaller ones where they are configured."""
        if self.gpus == 1:
            return train
        part = max(1, min(train.micro_batch_tokens or train.batch_tokens, train.batch_tokens // self.gpus))
        return dataclasses.replace(train, micro_batch_tokens=part)

    def wall_seconds(self, seconds: float | None) -> float | None:
        """How long a run takes that takes `seconds` on one GPU, were several as many times as fast."""
        return None if seconds is None else seconds / self.gpus

    def chunks(self, seconds: float | None) -> int | None:
        """Jobs, one after the other, of a run of `seconds` on one GPU; None where it cannot be told."""
        wall = self.wall_seconds(seconds)
        return None if wall is None or self.walltime is None else max(1, math.ceil(wall / self.walltime))

    def notes(self, train: TrainConfig) -> list[str]:
        """What the figures rest on, one sentence each; `train` is the base's."""
        notes = []
        if self.gpus > 1:
            notes.append(
                f"{self.gpus} GPUs share each batch of a run: {train.batch_tokens // self.gpus:,} of "
                f"{train.batch_tokens:,} tokens each, so the effective batch and the updates are those of one; "
                f"hours assume that they are {self.gpus} times as fast, GPU-hours are those of one"
            )
        if self.walltime is not None:
            clock = f"{self.walltime // 3600}:{self.walltime // 60 % 60:02d}:{self.walltime % 60:02d}"
            notes.append(
                f"jobs: how many of {clock} a run takes, one after the other, each going on from the last checkpoint; "
                f"of training alone, start-up and scoring come on top"
            )
        return notes
