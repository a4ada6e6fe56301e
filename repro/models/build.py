"""From a configuration to a model with its initial weights."""

from __future__ import annotations

from typing import Any

import torch

from repro.config import ModelConfig
from repro.models.convs2s import ConvS2S
from repro.models.gnmt import Gnmt
from repro.models.lstm import Lstm
from repro.models.lstm_attention import LstmAttention
from repro.models.seq2seq import Seq2Seq, count_parameters
from repro.models.transformer import Transformer


def build_model(
    config: ModelConfig, vocabulary_size: int, seed: int, device: torch.device | str = "cpu"
) -> Seq2Seq[Any, Any]:
    """The model of `config` over `vocabulary_size` pieces, in training mode, on `device`.

    The weights depend on `config`, `vocabulary_size` and `seed` only: they are drawn on the CPU from a generator of
    their own. On the device "meta" nothing is drawn or allocated. Raises UsageError for sizes that cannot be.
    """
    with torch.device("meta"):
        model = _shape(config, vocabulary_size)
    if torch.device(device).type == "meta":
        return model
    expected = count_parameters(model)
    model.to_empty(device="cpu")
    if count_parameters(model) != expected:
        raise RuntimeError(f"{config.family}: a parameter is registered under two names and would be untied")
    model.initialise(torch.Generator().manual_seed(seed))
    return model.to(device)


def _shape(config: ModelConfig, vocabulary_size: int) -> Seq2Seq[Any, Any]:
    match config.family:
        case "transformer":
            return Transformer(config.resolved(), vocabulary_size)
        case "lstm":
            return Lstm(config, vocabulary_size)
        case "lstm-attention":
            return LstmAttention(config, vocabulary_size)
        case "gnmt":
            return Gnmt(config, vocabulary_size)
        case "convs2s":
            return ConvS2S(config, vocabulary_size)
