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
