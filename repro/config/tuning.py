"""Optimizer settings that were found to suit each baseline."""

from __future__ import annotations

from dataclasses import replace

from repro.config.baselines import BaselineConfig
from repro.config.run import TrainConfig

_PEAKS: dict[str, float] = {"lstm": 3e-3, "lstm-attention": 3e-3, "gnmt": 3e-3, "convs2s": 2e-3}


def recommended_training(config: BaselineConfig, base: TrainConfig) -> TrainConfig:
    """`base` with the learning rate and the clipping that suit `config`."""
    return replace(
        base,
        learning_rate_factor=_PEAKS[config.family] * (config.d_model * base.warmup_steps) ** 0.5,
        clip_norm=1.0,
    )
