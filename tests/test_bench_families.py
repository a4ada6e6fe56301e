"""`ablate bench train --family` times the baselines that the table has, beside the same models by torch's modules."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablations.cli import run
from ablations.scales import SCALES
from ablations.tables import BASELINES
from repro.accounting.flops import Lengths, train_flops
from repro.bench import shapes
from repro.bench.families import FAMILIES, baseline, build, chosen, measure, peer, products
from repro.bench.shapes import SHAPES
from repro.config.baselines import BaselineConfig, BaselineFamily, resized, small
from repro.data.pieces import PAD, Batch
from repro.models.build import build_model
from repro.models.convs2s import NormedLinear
from repro.models.seq2seq import count_parameters

torch.set_num_threads(1)
CPU = torch.device("cpu")
SHORT = replace(SHAPES["smoke"], batches=1)
VOCABULARY = SHORT.vocabulary_size


def narrow(family: BaselineFamily) -> BaselineConfig:
    return replace(resized(small(family), d_hidden=24, d_embedding=16), dropout=0.0)


def padded() -> Batch:
    """A batch with padding on both sides."""
    batch = max(SHAPES["smoke"].round("cpu"), key=lambda batch: int((batch.src == PAD).sum()))
    assert (batch.src == PAD).any()
    assert (batch.tgt_out == PAD).any()
    return batch


@pytest.mark.parametrize("name", ["smoke", "multi30k-cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_at_a_shape_is_the_row_of_the_table_at_the_scale_of_that_name(
    family: BaselineFamily, name: str
) -> None:
    row = next(row for row in BASELINES if row.id == f"baseline.{family}").of(SCALES[name].base)
    ours: Any = build("ours", SHAPES[name], baseline(SHAPES[name], family), CPU)
    assert ours.trainer.config.model == row.model
    assert ours.trainer.config.train.clip_norm == row.train.clip_norm


def parameters_of(model: nn.Module) -> list[Tensor]:
    """In the order of the model's modules; of a weight normalised by torch what is ours: direction, gain, bias."""
    found: list[Tensor] = []
    for name, parameter in model.named_parameters():
        found.append(parameter)
        if name.endswith("original1"):
            found[-3:] = reversed(found[-3:])
    return [found[1], found[0], *found[2:]]  # ours has the table of vectors before the softmax's bias


def laid_out(parameter: Tensor, theirs: Tensor) -> Tensor:
    """`parameter`, laid out as `theirs`: torch's convolutions have their kernel last."""
    if theirs.dim() == 3 and theirs.shape[2] > 1:
        width, d_in, kernel = theirs.shape
        return parameter.view(width, kernel, d_in).transpose(1, 2)
    return parameter.view_as(theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_peer_of_a_family_is_the_same_model_with_the_same_weights(family: BaselineFamily) -> None:
    config, batch = narrow(family), padded()
    ours, theirs = build_model(config, VOCABULARY, 1), peer(config, VOCABULARY, packed=True)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        for mine, other in zip(ours.parameters(), parameters_of(theirs), strict=True):
            other.copy_(laid_out(mine, other))
        expected = ours.project(ours(batch.src, batch.src_mask, batch.tgt_in))
        got = theirs(batch)
    real = batch.tgt_out != PAD
    torch.testing.assert_close(got[real], expected[real], atol=1e-4, rtol=1e-4)
    assert count_parameters(theirs) == count_parameters(ours)
    assert any(isinstance(module, NormedLinear) for module in ours.modules()) == (family == "convs2s")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_system_of_a_family_learns(family: BaselineFamily) -> None:
    batch = SHORT.round("cpu")[0]
    for name in chosen(family, []):
        system = build(name, SHORT, narrow(family), CPU)
        losses = system.steps([batch] * 20)
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_products_of_the_ceiling_are_all_but_the_attentions(family: BaselineFamily) -> None:
    config, batch = narrow(family), padded()
    whole, steps, states = products(config, VOCABULARY, [batch])
    counted = train_flops(config, VOCABULARY, Lengths.of(batch.src_lengths, batch.tgt_lengths))
    total = sum(6 * rows * wide * out * times for (rows, wide, out), times in (whole + states).items())
    assert total == counted.total - counted.attention
    assert all(rows <= len(batch.src) for rows, _, _ in steps)
    of_steps, of_states = (
        sum(rows * wide * out * times for (rows, wide, out), times in found.items()) for found in (steps, states)
    )
    assert of_steps == of_states
    assert bool(states) == (family != "convs2s")


@pytest.mark.parametrize(("family", "systems"), [("lstm", 3), ("convs2s", 2)])
def test_ratios_and_shares_add_up(family: BaselineFamily, systems: int) -> None:
    document = measure(SHORT, family, chosen(family, []), CPU, rounds=2)
    ours, *peers = document["systems"]
    assert (document["family"], document["shape"], len(peers) + 1) == (family, "smoke", systems)
    for entry in peers:
        assert len(entry["seconds"]) == 2
        assert entry["seconds_per_step"] == pytest.approx(ours["seconds_per_step"] * entry["times_slower"])
        assert entry["share_of_products"] * entry["times_slower"] == pytest.approx(ours["share_of_products"])


def test_the_command_tells_each_family_at_each_shape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shapes.SHAPES, "smoke", SHORT)
    arguments = ["bench", "train", "--family", "gnmt,lstm", "--shape", "smoke", "--system", "ours,torch"]
    assert run([*arguments, "--rounds", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["shapes"]
    assert [(entry["shape"], entry["family"]) for entry in told] == [("smoke", "lstm"), ("smoke", "gnmt")]
    assert run([*arguments, "--rounds", "1"]) == 0
    table = capsys.readouterr().out
    assert "smoke, gnmt on" in table
    assert "of products" in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--family", "nix"], "no family is called 'nix'"),
        (["--family", "lstm,convs2s", "--system", "ours,torch-padded"], "no system of convs2s is called"),
        (["--family", "lstm", "--system", "marian"], "no system of lstm is called 'marian'"),
    ],
)
def test_what_is_not_known_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "choose from" in told
