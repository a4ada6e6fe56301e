"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2.1): a worked example, and the variance of scores."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from repro.config import TransformerConfig
from repro.models.attention import SelfAttention
from repro.models.dropout import RandomSource
from repro.verify.check import Claim, at_most, equal, near

_X = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
_CHANGED = [[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]
_WORKED = "worked by hand from eq. 1"

DRAWS = 8_000
"""Pairs of random queries and keys; the variance of their scores is then known to about 2 %."""


def _claims() -> tuple[Claim, ...]:
    return (
        equal(
            "attention.weights",
            "Q = K = V = [[1,0],[0,1],[1,1]], d_k = 2: weights of row 3",
            source=_WORKED,
            expected=[0.248255, 0.248255, 0.503490],
            got=lambda: _weights(_X)[2],
        ),
        equal(
            "attention.outputs",
            "the same: all three outputs",
            source=_WORKED,
            expected=[[0.802224, 0.598888], [0.598888, 0.802224], [0.751745, 0.751745]],
            got=lambda: _outputs(_X),
        ),
        equal(
            "attention.unscaled-weights",
            "not divided by sqrt(d_k): weights of row 3",
            source=_WORKED,
            expected=[0.211942, 0.211942, 0.576117],
            got=lambda: _weights(_X, scaled=False)[2],
        ),
        equal(
            "attention.unscaled-output",
            "not divided by sqrt(d_k): output of row 3",
            source=_WORKED,
            expected=[0.788058, 0.788058],
            got=lambda: _outputs(_X, scaled=False)[2],
        ),
        equal(
            "attention.changed-weights",
            "row 2 changed to [0,2]: all weights",
            source=_WORKED,
            expected=[
                [0.401112, 0.197776, 0.401112],
                [0.045388, 0.767918, 0.186694],
                [0.197776, 0.401112, 0.401112],
            ],
            got=lambda: _weights(_CHANGED),
        ),
        equal(
            "attention.changed-outputs",
            "row 2 changed to [0,2]: all outputs",
            source=_WORKED,
            expected=[[0.802224, 0.796664], [0.232082, 1.722530], [0.598888, 1.203336]],
            got=lambda: _outputs(_CHANGED),
        ),
        *(_variance_claim(d_k, scaled) for d_k in (16, 64, 256) for scaled in (False, True)),
        *(
            at_most(
                f"attention.paths-{name}",
                f"fused attention and explicit weights give the same, {name}",
                source="both are eq. 1",
                limit=1e-5,
                got=partial(_difference_of_paths, name),
            )
            for name in ("unmasked", "padded", "causal")
        ),
    )


def _variance_claim(d_k: int, scaled: bool) -> Claim:
    expected = 1.0 if scaled else float(d_k)
    return near(
        f"attention.variance-{d_k}{'' if scaled else '-unscaled'}",
        f"variance of scores at d_k = {d_k}, q and k of unit variance, {'scaled' if scaled else 'not scaled'}",
        source="section 3.2.1, footnote 4",
        expected=expected,
        got=partial(_variance_of_scores, d_k, scaled),
        within=0.05 * expected,
    )


def _plain_layer(width: int, scaled: bool = True) -> SelfAttention:
    """One head of `width` in double precision whose four projections leave their input as it is."""
    layer = SelfAttention(TransformerConfig(d_model=width, n_heads=1, scale_attention=scaled), RandomSource())
    layer = layer.double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        for matrix in (*layer.projections(), layer.out.weight):
            matrix.copy_(torch.eye(width))
    return layer


def _weights(rows: list[list[float]], scaled: bool = True) -> list[list[float]]:
    maps: list[Tensor] = []
    with torch.no_grad():
        _plain_layer(len(rows[0]), scaled)(torch.tensor([rows], dtype=torch.float64), maps=maps)
    return _six_digits(maps[0][0, 0])


def _outputs(rows: list[list[float]], scaled: bool = True) -> list[list[float]]:
    with torch.no_grad():
        return _six_digits(_plain_layer(len(rows[0]), scaled)(torch.tensor([rows], dtype=torch.float64))[0])


def _six_digits(matrix: Tensor) -> list[list[float]]:
    return [[round(number, 6) for number in row] for row in matrix.tolist()]


def _variance_of_scores(d_k: int, scaled: bool) -> float:
    """From the weights themselves: with two keys, log(w_1 / w_2) is the difference of two scores, of twice their
    variance."""
    generator = torch.Generator().manual_seed(d_k)
    q = torch.randn(DRAWS, 1, 1, d_k, generator=generator, dtype=torch.float64)
    k = torch.randn(DRAWS, 1, 2, d_k, generator=generator, dtype=torch.float64)
    maps: list[Tensor] = []
    with torch.no_grad():
        _plain_layer(d_k, scaled).mix(q, k, k, maps=maps)
    logarithms = maps[0].log()
    return float((logarithms[..., 0] - logarithms[..., 1]).var()) / 2


def _difference_of_paths(name: str) -> float:
    generator = torch.Generator().manual_seed(3)
    layer = SelfAttention(TransformerConfig(d_model=32, n_heads=4), RandomSource()).eval()
    x = torch.randn(3, 6, 32, generator=generator)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        mask = torch.ones(3, 6, dtype=torch.bool)
        mask[1, 4:], mask[2, :] = False, False
        given = mask[:, None, None] if name == "padded" else None
        fused = layer(x, mask=given, causal=name == "causal")
        explicit = layer(x, mask=given, causal=name == "causal", maps=[])
        return float((fused - explicit).abs().max())


CLAIMS: tuple[Claim, ...] = _claims()
