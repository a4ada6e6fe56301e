"""Small baselines and batches for the tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repro.config import ModelConfig, TransformerConfig
from repro.config.baselines import BaselineConfig, ConvS2SConfig, GnmtConfig, LstmAttentionConfig, LstmConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.models.build import build_model
from repro.models.seq2seq import Seq2Seq

VOCABULARY = 50

CONFIGS: dict[str, BaselineConfig] = {
    "lstm": LstmConfig(n_layers=2, d_embedding=16, d_hidden=24),
    "lstm-tied": LstmConfig(n_layers=1, d_embedding=16, d_hidden=24, tied_embeddings=True, reverse_source=False),
    "lstm-attention": LstmAttentionConfig(
        encoder_layers=2, decoder_layers=2, d_embedding=16, d_hidden=24, d_attention=20, d_out=12
    ),
    "lstm-attention-tied": LstmAttentionConfig(
        decoder_layers=1, d_embedding=16, d_hidden=24, d_attention=20, d_out=16, tied_embeddings=True
    ),
    "gnmt": GnmtConfig(n_layers=4, d_embedding=16, d_hidden=24, d_attention=20, dropout=0.0),
    "gnmt-tied": GnmtConfig(
        n_layers=2, d_embedding=16, d_hidden=24, d_attention=20, dropout=0.0, tied_embeddings=True
    ),
    "convs2s": ConvS2SConfig(
        d_embedding=16, encoder=((24, 3), (24, 3), (32, 1)), decoder=((24, 3), (32, 2)), d_out=20, dropout=0.0,
        max_positions=32,
    ),
    "convs2s-tied": ConvS2SConfig(
        d_embedding=16, encoder=((24, 5),), decoder=((16, 3), (16, 1)), d_out=16, dropout=0.0, max_positions=32,
        tied_embeddings=True,
    ),
}  # fmt: skip

FAMILIES: dict[str, ModelConfig] = {
    "transformer": TransformerConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2, dropout=0.0),
    **{family: CONFIGS[family] for family in ("lstm", "lstm-attention", "gnmt", "convs2s")},
}
"""One small model of every family, without dropout."""


def toy(name: str, *, seed: int = 1, spread: bool = True) -> Seq2Seq[Any, Any]:
    """A small model. `spread` draws weights wider than its paper does, so that every part of it matters."""
    model = build_model(CONFIGS[name], VOCABULARY, seed)
    if spread:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def sources(lengths: list[int], *, width: int | None = None, seed: int = 0) -> Tensor:
    """[rows, width] random pieces, the end mark at each row's length, then padding."""
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(4, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    for row, length in zip(src, lengths, strict=True):
        row[length - 1] = EOS
        row[length:] = PAD
    return torch.nn.functional.pad(src, (0, (width or max(lengths)) - max(lengths)), value=PAD)


def targets(rows: int, length: int, *, seed: int = 5) -> Tensor:
    """[rows, length] random pieces after the start mark."""
    tgt_in = torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    tgt_in[:, 0] = BOS
    return tgt_in
