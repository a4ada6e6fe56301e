"""The tables are the paper's at its scale and relative everywhere else."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
import yaml

from ablations.scales import SCALES
from ablations.selection import Selection, choose
from ablations.tables import TABLE3, TABLES, table_name, variants_of
from repro.config import RunConfig, TransformerConfig
from repro.errors import UsageError

PAPER = resources.files("reports.records").joinpath("paper.yaml")
PUBLISHED = yaml.safe_load(PAPER.read_text(encoding="utf-8"))["table3"]["rows"]
KEYS = {
    "layers": "model.n_layers",
    "heads": "model.n_heads",
    "label_smoothing": "train.label_smoothing",
    "steps": "train.budget",
}


def ours(changes: dict[str, Any]) -> dict[str, Any]:
    return {KEYS.get(key, f"model.{key}"): value for key, value in changes.items()}


def changes(selection: Selection) -> dict[str, dict[str, Any]]:
    return {row.variant.id: dict(row.changes) for row in selection.rows}


def model(config: RunConfig) -> TransformerConfig:
    assert isinstance(config.model, TransformerConfig)
    return config.model


def test_table3_has_the_papers_rows_in_its_order() -> None:
    assert [variant.id for variant in TABLE3] == [row["id"] for row in PUBLISHED]
    assert len(TABLE3) == 20


def test_the_base_at_paper_scale_is_the_papers() -> None:
    base = choose("table3", "paper").base.document()
    for key, value in ours(PUBLISHED[0]["changes"]).items():
        group, name = key.split(".")
        assert base[group][name] == value, key


@pytest.mark.parametrize("row", PUBLISHED[1:], ids=lambda row: row["id"])
def test_a_row_at_paper_scale_changes_what_the_paper_says_and_nothing_else(row: dict[str, Any]) -> None:
    assert changes(choose("table3", "paper"))[row["id"]] == ours(row["changes"])


def test_the_groups_are_the_papers_letters() -> None:
    assert [variant.group for variant in TABLE3] == [row["id"].split(".")[0] for row in PUBLISHED]


@pytest.mark.parametrize("scale", SCALES)
def test_all_twenty_rows_differ_at_every_scale(scale: str) -> None:
    rows = choose("table3", scale).rows
    assert [row.same_as for row in rows] == [None] * 20
    assert len({row.config.hash() for row in rows}) == 20


def test_rows_are_relative_to_the_base_that_was_set() -> None:
    found = changes(choose("table3", "smoke", settings=["model.n_layers=9", "model.d_model=96", "model.d_ff=100"]))
    assert found["C.layers-third"] == {"model.n_layers": 3}
    assert found["C.layers-2third"] == {"model.n_layers": 6}
    assert found["C.layers-4third"] == {"model.n_layers": 12}
    assert found["C.ff-half"] == {"model.d_ff": 50}
    assert found["B.dk-quarter"] == {"model.d_k": 3}
    assert found["A.h1"] == {"model.n_heads": 1, "model.d_k": 96, "model.d_v": 96}


def test_fewer_than_one_layer_is_one() -> None:
    rows = {row.variant.id: row for row in choose("table3", "smoke", settings=["model.n_layers=1"]).rows}
    assert model(rows["C.layers-third"].config).n_layers == 1
    assert rows["C.layers-third"].same_as == "base"


def test_a_multiplied_dropout_stays_a_probability() -> None:
    rows = {row.variant.id: row for row in choose("table3", "smoke", settings=["model.dropout=0.4"]).rows}
    assert model(rows["D.dropout-double"].config).dropout == 0.8
    assert model(rows["big"].config).dropout < 1.0


def test_d_v_stays_when_d_k_shrinks() -> None:
    found = changes(choose("table3+scaling", "multi30k"))
    for id in ("B.dk-quarter", "B.dk-half", "scaling.dk-quarter", "scaling.dk-4x"):
        assert set(found[id]) == {"model.d_k"}


def test_scaling_crosses_the_divisor_with_d_k() -> None:
    rows = choose("scaling", "paper").rows
    seen = {(model(row.config).d_k, model(row.config).scale_attention) for row in rows}
    assert seen == {(d_k, scaled) for d_k in (16, 64, 256) for scaled in (True, False)}
    assert {(model(row.config).d_model, model(row.config).d_v) for row in rows} == {(512, 64)}


def test_positions_are_sinusoids_a_table_or_none() -> None:
    rows = choose("positions", "smoke").rows
    assert [model(row.config).positions for row in rows] == ["sinusoidal", "learned", "none"]


def test_the_demo_takes_rows_of_each_question() -> None:
    ids = [variant.id for variant in TABLES["demo"]]
    assert len(ids) >= 8
    assert {"base", "positions.none", "scaling.off"} <= set(ids)


def test_tables_are_joined_in_order_and_each_row_stands_once() -> None:
    ids = [variant.id for variant in variants_of("positions+table3+positions")]
    assert ids[:3] == ["base", "positions.learned", "positions.none"]
    assert len(ids) == len(set(ids)) == 22
    assert table_name("positions+table3+positions") == "positions+table3"


def test_rows_that_come_to_the_same_are_said_to_be_the_same() -> None:
    same = {row.variant.id: row.same_as for row in choose("table3+positions+scaling", "smoke").rows if row.same_as}
    assert same == {"positions.learned": "E.learned", "scaling.dk-quarter": "B.dk-quarter"}


def test_only_takes_rows_in_the_tables_order() -> None:
    rows = choose("table3", "smoke", only=["C.ff-half", "base"]).rows
    assert [row.variant.id for row in rows] == ["base", "C.ff-half"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"table": "tabel3"}, ["tabel3", "table3"]),
        ({"table": "table3+postions"}, ["postions", "positions"]),
        ({"only": ["A.h2"]}, ["A.h2", "A.h1"]),
        ({"only": []}, ["no variant"]),
        ({"scale": "smokey"}, ["smokey", "smoke"]),
        ({"settings": ["model.d_modle=4"]}, ["model.d_modle", "model.d_model"]),
        ({"settings": ["d_model"]}, ["key=value"]),
        ({"settings": ["=3"]}, ["key=value"]),
        ({"settings": ["seed=3"]}, ["seed", "--seed"]),
        ({"settings": ["model.n_layers=two"]}, ["model.n_layers", "whole number"]),
        ({"settings": ["model=big"]}, ["model", "group"]),
        ({"settings": ["model.d_model=16"]}, ["A.h32", "d_k 0"]),
        ({"settings": ["model.n_heads=128"]}, ["base", "d_k 0"]),
        ({"settings": ["model.n_heads=5"]}, ["base", "does not divide"]),
        ({"settings": ["model.d_model=32"], "only": ["scaling.dk-quarter"], "table": "scaling"}, None),
        ({"settings": ["model.d_model=16"], "only": ["scaling.dk-quarter"], "table": "scaling"}, ["d_k is 0"]),
    ],
)
def test_what_cannot_be_is_one_line_naming_it(arguments: dict[str, Any], words: list[str] | None) -> None:
    asked = {"table": "table3", "scale": "smoke"} | arguments
    table, scale = asked.pop("table"), asked.pop("scale")
    if words is None:
        choose(table, scale, **asked)
        return
    with pytest.raises(UsageError) as error:
        choose(table, scale, **asked)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_a_setting_changes_the_base_and_every_row() -> None:
    selection = choose("table3", "smoke", settings=["train.budget=20", "model.norm=pre"])
    assert selection.base.train.budget == 20
    assert {model(row.config).norm for row in selection.rows} == {"pre"}
    assert next(row for row in selection.rows if row.variant.id == "big").config.train.budget == 60


def test_labels_and_seeds_stand_in_every_rows_configuration() -> None:
    selection = choose("table3", "smoke")
    row = selection.rows[3]
    assert (row.config.variant, row.config.table, row.config.scale) == ("A.h16", "table3", "smoke")
    assert row.with_seed(7).seed == 7
    assert row.with_seed(7) == replace(row.config, seed=7)


def test_rows_can_be_left_out_by_name() -> None:
    all_rows = [row.variant.id for row in choose("table3+positions", "smoke").rows]
    left = [row.variant.id for row in choose("table3+positions", "smoke", skip=["big", "A.h32"]).rows]
    assert left == [id for id in all_rows if id not in ("big", "A.h32")]
    assert [row.variant.id for row in choose("table3", "smoke", only=["base", "big"], skip=["big"]).rows] == ["base"]


@pytest.mark.parametrize(("only", "skip", "told"), [(None, ["bigg"], "big"), (["base"], ["base"], "no row is left")])
def test_what_cannot_be_left_out_is_named(only: list[str] | None, skip: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        choose("table3", "smoke", only=only, skip=skip)
