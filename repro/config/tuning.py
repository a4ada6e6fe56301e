"""Optimizer settings that were found to suit each baseline."""

from __future__ import annotations

from dataclasses import replace

from repro.config.baselines import BaselineConfig, BaselineFamily
from repro.config.run import TrainConfig

LEARNING_RATES: dict[BaselineFamily, float] = {"lstm": 5.0, "lstm-attention": 5.0, "gnmt": 4.0, "convs2s": 3.0}
"""How many times the Transformer's learning rate suits each family at the scale's batch and warm-up.

Found on Multi30k (`multi30k-cpu`, 800 steps, seed 1, rows as large as base). Validation perplexity by the factor of the
schedule d_model^-0.5 * min(step^-0.5, step * warmup^-1.5), of which base has 0.7:

| factor         |  0.5 |  0.7 |  1.0 |  1.4 |  2.0 |  3.0 |  3.5 |
| -------------- | ---- | ---- | ---- | ---- | ---- | ---- | ---- |
| base           |      | 38.6 | 39.6 | 50.3 |      |      |      |
| lstm           |      |      | 43.2 |      | 31.5 |      | 27.4 |
| lstm-attention |      |      | 48.1 |      | 20.4 | 17.4 |      |
| gnmt           |      |      | 30.9 |      | 20.7 |      |      |
| convs2s        | 35.2 |      | 22.8 |      | 17.7 |      |      |
"""

CLIP_NORM = 1.0
"""Every baseline's paper clips (1 to 5 for the recurrent ones, 0.1 for ConvS2S); the loss here is a token's mean."""


def recommended_training(config: BaselineConfig, base: TrainConfig) -> TrainConfig:
    """`base` with the learning rate and the clipping that suit `config`; batches, budget and loss stay the base's.

    The rate is relative to the base's, so that one that is set for a whole study reaches every row.

    Adam with the Transformer's schedule serves all families in place of their papers' optimizers (gradient descent in
    2014, Adadelta in 2015, Adam and then gradient descent in 2016, Nesterov's momentum in 2017): rows are to differ in
    the model.
    """
    factor = round(base.learning_rate_factor * LEARNING_RATES[config.family], 9)
    return replace(base, learning_rate_factor=factor, clip_norm=CLIP_NORM)
