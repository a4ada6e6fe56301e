"""What `ablate bench growth` grows is one size at a time, and its ratios are to the same base."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np
import pytest
import torch

from ablations.cli import run
from repro.bench import growth, shapes
from repro.bench.growth import dimensions, full_batch, measure
from repro.bench.shapes import SHAPES, Shape
from repro.config import TransformerConfig
from repro.data.pieces import EOS, PAD
from repro.errors import UsageError

TINY = Shape(
    name="tiny",
    model=TransformerConfig(n_layers=2, d_model=16, d_ff=64, n_heads=4),
    vocabulary_size=96,
    batch_tokens=48,
    device_batch_tokens=48,
    src=6.0,
    tgt=6.0,
    batches=1,
)
SIZES = {"width": [8, 16, 32, 64], "depth": [1, 2, 4, 8], "length": [3, 6, 12, 24], "vocabulary": [48, 96, 192, 384]}
MULTIPLY_ADDS = {
    "width": [4_928, 17_024, 62_720, 240_128],
    "depth": [9_280, 17_024, 32_512, 63_488],
    "length": [16_448, 17_024, 18_176, 20_480],
    "vocabulary": [16_256, 17_024, 18_560, 21_632],
}
"""By hand, of a forward pass a target token where source and target have n pieces each: 28 d_model^2 a layer (12 in the
encoder, 2 for the memory's keys and values, 14 in the decoder), 6 n d_model a layer in attention, and d_model a piece
of the vocabulary. The base: 2 * 28 * 16^2 + 2 * 6 * 6 * 16 + 16 * 96 = 14,336 + 1,152 + 1,536 = 17,024."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step a round, and no size left out however busy the machine is."""
    monkeypatch.setattr(growth, "TURN", 0.0)
    monkeypatch.setattr(growth, "LONGEST_STEP", 1e9)
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)


@pytest.fixture
def document(quick: None) -> dict[str, Any]:
    return measure(TINY, rounds=2)


@pytest.mark.parametrize("base", [TINY, *SHAPES.values()], ids=lambda shape: shape.name)
def test_each_dimension_grows_alone_and_heads_keep_their_width(base: Shape) -> None:
    own = {"width": base.model.d_model, "depth": base.model.n_layers, "vocabulary": base.vocabulary_size}
    for name, grown in dimensions(base).items():
        for size, shape in grown.items():
            model = shape.model
            assert model.d_ff == 4 * model.d_model
            assert model.d_model // model.n_heads == base.model.d_model // base.model.n_heads
            found = {"width": model.d_model, "depth": model.n_layers, "vocabulary": shape.vocabulary_size}
            assert found == own | ({name: size} if name in own else {})
            assert shape.src / shape.tgt == pytest.approx(base.src / base.tgt)
            assert shape.tgt == pytest.approx(size if name == "length" else base.tgt, abs=0.5)
            assert shape.batch_tokens == base.batch_tokens
    assert {name: list(grown) for name, grown in dimensions(TINY).items()} == SIZES


@pytest.mark.parametrize("src", [6.0, 9.0])
def test_a_batch_is_full_of_sentences_of_one_length(src: float) -> None:
    for size, shape in dimensions(dataclasses.replace(TINY, src=src))["length"].items():
        batch = full_batch(shape)
        assert batch.tgt_out.shape[1] == size
        assert batch.src.shape[1] == pytest.approx(src * size / 6, abs=0.5)
        longest = max(batch.src.shape[1], size)
        assert 48 - longest < len(batch.src) * longest <= 48
        assert not any((side == PAD).any() for side in (batch.src, batch.tgt_in, batch.tgt_out))
        assert all((side[:, -1] == EOS).all() for side in (batch.src, batch.tgt_out))
        assert (batch.src_lengths == batch.src.shape[1]).all()
        assert (batch.tgt_lengths == size).all()


def test_the_counted_flops_are_those_by_hand(document: dict[str, Any]) -> None:
    assert [grown["dimension"] for grown in document["dimensions"]] == list(SIZES)
    for grown in document["dimensions"]:
        name = grown["dimension"]
        assert [entry["size"] for entry in grown["sizes"]] == SIZES[name]
        counted = [2 * 3 * number for number in MULTIPLY_ADDS[name]]
        assert [entry["flops_per_token"] for entry in grown["sizes"]] == counted
        assert [entry["counted"] for entry in grown["sizes"]] == pytest.approx([n / counted[1] for n in counted])
        fitted = np.polyfit(np.log(SIZES[name]), np.log(counted), 1)[0]
        assert grown["counted_power"] == pytest.approx(fitted)


def test_ratios_rates_and_powers_follow_from_the_seconds_of_the_rounds(document: dict[str, Any]) -> None:
    assert (document["shape"], document["rounds"], document["device"]) == ("tiny", 2, "cpu")
    bases = [grown["sizes"][1]["seconds_per_token"] for grown in document["dimensions"]]
    assert all(seconds == bases[0] for seconds in bases)
    for grown in document["dimensions"]:
        assert grown["left_out"] == []
        assert grown["sizes"][1]["measured"] == 1.0
        for entry in grown["sizes"]:
            seconds = entry["seconds_per_token"]
            assert len(seconds) == 2
            assert entry["measured"] == pytest.approx(np.mean(np.divide(seconds, bases[0])))
            assert entry["flops_per_second"] * np.mean(seconds) == pytest.approx(entry["flops_per_token"])
        rounds = np.log([entry["seconds_per_token"] for entry in grown["sizes"]])
        slopes = np.polyfit(np.log(SIZES[grown["dimension"]]), rounds, 1)[0]
        power = grown["power"]
        assert power["value"] == pytest.approx(slopes.mean())
        assert power["high"] - power["low"] == pytest.approx(2 * 12.7062 * abs(slopes[0] - slopes[1]) / 2)


def test_sizes_that_would_take_too_long_are_left_out_and_named(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LONGEST_STEP", 0.0)
    for grown in measure(TINY, rounds=2)["dimensions"]:
        sizes = SIZES[grown["dimension"]]
        assert [entry["size"] for entry in grown["sizes"]] == sizes[:2]
        assert grown["left_out"] == sizes[2:]


def test_the_command_prints_one_document_and_keeps_to_one_core_no_longer_than_it_measures(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    assert run(["bench", "growth", "--base", "tiny", "--rounds", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["base"] == {"width": 16, "depth": 2, "length": 6, "vocabulary": 96, "d_ff": 64, "n_heads": 4}
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)


def test_the_tables_have_every_size_and_every_power(
    quick: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "LONGEST_STEP", 0.0)
    assert run(["bench", "growth", "--base", "tiny", "--rounds", "2"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["tiny", "on", "cpu,", "fp32,", "2", "rounds"]
    expected = [[name, str(size)] for name, sizes in SIZES.items() for size in sizes]
    assert [row[:2] for row in rows[2:18]] == expected
    assert [row[2:] == ["left", "out"] for row in rows[2:18]] == 4 * [False, False, True, True]
    assert [row[0] for row in rows[19:]] == list(SIZES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--base", "nix"], "no shape is called 'nix'"), (["--rounds", "1"], "greater than or equal to 2")],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "growth", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


def test_a_shape_that_cannot_be_halved_is_refused() -> None:
    single = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, n_layers=1))
    with pytest.raises(UsageError, match="n_layers"):
        measure(single, rounds=2)
