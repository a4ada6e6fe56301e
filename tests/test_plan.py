"""The plan's figures, against the paper and against counts made here by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from ablations.planning import CPU_SHARE, GPU_SHARE, Device, Plan, Text, plan
from ablations.scales import scale_of
from ablations.selection import choose
from ablations.walltime import Jobs, walltime_seconds
from repro.errors import UsageError

MILLIONS = {
    "base": 65.11,
    "B.dk-quarter": 58.02,
    "B.dk-half": 60.38,
    "C.layers-third": 35.68,
    "C.layers-2third": 50.40,
    "C.layers-4third": 79.82,
    "C.width-half": 27.85,
    "C.width-double": 167.94,
    "C.ff-half": 52.51,
    "C.ff-double": 90.30,
    "big": 218.30,
}
"""Parameters at 40 960 shared pieces, counted independently."""

P100 = Device.gpu("P100")
NOWHERE = Device.gpu("some GPU of mine")


def planned(table: str = "table3", scale: str = "paper", device: Device = P100, seeds: int = 1, **more: Any) -> Plan:
    return plan(choose(table, scale, **more), seeds, prepared=None, device=device)


def entries(found: Plan) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in found.document()["variants"]}


def test_parameters_at_paper_scale_are_the_known_counts() -> None:
    found = entries(planned())
    assert {id: round(found[id]["parameters"] / 1e6, 2) for id in MILLIONS} == MILLIONS
    assert len(found) == 20


def test_no_weights_are_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("weights were allocated")

    monkeypatch.setattr(torch.nn.Module, "to_empty", refuse)
    # Sizes that no machine holds: 2.2e12 parameters.
    found = planned(only=["base"], settings=["model.d_model=131072", "model.n_layers=8"])
    assert found.document()["variants"][0]["parameters"] > 1e12


def test_the_papers_base_costs_what_the_paper_and_a_count_say() -> None:
    base = entries(planned())["base"]
    assert base["steps"] == 100_000
    assert base["train_flops"] == pytest.approx(0.98e18, rel=0.03)
    # 12 h x 8 x 9.5e12 (section 6.1): the assumed share is taken from these very figures.
    assert base["paper_method_flops"] == pytest.approx(3.28e18, rel=0.03)
    assert base["hours"] == pytest.approx(12 * 8, rel=0.03)


def test_flops_are_those_of_the_matrix_products() -> None:
    lengths = [(5, 7), (3, 3), (8, 6)]
    d, ff, keys, values, v, n = 64, 256, 8 * 8, 8 * 8, 256, 3
    expected = 0
    for s, t in lengths:
        encoder = s * (2 * d * keys + 2 * d * values + 2 * d * ff) + s * s * (keys + values)
        own = t * (2 * d * keys + 2 * d * values) + t * t * (keys + values)
        cross = t * (d * keys + d * values) + s * (d * keys + d * values) + s * t * (keys + values)
        decoder = own + cross + t * 2 * d * ff
        expected += 2 * (n * (encoder + decoder) + t * d * v)
    sizes = [f"model.n_layers={n}", f"model.d_model={d}", f"model.d_ff={ff}", "model.n_heads=8"]
    budget = ["train.budget=10", "train.batch_tokens=1024", f"data.vocabulary_size={v}"]
    statistics = replace(
        scale_of("smoke").statistics,
        pairs=3,
        src=sum(s for s, _ in lengths) / 3,
        tgt=sum(t for _, t in lengths) / 3,
        src_src=sum(s * s for s, _ in lengths) / 3,
        src_tgt=sum(s * t for s, t in lengths) / 3,
        tgt_tgt=sum(t * t for _, t in lengths) / 3,
    )
    selection = choose("table3", "smoke", only=["base"], settings=sizes + budget)
    selection = replace(selection, scale=replace(selection.scale, statistics=statistics))
    found = plan(selection, 1, prepared=None, device=NOWHERE)
    assert found.text.batches == 1
    assert entries(found)["base"]["train_flops"] == 3 * 10 * expected


@pytest.mark.parametrize(
    ("setting", "steps"),
    [
        ("train.budget=77", 77),
        ("train.budget_unit=tokens", None),
        ("train.budget_unit=flops", None),
    ],
)
def test_budgets_of_any_unit_become_steps(setting: str, steps: int | None) -> None:
    amount = {"train.budget_unit=tokens": 1e6, "train.budget_unit=flops": 1e12}.get(setting)
    settings = [setting] if amount is None else [f"train.budget={amount:.0f}", setting]
    found = planned("table3", "smoke", NOWHERE, only=["base"], settings=settings)
    entry, text = entries(found)["base"], found.text
    if steps is not None:
        assert entry["steps"] == steps
    elif "tokens" in setting:
        a_step = text.lengths.tgt / text.batches
        assert (entry["steps"] - 1) * a_step < 1e6 <= entry["steps"] * a_step
    else:
        assert entry["train_flops"] == pytest.approx(1e12, rel=0.01)


def test_a_budget_in_seconds_has_steps_only_on_a_known_device() -> None:
    settings = ["train.budget=60", "train.budget_unit=seconds"]
    known = entries(planned("table3", "smoke", P100, only=["base"], settings=settings))["base"]
    assert known["hours"] == pytest.approx(60 / 3600, rel=0.01)
    unknown = entries(planned("table3", "smoke", NOWHERE, only=["base"], settings=settings))["base"]
    assert (unknown["steps"], unknown["train_flops"], unknown["hours"]) == (None, None, None)


def test_hours_follow_from_the_peak_and_the_assumed_share() -> None:
    found = planned(device=Device.gpu("A100"))
    entry = entries(found)["base"]
    assert entry["hours"] == pytest.approx(entry["train_flops"] / (312e12 * GPU_SHARE) / 3600)
    assert entry["paper_method_flops"] is None
    assert any("312,000 GFLOP/s" in note and f"{GPU_SHARE:.0%}" in note for note in found.notes)


def test_an_unknown_gpu_has_no_hours_and_says_so() -> None:
    found = planned(device=NOWHERE)
    assert {entry["hours"] for entry in entries(found).values()} == {None}
    assert found.document()["total"]["hours"] is None
    assert any("some GPU of mine" in note and "A100" in note for note in found.notes)


def test_this_machines_core_is_measured() -> None:
    device = Device.this_cpu(scale_of("smoke").base)
    assert device.flops is not None
    assert device.flops > 1e8
    entry = entries(planned("table3", "smoke", device, only=["base"]))["base"]
    assert entry["hours"] == pytest.approx(entry["train_flops"] / (device.flops * CPU_SHARE) / 3600)
    assert entry["paper_method_flops"] == pytest.approx(entry["train_flops"] / CPU_SHARE)


def test_a_run_on_eight_gpus_keeps_its_batch_and_its_gpu_hours_and_is_cut_into_jobs() -> None:
    jobs = Jobs(gpus=8, walltime=walltime_seconds("5:00:00"))
    found = plan(choose("table3", "paper"), 2, prepared=None, device=P100, jobs=jobs)
    base, big = entries(found)["base"], entries(found)["big"]
    alone = entries(planned())["base"]
    # Section 5.2: 12 hours on 8 P100 for base.
    assert base["wall_hours"] == pytest.approx(12, rel=0.03)
    assert base["gpu_hours"] == alone["hours"] == base["hours"] == pytest.approx(96, rel=0.03)
    assert base["chunks"] == 3
    assert big["chunks"] == math.ceil(big["hours"] / 8 / 5)
    assert (base["steps"], base["train_flops"]) == (alone["steps"], alone["train_flops"])
    assert base["memory_bytes"] < alone["memory_bytes"]
    document = found.document()
    assert document["total"]["chunks"] == 2 * sum(entry["chunks"] for entry in document["variants"])
    assert any("3,125 of 25,000 tokens each" in note for note in document["notes"])
    assert planned().document()["total"]["chunks"] is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("24:00:00", 86400), ("1-00:00:00", 86400), ("0:00:30", 30), ("100:00:00", 360_000)]
)
def test_a_walltime_is_written_as_batch_systems_write_it(text: str, seconds: int) -> None:
    assert walltime_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "24:00", "0:00:00", "1:60:00", "a day", "1-2-00:00:00"])
def test_what_is_no_walltime_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        walltime_seconds(text)


def test_totals_count_each_run_once() -> None:
    found = planned("table3+positions", "smoke", seeds=3)
    document = found.document()
    trained = [entry for entry in document["variants"] if entry["same_as"] is None]
    assert len(trained) == len(document["variants"]) - 1 == 21
    assert document["total"]["runs"] == 3 * 21
    assert document["total"]["train_flops"] == pytest.approx(3 * math.fsum(entry["train_flops"] for entry in trained))
    assert any("positions.learned is E.learned" in note for note in found.notes)


def test_the_document_has_the_promised_keys() -> None:
    document = planned("positions", "smoke").document()
    json.dumps(document, allow_nan=False)
    assert {"table", "scale", "variants"} <= document.keys()
    promised = [
        "id",
        "group",
        "changes",
        "parameters",
        "train_flops",
        "paper_method_flops",
        "steps",
        "memory_bytes",
        "hours",
    ]
    for entry in document["variants"]:
        assert set(promised) <= entry.keys()
        assert entry["memory_bytes"] > 16 * entry["parameters"]
    assert document["estimated"] is True
    assert any("estimated" in note for note in document["notes"])


def test_an_estimate_for_another_text_says_whose_statistics_stand_in() -> None:
    selection = choose("positions", "smoke", only=["base"], settings=["data.corpus=local:en-de"])
    notes = plan(selection, 1, prepared=None, device=Device.gpu("A100")).notes
    (note,) = [note for note in notes if "estimated" in note]
    assert "statistics of smoke in 320 pieces, another text; prepare local:en-de for a count" in note


def test_declared_statistics_give_the_batches_that_fit() -> None:
    text = Text.declared(replace(scale_of("smoke").statistics, pairs=1000, src=10.0, tgt=20.0, fill=0.5), 400)
    assert text.batches == 100
    assert (text.lengths.sentences, text.lengths.src, text.lengths.tgt) == (1000, 10_000, 20_000)


def test_the_paper_scale_says_that_it_is_not_run_here() -> None:
    assert any("not run" in note for note in planned().notes)
