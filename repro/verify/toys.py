"""Small models and sentences that the checks look at, one of every family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from repro.config import ModelConfig, TransformerConfig
from repro.config.baselines import resized, small
from repro.data.pieces import BOS, EOS, PAD
from repro.models.build import build_model
from repro.models.seq2seq import Seq2Seq

VOCABULARY = 40

PUBLISHED: dict[str, ModelConfig] = {config.family: config for config in (kind() for kind in get_args(ModelConfig))}
"""Every family that can be built, at the sizes of its own paper."""

FAMILIES = tuple(PUBLISHED)

_SEEDS = {"transformer": 14, "lstm": 12, "lstm-attention": 11, "gnmt": 2, "convs2s": 2}
"""Seeds of toys that end some of their translations early and not others."""


def tiny(family: str) -> ModelConfig:
    """A configuration of `family` that runs in a millisecond; no dropout."""
    published = PUBLISHED[family]
    if isinstance(published, TransformerConfig):
        return TransformerConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2, dropout=0.0)
    return replace(resized(small(published.family), d_hidden=24, d_embedding=16), dropout=0.0)


def toy(family: str) -> Seq2Seq[Any, Any]:
    """A small model in evaluation mode whose choices are clear: its weights spread wider than training starts with.

    Some of its translations end early and some meet their cap.
    """
    seed = _SEEDS.get(family, 1)
    model = build_model(tiny(family), VOCABULARY, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if family != "transformer":
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
            if parameter.shape[0] == VOCABULARY and parameter.dim() == 2:
                parameter.mul_(3.0)
            if name == "logits.bias":
                parameter[EOS] += 3.0
    return model.eval()


def sentences(count: int, longest: int, seed: int) -> list[list[int]]:
    """`count` random sentences of 1 to `longest` pieces, marks left out."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(EOS + 1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def padded(rows: list[list[int]], *, more: int = 0) -> Tensor:
    """[batch, src_len]: each row with the end mark, then padding, `more` columns of it than needed."""
    width = max(len(row) for row in rows) + 1 + more
    return torch.tensor([[*row, EOS] + [PAD] * (width - len(row) - 1) for row in rows])


def targets(rows: list[list[int]]) -> Tensor:
    """[batch, tgt_len]: the start mark and each row, then padding: what a decoder reads."""
    width = max(len(row) for row in rows) + 1
    return torch.tensor([[BOS, *row] + [PAD] * (width - len(row) - 1) for row in rows])


def largest(difference: Tensor) -> float:
    """The largest absolute number of `difference`."""
    return float(difference.detach().abs().max())
