"""Where a configuration departs from the paper's text: said with every run and in every report."""

from __future__ import annotations

from repro.config.run import RunConfig, TrainConfig
from repro.config.schema import to_document

_SIZES = {
    *("family", "n_layers", "d_model", "d_ff", "n_heads", "d_k", "d_v", "max_positions"),
    *("d_embedding", "d_hidden", "d_attention", "d_out", "encoder_layers", "decoder_layers", "encoder", "decoder"),
}
_RHYTHM = {
    "budget",
    "budget_unit",
    "micro_batch_tokens",
    "threads",
    "precision",
    "evaluate_every",
    "valid_decode",
    "log_every",
    "checkpoint_seconds",
    "max_skipped_steps",
}


_ADAM = "optimizer: Adam with the Transformer's schedule"
DEPARTURES: dict[str, tuple[str, ...]] = {
    "lstm": (
        f"{_ADAM} (its paper: gradient descent, halved rates)",
        "first weights: U(-0.08, 0.08) times the root of 1000 / width (its paper: U(-0.08, 0.08), of width 1000)",
    ),
    "lstm-attention": (
        f"{_ADAM} (its paper: Adadelta)",
        "cells: LSTM (its paper: gated recurrent units)",
        "attention: asked by the first decoder layer's new state, read by the layers above "
        "(its paper: asked by the only layer's previous state, read by that layer)",
        "first weights: the paper's deviations times the root of 1000 / width (its paper: width 1000)",
    ),
    "gnmt": (
        f"{_ADAM} (its paper: Adam, then gradient descent)",
        "attention: asked by the first decoder layer's output of the same step (its paper: of the step before)",
        "first weights: U(-0.1, 0.1), as in the common reproduction, times the root of 1024 / width "
        "(its paper: U(-0.04, 0.04))",
    ),
    "convs2s": (f"{_ADAM} (its paper: Nesterov's accelerated gradient)",),
}
"""What no option covers: where a baseline is not built or trained as its own paper did, by family."""


def differs_from_paper(config: RunConfig) -> list[str]:
    """One line for each option of model, training and decoding that is not the paper's, e.g.
    "train.warmup_steps: 150 (paper: 4000)".

    Sizes and budget are left out: they belong to the scale and the variant and stand in every table. A baseline's
    options are compared with its own paper, its training and decoding with those of the paper that is reproduced.
    """
    lines = []
    plain = RunConfig()
    groups = [
        ("model", to_document(config.model), to_document(type(config.model)()), _SIZES),
        ("train", to_document(config.train), to_document(TrainConfig()), _RHYTHM),
        ("decode", to_document(config.decode), to_document(plain.decode), {"batch_tokens"}),
    ]
    for group, ours, papers, left_out in groups:
        for key, value in ours.items():
            if key not in left_out and value != papers[key]:
                lines.append(f"{group}.{key}: {_shown(value)} (paper: {_shown(papers[key])})")
    return lines


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
