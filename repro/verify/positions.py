"""Positions (Vaswani et al. 2017, section 3.5): sinusoids, their shifts, and what a model without them cannot see."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from repro.config import TransformerConfig
from repro.models.build import build_model
from repro.models.positions import Layout, SinusoidalPositions
from repro.models.transformer import Transformer
from repro.verify.check import Claim, at_least, at_most, near
from repro.verify.toys import VOCABULARY, largest

_FORMULA = "section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos"
_FIRST_CODE = "tensor2tensor, June 2017: sines, then cosines, exponent i / (d/2 - 1)"
_SOURCES: dict[Layout, str] = {"interleaved": _FORMULA, "concatenated": _FIRST_CODE}
Positions = Literal["sinusoidal", "learned", "none"]
_WITH_ORDER: tuple[Positions, ...] = ("sinusoidal", "learned")
_ORDER = (3, 0, 6, 2, 5, 1, 4)
_LENGTH, _WIDTH = 2000, 64


def _claims() -> tuple[Claim, ...]:
    return (
        near(
            "positions.first-channels",
            "PE(1) and PE(2) of width 4",
            source=_FORMULA,
            expected=[[0.841471, 0.540302, 0.0099998, 0.99995], [0.909297, -0.416147, 0.0199987, 0.9998]],
            got=lambda: _table(3, 4, "interleaved")[1:].tolist(),
            within=1e-6,
        ),
        *(
            at_most(
                f"positions.formula-{layout}",
                f"{_LENGTH} positions of width {_WIDTH} against the formula, number by number ({layout})",
                source=source,
                limit=1e-6,
                got=partial(_distance_to_formula, layout),
            )
            for layout, source in _SOURCES.items()
        ),
        *(
            at_most(
                f"positions.shift-{k}",
                f"PE(pos + {k}) is one rotation of PE(pos), at every pos",
                source="section 3.5: a fixed linear map for any fixed offset",
                limit=1e-5,
                got=partial(_distance_to_rotation, k),
            )
            for k in (1, 17, 500)
        ),
        at_most(
            "positions.none-permutes-memory",
            "no positions: a permuted source permutes the memory, and nothing else",
            source="attention is a weighted sum over a set",
            limit=1e-5,
            got=lambda: _permuted("none")[0],
        ),
        at_most(
            "positions.none-keeps-decoder",
            "no positions: a permuted source leaves the decoder's states",
            source="attention is a weighted sum over a set",
            limit=1e-5,
            got=lambda: _permuted("none")[1],
        ),
        *(
            at_least(
                f"positions.{kind}-see-order",
                f"{kind} positions: a permuted source is another source",
                source="section 3.5",
                limit=1e-2,
                got=partial(_effect_of_order, kind),
            )
            for kind in _WITH_ORDER
        ),
    )


def _table(length: int, width: int, layout: Layout) -> Tensor:
    """The rows that a model adds, [length, width]."""
    rows: Tensor = SinusoidalPositions(width, layout)(torch.zeros(1, length, width))
    return rows


def _distance_to_formula(layout: Layout) -> float:
    half = _WIDTH // 2
    rows = []
    for position in range(_LENGTH):
        if layout == "interleaved":
            angles = [position / 10000 ** (2 * i / _WIDTH) for i in range(half)]
            rows.append([wave(angle) for angle in angles for wave in (math.sin, math.cos)])
        else:
            angles = [position / 10000 ** (i / (half - 1)) for i in range(half)]
            rows.append([wave(angle) for wave in (math.sin, math.cos) for angle in angles])
    return largest(_table(_LENGTH, _WIDTH, layout) - torch.tensor(rows, dtype=torch.float64))


def _distance_to_rotation(k: int) -> float:
    """The rotation turns each pair (sin, cos) by k times the pair's own frequency."""
    table = _table(_LENGTH + k, _WIDTH, "interleaved").double()
    rotation = torch.zeros(_WIDTH, _WIDTH, dtype=torch.float64)
    for i in range(_WIDTH // 2):
        angle = k / 10000 ** (2 * i / _WIDTH)
        sine, cosine = math.sin(angle), math.cos(angle)
        rotation[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cosine, sine], [-sine, cosine]])
    return largest(table[k:] - table[:-k] @ rotation.t())


def _permuted(positions: Positions) -> tuple[float, float]:
    """How far a permuted source moves the memory (put back in order) and the decoder's states."""
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2, positions=positions, max_positions=16)
    model = build_model(config, VOCABULARY, 1).eval()
    assert isinstance(model, Transformer)
    generator = torch.Generator().manual_seed(5)
    src = torch.randint(4, VOCABULARY, (3, len(_ORDER)), generator=generator)
    tgt = torch.randint(4, VOCABULARY, (3, 5), generator=generator)
    order, mask = torch.tensor(_ORDER), src > 0
    with torch.no_grad():
        memory, moved = model.encode(src, mask), model.encode(src[:, order], mask)
        states = model.decode(tgt, moved) - model.decode(tgt, memory)
    return largest(moved.states - memory.states[:, order]), largest(states)


def _effect_of_order(positions: Positions) -> float:
    return _permuted(positions)[0]


CLAIMS: tuple[Claim, ...] = _claims()
