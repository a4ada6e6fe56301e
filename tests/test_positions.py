"""Positional encodings against the formulas of the paper and of its authors' first code."""

from __future__ import annotations

import math

import pytest
import torch

from repro.config import TransformerConfig
from repro.errors import CheckError
from repro.models.build import build_model
from repro.models.positions import SinusoidalPositions, build_positions, sinusoids


def test_interleaved_sinusoids_follow_the_papers_formula() -> None:
    d_model = 12
    table = sinusoids(5001, d_model)
    for pos in (0, 1, 7, 100, 5000):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            assert float(table[pos, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[pos, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_concatenated_sinusoids_follow_the_first_code() -> None:
    d_model = 12
    half = d_model // 2
    table = sinusoids(101, d_model, "concatenated")
    for pos in (0, 1, 100):
        for i in range(half):
            angle = pos * math.exp(-i * math.log(10000) / (half - 1))
            assert float(table[pos, i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(table[pos, half + i]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_narrowest_sinusoids_are_finite() -> None:
    for layout in ("interleaved", "concatenated"):
        assert bool(sinusoids(3, 2, layout).isfinite().all())


@pytest.mark.parametrize("shift", [1, 5, 40])
def test_a_shift_of_positions_is_one_rotation_everywhere(shift: int) -> None:
    d_model, length = 32, 600
    rotation = torch.zeros(d_model, d_model, dtype=torch.float64)
    for i in range(d_model // 2):
        angle = shift / 10000 ** (2 * i / d_model)
        rotation[2 * i, 2 * i], rotation[2 * i, 2 * i + 1] = math.cos(angle), math.sin(angle)
        rotation[2 * i + 1, 2 * i], rotation[2 * i + 1, 2 * i + 1] = -math.sin(angle), math.cos(angle)
    table = sinusoids(length + shift, d_model).double()
    torch.testing.assert_close(table[:length] @ rotation.t(), table[shift:], atol=1e-5, rtol=0)


def test_sinusoids_serve_any_length_and_start() -> None:
    positions = SinusoidalPositions(8, "interleaved")
    whole = sinusoids(3000, 8)
    assert torch.equal(positions(torch.empty(1, 10, 8)), whole[:10])
    assert torch.equal(positions(torch.empty(1, 3000, 8)), whole)
    assert torch.equal(positions(torch.empty(2, 1, 8), start=77), whole[77:78])


def test_a_table_first_needed_while_decoding_serves_training_too() -> None:
    model = build_model(TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2), 20, seed=1)
    src = torch.tensor([[4, 5, 3]])
    with torch.inference_mode():
        model(src, src != 0, src)
    model(src, src != 0, src).sum().backward()


def test_a_sentence_past_the_learned_positions_is_an_error_that_names_the_knob() -> None:
    config = TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2, positions="learned", max_positions=6)
    model = build_model(config, 20, seed=1)
    fits, long = torch.full((1, 6), 5), torch.full((1, 7), 5)
    model(fits, fits != 0, fits)
    for src, tgt in ((long, fits), (fits, long)):
        with pytest.raises(CheckError, match=r"model\.max_positions: a sentence of 7 pieces.*made for 6"):
            model(src, src != 0, tgt)
    assert model.max_positions == 6


def test_learned_positions_are_trained_one_table_a_side() -> None:
    config = TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2, positions="learned", max_positions=6)
    model = build_model(config, 20, seed=1)
    src, tgt = torch.full((1, 4), 5), torch.full((1, 3), 5)
    model(src, src != 0, tgt).square().sum().backward()
    tables = [p for name, p in model.named_parameters() if "positions" in name]
    assert [table.shape for table in tables] == [(6, 8), (6, 8)]
    used = [int((table.grad.abs().sum(1) > 0).sum()) for table in tables if table.grad is not None]
    assert used == [4, 3]


def test_without_positions_there_is_no_table() -> None:
    assert build_positions(TransformerConfig(positions="none")) is None
    assert build_model(TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2), 20, seed=1).max_positions is None
