"""A setting that a row does not take is never left out in silence."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ablations import reach
from ablations.cli import run
from ablations.cluster import Resources
from ablations.conduct import conduct
from ablations.progress import Teller
from ablations.selection import Selection, choose
from ablations.study import Data
from repro.config import TransformerConfig

RECURRENT = ("baseline.lstm", "baseline.gnmt")


def chosen(*settings: str, only: tuple[str, ...] = ("base", *RECURRENT), profile: str | None = None) -> Selection:
    table = "table3+baselines+scaling"
    return choose(table, "smoke", only=only, settings=settings, profile=profile)


@pytest.mark.parametrize("text", ["model.dropout=0.4", "train.clip_norm=5"])
def test_rows_with_a_value_of_their_own_are_named(text: str) -> None:
    assert reach.without_effect(chosen(text)) == {text: RECURRENT}


@pytest.mark.parametrize(
    "text",
    [
        "train.learning_rate_factor=0.6",  # a baseline has a multiple of the base's
        "model.n_layers=4",  # a baseline is sized by the base
        "train.budget=100",
        "train.label_smoothing=0.2",
        "decode.beam=1",
        "data.max_pieces=64",
    ],
)
def test_what_reaches_a_row_in_any_way_is_not_named(text: str) -> None:
    assert reach.without_effect(chosen(text)) == {}


def test_a_row_that_is_about_an_option_keeps_it() -> None:
    rows = ("base", "A.h1", "D.dropout-0", "scaling.off")
    settings = ("model.dropout=0.4", "model.d_k=16", "model.d_v=16", "model.scale_attention=false")
    assert reach.without_effect(chosen(*settings, only=rows)) == {
        "model.dropout=0.4": ("D.dropout-0",),
        "model.d_k=16": ("A.h1",),  # its widths follow from its heads
        "model.d_v=16": ("A.h1",),
        "model.scale_attention=false": ("scaling.off",),
    }


def test_the_base_s_own_value_and_a_value_set_again_are_not_named() -> None:
    assert reach.without_effect(chosen("model.dropout=0.1")) == {}
    assert reach.without_effect(chosen("model.dropout=0.4", "model.dropout=0.1")) == {}


def test_a_setting_that_the_others_need_counts_as_one_that_reaches() -> None:
    # 5 heads do not divide 64: without d_k and d_v there would be no base to compare with.
    found = reach.without_effect(chosen("model.n_heads=5", "model.d_k=8", "model.d_v=8", only=("base",)))
    assert found == {}


def test_options_of_a_profile_that_a_baseline_has_not_are_named_too() -> None:
    found = reach.without_effect(chosen(only=("base", "baseline.lstm"), profile="tensor2tensor-v2"))
    assert found["model.attention_dropout=0.1"] == ("baseline.lstm",)
    assert found["model.sinusoid_layout=concatenated"] == ("baseline.lstm",)
    assert not {"train.warmup_steps=400", "train.learning_rate_factor=0.6"} & found.keys()


def test_settings_that_the_same_rows_do_not_take_share_a_line() -> None:
    assert reach.notes(chosen("model.dropout=0.4", "train.clip_norm=5")) == [
        "model.dropout=0.4, train.clip_norm=5: no effect on baseline.lstm, baseline.gnmt "
        "(a row may have its own value, or no such option)"
    ]


def test_a_plan_says_it(capfd: pytest.CaptureFixture[str]) -> None:
    line = "plan baselines --scale smoke --only base,baseline.lstm --set model.dropout=0.4 --gpu A100 --json"
    assert run(line.split()) == 0
    notes = json.loads(capfd.readouterr().out)["notes"]
    assert [note for note in notes if note.startswith("model.dropout=0.4: no effect on baseline.lstm")]


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("baseline.lstm", "model.dropout=0.4"),
        ("baseline.gnmt", "model.attention_bias=false --set model.positions=none"),
        ("baseline.convs2s", "train.clip_norm=5"),
        ("D.dropout-0", "model.dropout=0.4"),
    ],
)
def test_a_single_run_refuses_a_setting_that_does_nothing(
    variant: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(f"train --scale smoke --variant {variant} --out x --set {text}".split()) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert f"has no effect on {variant}" in told.err


def test_a_learning_rate_of_the_base_reaches_every_row_as_a_multiple() -> None:
    rates = [
        {row.variant.id: row.config.train.learning_rate_factor for row in choose("baselines", "smoke", **more).rows}
        for more in ({}, {"settings": ["train.learning_rate_factor=0.9"]})
    ]
    for variant, rate in rates[0].items():
        assert rates[1][variant] == pytest.approx(3 * rate), variant


def test_every_key_of_the_model_is_taken_told_or_refused() -> None:
    """Whatever can be set of a Transformer either changes a baseline's configuration or is named for it."""
    others = {
        "d_ff": "300",
        "norm": "pre",
        "positions": "learned",
        "sinusoid_layout": "concatenated",
        "scale_attention": "false",
        "causal_mask": "false",
        "attention_bias": "false",
        "dropout": "0.4",
        "attention_dropout": "0.3",
        "activation_dropout": "0.3",
        "max_positions": "300",
        "n_layers": "4",
        "d_model": "128",
        "n_heads": "4",
        "d_k": "16",
        "d_v": "16",
    }
    keys = set(TransformerConfig.__dataclass_fields__) - {"family"}
    assert keys == set(others)
    plain = {row.variant.id: row.config for row in chosen().rows}
    for key, value in others.items():
        text = f"model.{key}={value}"
        selection = chosen(text)
        named = reach.without_effect(selection).get(text, ())
        for row in selection.rows:
            changed = replace(row.config, table="") != replace(plain[row.variant.id], table="")
            assert changed != (row.variant.id in named), (text, row.variant.id)


def test_a_study_says_it_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, seen = io.StringIO(), []
    data = Data(corpus="smoke", directory=Path("/data/smoke"), digest="d" * 64, vocabulary_size=256)
    monkeypatch.setattr("ablations.ready._prepared", lambda *_: data)
    monkeypatch.setattr("ablations.ready._check", lambda *_, **__: None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")

    def stopped(*_: object, **__: object) -> None:
        seen.append(told.getvalue())
        raise KeyboardInterrupt

    monkeypatch.setattr("ablations.conduct.sweep", stopped)
    selection = choose("baselines", "smoke", only=["baseline.lstm"], settings=["model.dropout=0.4"])
    teller = Teller(Console(file=told, width=200))
    with pytest.raises(KeyboardInterrupt):
        conduct(selection, [1], path=tmp_path / "s", source=None, resources=Resources(), teller=teller)
    assert "note: model.dropout=0.4: no effect on baseline.lstm" in seen[0]
