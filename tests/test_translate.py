"""Translating lines: order, blank lines, long lines, batches."""

from __future__ import annotations

import random

import pytest
import torch
from decoding_toys import Scripted, ToyRecurrent

from repro.config import DecodeConfig, TransformerConfig
from repro.data.pieces import EOS, UNK
from repro.decoding.translate import batches_by_length, translate_lines
from repro.errors import CheckError
from repro.models.build import build_model


class Words:
    """A vocabulary of the words w4, w5, ...; any other is unknown."""

    def encode(self, lines: list[str]) -> list[list[int]]:
        return [[self._piece(word) for word in line.split(" ") if word] for line in lines]

    def _piece(self, word: str) -> int:
        return int(word[1:]) if word[0] == "w" and word[1:].isdigit() else UNK

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{piece}" for piece in ids)


def one_hot(piece: int, size: int = 40) -> list[float]:
    return [float(index == piece) for index in range(size)]


def echo(times: int) -> Scripted:
    """Says the first piece of the source `times` times."""
    return Scripted(lambda first, prefix: one_hot(EOS if len(prefix) == times else first))


def test_output_lines_stand_in_the_order_of_the_input():
    lines = ["w5", "w6 w6 w6 w6", "w7 w7", "w8 w8 w8 w8 w8 w8 w8", "w9"]
    found = translate_lines(echo(2), Words(), lines, DecodeConfig(beam=1, batch_tokens=32))
    assert found.lines == ["w5 w5", "w6 w6", "w7 w7", "w8 w8", "w9 w9"]
    assert [hypothesis.ids[0] for hypothesis in found.hypotheses] == [5, 6, 7, 8, 9]


def test_blank_lines_stay_in_place_and_never_reach_the_model():
    model = echo(1)
    found = translate_lines(model, Words(), ["", "w5", " \t ", "w6", "　\u2028", ""], DecodeConfig(beam=1))
    assert found.lines == ["", "w5", "", "w6", "", ""]
    assert found.hypotheses[0] is None
    assert sum(state.rows_seen[0] for state in model.states) == 2
    nothing = translate_lines(model, Words(), ["", ""], DecodeConfig())
    assert (nothing.lines, nothing.capped_share, nothing.unknown_share) == (["", ""], 0.0, 0.0)
    assert translate_lines(model, Words(), [], DecodeConfig()).lines == []


def test_the_batch_size_changes_memory_only():
    rng = random.Random(4)
    lines = [" ".join(f"w{rng.randrange(4, 60)}" for _ in range(rng.randint(1, 25))) for _ in range(30)]
    lines[7] = ""
    model = ToyRecurrent(60, seed=6)
    results = [
        translate_lines(model, Words(), lines, DecodeConfig(extra_length=10, batch_tokens=size))
        for size in (1, 300, 100_000)
    ]
    for found in results[1:]:
        assert found.lines == results[0].lines
        for one, other in zip(found.hypotheses, results[0].hypotheses, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                assert one.score == pytest.approx(other.score, abs=1e-4)


def test_shares_of_cut_lines_and_unknown_pieces_are_reported():
    model = Scripted(lambda first, prefix: one_hot(EOS if first == 5 and prefix else 7))
    found = translate_lines(model, Words(), ["w5 x y", "", "w6", "w8", "w9"], DecodeConfig(beam=2, extra_length=3))
    assert found.capped_share == 0.75
    assert found.unknown_share == 2 / 6
    assert found.lines[2] == "w7 w7 w7 w7"


def test_lines_longer_than_learned_positions_are_refused_before_anything_is_decoded():
    model = echo(1)
    model.max_positions = 6
    lines = ["w5", "w5 w5 w5 w5 w5", "", "w6 " * 6, "w6 " * 9]
    with pytest.raises(CheckError) as refusal:
        translate_lines(model, Words(), lines, DecodeConfig())
    assert "line 4 and 1 more: 7 pieces with the end mark" in str(refusal.value)
    assert "model.max_positions" in str(refusal.value)
    with pytest.raises(CheckError, match="line 1004 and 1 more"):
        translate_lines(model, Words(), lines, DecodeConfig(), first_line=1001)
    assert model.states == []
    assert translate_lines(model, Words(), lines[:3], DecodeConfig()).lines == ["w5", "w5", ""]


def test_a_real_model_with_learned_positions_uses_all_of_them_and_no_more():
    config = TransformerConfig(n_layers=1, d_model=8, d_ff=8, n_heads=2, positions="learned", max_positions=12)
    model = build_model(config, 30, seed=1)
    found = translate_lines(model, Words(), ["w5 " * 11, "w6"], DecodeConfig(beam=2))
    assert all(hypothesis.length <= 12 for hypothesis in found.hypotheses)
    with pytest.raises(CheckError, match="line 1: 13 pieces"):
        translate_lines(model, Words(), ["w5 " * 12], DecodeConfig(beam=2))


def test_a_line_of_five_thousand_words_is_translated_in_a_batch_of_its_own():
    model = ToyRecurrent(60, seed=3)
    lines = ["w5 w6", " ".join(["w7 w8"] * 2500), "w9"]
    config = DecodeConfig(beam=2, extra_length=5)
    found = translate_lines(model, Words(), lines, config)
    assert [next(batches_by_length([2, 5000, 1], config))] == [[1]]
    assert found.hypotheses[1].length > 0
    assert found.lines[::2] == translate_lines(model, Words(), lines[::2], config).lines


def test_batches_hold_each_sentence_once_within_their_bound_the_longest_first():
    rng = random.Random(1)
    lengths = [rng.randint(1, 120) for _ in range(500)] + [3000]
    config = DecodeConfig(beam=4, batch_tokens=2000)
    batches = list(batches_by_length(lengths, config))
    assert sorted(index for batch in batches for index in batch) == list(range(501))
    widths = [max(lengths[index] + 1 for index in batch) for batch in batches]
    assert widths == sorted(widths, reverse=True)
    assert all(len(batch) == 1 or len(batch) * width * 4 <= 2000 for batch, width in zip(batches, widths, strict=True))
    # Short sentences may be outgrown by what is generated: they do not fill a batch without end.
    assert max(len(batch) for batch in batches_by_length([1] * 5000, config)) <= 2000 // 4 // 16


def test_progress_is_told_line_by_line():
    told = []
    translate_lines(
        echo(1), Words(), ["w5", "", "w6 w6"], DecodeConfig(beam=1), progress=lambda done, of: told.append((done, of))
    )
    assert told == [(1, 2), (2, 2)]


def test_the_model_runs_where_it_is_told_to():
    found = translate_lines(ToyRecurrent(20, seed=1), Words(), ["w5"], DecodeConfig(), device=torch.device("cpu"))
    assert len(found.lines) == 1
