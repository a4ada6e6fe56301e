"""What `ablate bench` times is the same work for everyone, and what it tells adds up."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch

from ablations.cli import run
from ablations.scales import SCALES
from repro.accounting.flops import Lengths, train_flops
from repro.bench import shapes
from repro.bench.parts import PARTS
from repro.bench.products import products
from repro.bench.shapes import SHAPES, Shape
from repro.bench.systems import SYSTEMS, build
from repro.bench.train import measure
from repro.config import TransformerConfig
from repro.models.seq2seq import count_parameters

CPU = torch.device("cpu")
TINY = Shape(
    name="tiny",
    model=TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4, dropout=0.0),
    vocabulary_size=50,
    batch_tokens=60,
    device_batch_tokens=60,
    src=6.0,
    tgt=7.0,
    batches=2,
)


@pytest.mark.parametrize("name", ["smoke", "multi30k-cpu"])
def test_a_shape_that_bears_a_scales_name_is_that_scale(name: str) -> None:
    base, shape = SCALES[name].base, SHAPES[name]
    sizes = ("n_layers", "d_model", "d_ff", "n_heads", "dropout", "attention_dropout", "activation_dropout", "norm")
    assert all(getattr(base.model, size) == getattr(shape.model, size) for size in sizes)
    assert (base.data.vocabulary_size, base.train.batch_tokens) == (shape.vocabulary_size, shape.batch_tokens)
    assert (shape.src, shape.tgt) == pytest.approx((SCALES[name].statistics.src, SCALES[name].statistics.tgt), rel=0.01)


def test_the_paper_shape_is_the_papers() -> None:
    base = SCALES["paper"].base
    assert SHAPES["base"].model == base.model
    assert (SHAPES["base"].vocabulary_size, SHAPES["base"].device_batch_tokens) == (40_960, base.train.batch_tokens)


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_drawn_text_has_the_lengths_of_its_shape_and_the_same_bits_every_time(name: str) -> None:
    shape = SHAPES[name]
    text, again = shape.text(), shape.text()
    assert float(text.src_lengths.mean()) + 1 == pytest.approx(shape.src, rel=0.03)
    assert float(text.tgt_lengths.mean()) + 1 == pytest.approx(shape.tgt, rel=0.03)
    assert (text.pieces["tgt"] == again.pieces["tgt"]).all()
    assert text.pieces["src"].min() >= 4
    assert text.pieces["src"].max() < shape.vocabulary_size


@pytest.mark.parametrize("options", [{}, {"d_k": 3, "d_v": 5}])
def test_the_products_of_the_ceiling_are_all_linear_layers_of_the_step(options: dict[str, Any]) -> None:
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4, **options)
    found = products(config, 50, 11, 13)
    counted = train_flops(config, 50, Lengths.rectangle(1, 11, 13))
    total = sum(6 * rows * wide * out * times for (rows, wide, out), times in found.items())
    assert total == counted.total - counted.attention


@pytest.mark.parametrize("name", list(SYSTEMS))
def test_every_system_trains_the_same_number_of_parameters_and_learns(name: str) -> None:
    system: Any = build(name, TINY, CPU)
    ours: Any = build("ours", TINY, CPU)
    model = system.trainer.model if name == "ours" else system.model
    assert count_parameters(model) == count_parameters(ours.trainer.model)
    batch = TINY.round("cpu")[0]
    losses = system.steps([batch] * 40)
    assert losses[-1] < losses[0]


def test_shares_and_parts_add_up() -> None:
    document = measure(TINY, ["ours", "torch"], CPU, rounds=2)
    ours, peer = document["systems"]
    assert ours["times_slower"] == 1.0
    assert peer["target_tokens_per_second"] * peer["times_slower"] == pytest.approx(ours["target_tokens_per_second"])
    assert all(len(entry["seconds"]) == 2 and entry["mfu"] is None for entry in document["systems"])
    parts = document["parts"]
    assert set(parts) == {*PARTS, "data"}
    assert sum(parts[part] for part in PARTS) == pytest.approx(ours["seconds_per_step"])
    assert all(parts[part] > 0 for part in PARTS)


def test_the_command_prints_one_document_and_keeps_to_one_core_no_longer_than_it_measures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "tiny", TINY)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    assert run(["bench", "train", "--shape", "tiny", "--system", "ours,torch", "--rounds", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [shape["shape"] for shape in told["shapes"]] == ["tiny"]
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--shape", "nix"], "no shape is called 'nix'"), (["--system", "nix"], "no system is called 'nix'")],
)
def test_what_is_not_known_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", *arguments]) == 2
    assert words in capsys.readouterr().err
