"""Rows of other families are as large, or as costly, as the base beside them, at every scale."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablations.selection import choose
from repro.config import RunConfig
from repro.config.baselines import ConvS2SConfig, GnmtConfig
from repro.models.build import build_model
from repro.models.seq2seq import count_parameters

SMALL = ("smoke", "multi30k-cpu", "multi30k")
FAMILIES = ("lstm", "lstm-attention", "gnmt", "convs2s")


def rows(scale: str) -> dict[str, RunConfig]:
    return {row.variant.id: row.config for row in choose("baselines", scale).rows}


def size(config: RunConfig) -> int:
    return count_parameters(build_model(config.model, config.data.vocabulary_size, 0, "meta"))


def cost(config: RunConfig) -> int:
    """Forward FLOPs of a pair of 25 pieces a side, as torch's own counter sees them."""
    model = build_model(config.model, config.data.vocabulary_size, 0, "meta")
    src = torch.ones(1, 25, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model.project(model(src, torch.ones(1, 25, dtype=torch.bool, device="meta"), src))
    return counter.get_total_flops()


@pytest.mark.parametrize("scale", SMALL)
def test_each_family_has_the_parameters_of_the_base_within_three_percent(scale: str) -> None:
    table = rows(scale)
    for family in FAMILIES:
        assert size(table[f"baseline.{family}"]) == pytest.approx(size(table["base"]), rel=0.03), family


@pytest.mark.parametrize("scale", SMALL)
def test_each_family_has_the_flops_of_the_base_within_five_percent(scale: str) -> None:
    table = rows(scale)
    for family in FAMILIES:
        assert cost(table[f"baseline.{family}-flops"]) == pytest.approx(cost(table["base"]), rel=0.05), family


def test_at_paper_scale_the_sizes_are_the_published_ones() -> None:
    table = rows("paper")
    gnmt, convs2s = table["baseline.gnmt"].model, table["baseline.convs2s"].model
    assert isinstance(gnmt, GnmtConfig)
    assert (gnmt.n_layers, gnmt.d_hidden, gnmt.dropout) == (8, 1024, 0.2)  # Wu et al. 2016, section 8
    assert isinstance(convs2s, ConvS2SConfig)
    layers = [(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2  # Gehring et al. 2017, section 4.2
    assert (list(convs2s.encoder), list(convs2s.decoder), convs2s.d_embedding) == (layers, layers, 768)


@pytest.mark.parametrize("scale", SMALL)
def test_every_family_sees_the_batches_the_loss_and_the_decoding_of_the_base(scale: str) -> None:
    table = rows(scale)
    own = {"learning_rate_factor", "clip_norm"}  # the optimizer settings that suit a family
    base = {key: value for key, value in table["base"].document()["train"].items() if key not in own}
    for id, config in table.items():
        document = config.document()
        assert {key: value for key, value in document["train"].items() if key not in own} == base, id
        assert (config.data, config.decode) == (table["base"].data, table["base"].decode), id
