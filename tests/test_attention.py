"""Attention against hand-computed vectors and an element-by-element computation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from repro.config import TransformerConfig
from repro.models.attention import CrossAttention, SelfAttention, attend, attention_weights, key_mask
from repro.models.dropout import RandomSource

ROWS = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
ROOT_HALF = 1 / math.sqrt(2)


def by_hand(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights and outputs of [length, width] matrices, one number at a time."""
    weights = torch.zeros(len(q), len(k))
    for i, query in enumerate(q.tolist()):
        scores = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in k.tolist()]
        powers = [math.exp(s) if mask is None or bool(mask[i, j]) else 0.0 for j, s in enumerate(scores)]
        for j, power in enumerate(powers):
            weights[i, j] = power / sum(powers) if sum(powers) else 0.0
    return weights, weights @ v


def assert_near(got: Tensor, expected: list[list[float]] | list[float], tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(got, torch.tensor(expected), atol=tolerance, rtol=0)


def test_the_worked_example_has_its_weights_and_outputs() -> None:
    x = torch.tensor(ROWS)
    assert_near(attention_weights(x, x, scale=ROOT_HALF)[2], [0.248255, 0.248255, 0.503490])
    assert_near(
        attend(x[None], x[None], x[None], scale=ROOT_HALF)[0],
        [[0.802224, 0.598888], [0.598888, 0.802224], [0.751745, 0.751745]],
    )


def test_without_scaling_the_worked_example_is_sharper() -> None:
    x = torch.tensor(ROWS)
    assert_near(attention_weights(x, x, scale=1.0)[2], [0.211942, 0.211942, 0.576117])
    assert_near(attend(x[None], x[None], x[None], scale=1.0)[0, 2], [0.788058, 0.788058])


def test_changing_one_row_of_the_example_changes_what_it_must() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    assert_near(
        attention_weights(x, x, scale=ROOT_HALF),
        [[0.401112, 0.197776, 0.401112], [0.045388, 0.767918, 0.186694], [0.197776, 0.401112, 0.401112]],
    )
    assert_near(
        attend(x[None], x[None], x[None], scale=ROOT_HALF)[0],
        [[0.802224, 0.796664], [0.232082, 1.722530], [0.598888, 1.203336]],
    )


@pytest.mark.parametrize("d_k", [4, 64, 256])
def test_scaled_scores_have_unit_variance_at_every_width(d_k: int) -> None:
    generator = torch.Generator().manual_seed(d_k)
    q, k = torch.randn(20000, d_k, generator=generator), torch.randn(20000, d_k, generator=generator)
    raw = (q * k).sum(-1)
    assert float(raw.var()) == pytest.approx(d_k, rel=0.05)
    config = TransformerConfig(d_model=2 * d_k, n_heads=2)
    scaled, plain = (
        SelfAttention(c, RandomSource())
        for c in (config, TransformerConfig(d_model=2 * d_k, n_heads=2, scale_attention=False))
    )
    assert float((scaled.scale * raw).var()) == pytest.approx(1.0, rel=0.05)
    assert plain.scale == 1.0


@pytest.mark.parametrize(("d_k", "d_v"), [(4, 4), (2, 5), (6, 3)])
def test_both_paths_equal_an_element_by_element_computation(d_k: int, d_v: int) -> None:
    generator = torch.Generator().manual_seed(d_k)
    q, k, v = (torch.randn(n, w, generator=generator) for n, w in ((3, d_k), (5, d_k), (5, d_v)))
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    weights, outputs = by_hand(q, k, v, 0.7, mask)
    torch.testing.assert_close(attention_weights(q, k, scale=0.7, mask=mask), weights)
    torch.testing.assert_close(attend(q[None], k[None], v[None], scale=0.7, mask=mask[None])[0], outputs)


def test_causal_attention_sees_no_later_position() -> None:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    weights, outputs = by_hand(x, x, x, 1.0, torch.ones(4, 4, dtype=torch.bool).tril())
    torch.testing.assert_close(attention_weights(x, x, scale=1.0, causal=True), weights)
    torch.testing.assert_close(attend(x[None], x[None], x[None], scale=1.0, causal=True)[0], outputs)


@pytest.mark.parametrize("explicit", [False, True])
def test_a_position_that_may_attend_to_nothing_gets_zeros_and_finite_gradients(explicit: bool) -> None:
    q = torch.randn(2, 1, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])[:, None, None]
    out = attention_weights(q, q, scale=1.0, mask=mask) @ q if explicit else attend(q, q, q, scale=1.0, mask=mask)
    out.sum().backward()
    assert out[1].abs().max() == 0
    assert q.grad is not None
    assert bool(q.grad.isfinite().all())


def test_a_batch_without_padding_needs_no_mask() -> None:
    assert key_mask(torch.ones(2, 3, dtype=torch.bool)) is None
    mask = torch.tensor([[True, False]])
    shaped = key_mask(mask)
    assert shaped is not None
    assert shaped.shape == (1, 1, 1, 2)


@pytest.mark.parametrize("attention_bias", [True, False])
def test_heads_are_split_projected_and_joined_as_the_paper_says(attention_bias: bool) -> None:
    config = TransformerConfig(d_model=6, n_heads=2, d_k=4, d_v=3, attention_bias=attention_bias)
    layer = SelfAttention(config, RandomSource())
    x = torch.randn(2, 5, 6)
    w_q, w_k, w_v = layer.projections()
    biases = torch.split(layer.qkv.bias, [8, 8, 6]) if attention_bias else (torch.tensor(0.0),) * 3
    for row in range(2):
        q, k, v = (x[row] @ w.t() + b for w, b in zip((w_q, w_k, w_v), biases, strict=True))
        heads = [
            by_hand(q[:, 4 * h : 4 * h + 4], k[:, 4 * h : 4 * h + 4], v[:, 3 * h : 3 * h + 3], 0.5)[1] for h in (0, 1)
        ]
        expected = torch.cat(heads, dim=1) @ layer.out.weight.t()
        if attention_bias:
            expected = expected + layer.out.bias
        torch.testing.assert_close(layer(x)[row], expected)


def test_cross_attention_equals_self_attention_with_the_same_weights_on_its_own_input() -> None:
    config = TransformerConfig(d_model=8, n_heads=2, d_k=3, d_v=5)
    own, cross = SelfAttention(config, RandomSource()), CrossAttention(config, RandomSource())
    with torch.no_grad():
        for to, source in zip(cross.projections(), own.projections(), strict=True):
            to.copy_(source)
        cross.q.bias.copy_(own.qkv.bias[:6])
        cross.kv.bias.copy_(own.qkv.bias[6:])
        cross.out.load_state_dict(own.out.state_dict())
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(cross(x, *cross.memory(x)), own(x))


def test_asking_for_weights_changes_no_output() -> None:
    layer = SelfAttention(TransformerConfig(d_model=8, n_heads=2), RandomSource())
    x, maps = torch.randn(3, 4, 8), []
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)[:, None, None]
    torch.testing.assert_close(layer(x, mask=mask, maps=maps), layer(x, mask=mask))
    assert maps[0].shape == (3, 2, 4, 4)
    torch.testing.assert_close(maps[0][:2].sum(-1), torch.ones(2, 2, 4))
    assert maps[0][1, ..., 2:].abs().max() == 0


def test_attention_dropout_falls_on_the_weights_and_only_in_training() -> None:
    layer = SelfAttention(TransformerConfig(d_model=8, n_heads=2, attention_dropout=0.5), RandomSource())
    x = torch.randn(3, 4, 8)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), layer(x))
