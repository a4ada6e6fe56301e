"""Positional encodings (Vaswani et al. 2017, section 3.5): sinusoids in two layouts, a learned table, or none."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from repro.config import TransformerConfig
from repro.errors import CheckError

Layout = Literal["interleaved", "concatenated"]


def sinusoids(length: int, d_model: int, layout: Layout = "interleaved") -> Tensor:
    """Rows of sines and cosines for positions 0 .. length - 1, float32 [length, d_model]; `d_model` is even.

    `interleaved` is the paper's text: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) the cosine.
    `concatenated` is the authors' first code (tensor2tensor, June 2017): all sines, then all cosines, with the exponent
    i / (d_model / 2 - 1), so that the slowest wave is exactly 10000 times slower than the first.
    """
    half = d_model // 2
    index = torch.arange(half, dtype=torch.float64)
    exponent = 2 * index / d_model if layout == "interleaved" else index / max(half - 1, 1)
    # Angles in double precision: in single precision position 10 000 is already off by 1e-3.
    angles = torch.arange(length, dtype=torch.float64)[:, None] * torch.exp(-math.log(1e4) * exponent)
    if layout == "interleaved":
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()
    return torch.cat((angles.sin(), angles.cos()), dim=-1).float()


class SinusoidalPositions(nn.Module):
    """Sinusoids for any length; the table grows as longer sentences come, and is never saved."""

    def __init__(self, d_model: int, layout: Layout) -> None:
        super().__init__()
        self.d_model, self.layout = d_model, layout
        self._table: Tensor | None = None

    def forward(self, vectors: Tensor, start: int = 0) -> Tensor:
        """The rows [length, d_model] that belong to `vectors` [batch, length, d_model], the first at `start`."""
        end = start + vectors.shape[1]
        if self._table is None or self._table.shape[0] < end or self._table.device != vectors.device:
            # A table first needed while decoding must serve training too.
            with torch.inference_mode(False):
                self._table = sinusoids(max(256, 2 * end), self.d_model, self.layout).to(vectors.device)
        return self._table[start:end]


class LearnedPositions(nn.Module):
    """A trained row for each of `max_positions` positions."""

    def __init__(self, max_positions: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, d_model))

    def forward(self, vectors: Tensor, start: int = 0) -> Tensor:
        """The rows [length, d_model] that belong to `vectors` [batch, length, d_model], the first at `start`.

        Raises CheckError past the table's end.
        """
        end, rows = start + vectors.shape[1], self.weight.shape[0]
        if end > rows:
            raise CheckError(
                f"a sentence of {end} pieces, but learned positions were made for {rows}",
                where="model.max_positions",
                fix=f"set model.max_positions to {end} or more, or data.max_pieces to {rows} or less",
            )
        return self.weight[start:end]


def build_positions(config: TransformerConfig) -> SinusoidalPositions | LearnedPositions | None:
    """The positions of one embedding under `config`; None where there are none."""
    match config.positions:
        case "sinusoidal":
            return SinusoidalPositions(config.d_model, config.sinusoid_layout)
        case "learned":
            return LearnedPositions(config.max_positions, config.d_model)
        case "none":
            return None
