"""Optimizer settings that were found to suit each baseline."""

from __future__ import annotations

from dataclasses import replace

from repro.config.baselines import BaselineConfig, BaselineFamily
from repro.config.run import TrainConfig

LEARNING_RATE_FACTORS: dict[BaselineFamily, float] = {"lstm": 0.5, "lstm-attention": 0.5, "gnmt": 0.5, "convs2s": 0.5}
"""Of the schedule d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), the same one for all."""

CLIP_NORM = 1.0
"""Every baseline's paper clips (1 to 5 for the recurrent ones, 0.1 for ConvS2S); the loss here is a token's mean."""


def recommended_training(config: BaselineConfig, base: TrainConfig) -> TrainConfig:
    """`base` with the learning rate and the clipping that suit `config`; batches, budget and loss stay the base's.

    Adam with the Transformer's schedule serves all families in place of their papers' optimizers (gradient descent in
    2014, Adadelta in 2015, Adam and then gradient descent in 2016, Nesterov's momentum in 2017): rows are to differ in
    the model.
    """
    return replace(base, learning_rate_factor=LEARNING_RATE_FACTORS[config.family], clip_norm=CLIP_NORM)
