"""Named profiles, and the options of the paper's field that a run can take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_study import data

from ablations.cli import run
from ablations.selection import choose
from ablations.study import default_path, open_study
from repro.config import RunConfig, TransformerConfig
from repro.config.paper import differs_from_paper
from repro.config.profiles import PROFILES, profile_settings
from repro.config.schema import known_keys, replace_key, to_document
from repro.errors import UsageError

OPTIONS: dict[str, tuple[Any, list[str]]] = {
    "model.norm": ("post", ["pre"]),
    "model.positions": ("sinusoidal", ["learned", "none"]),
    "model.sinusoid_layout": ("interleaved", ["concatenated"]),
    "model.scale_attention": (True, ["false"]),
    "model.attention_dropout": (0.0, ["0.1"]),
    "model.activation_dropout": (0.0, ["0.1"]),
    "model.attention_bias": (True, ["false"]),
    "train.label_smoothing_kind": ("uniform", ["exclude_gold"]),
    "decode.length_penalty": ("gnmt", ["power"]),
    "train.average_checkpoints": (0, ["5"]),
}
"""Where the field disagrees: the paper's text, and the other choices. Tied embeddings know one choice only, and BLEU is
always given under all its protocols."""


def base(profile: str | None, scale: str = "paper", **more: Any) -> RunConfig:
    return choose("table3", scale, only=["base"], profile=profile, **more).base


def value(config: RunConfig, key: str) -> Any:
    group, name = key.split(".")
    return to_document(config)[group][name]


@pytest.mark.parametrize("key", OPTIONS)
def test_every_option_has_the_papers_text_as_default_and_is_told_when_it_is_another(key: str) -> None:
    default, others = OPTIONS[key]
    plain = RunConfig()
    assert value(plain, key) == default
    assert differs_from_paper(plain) == []
    for text in others:
        changed = replace_key(plain, key, text)
        assert changed.hash() != plain.hash()
        (told,) = differs_from_paper(changed)
        assert told.startswith(f"{key}: ")


def test_the_first_code_has_the_paper_s_base_but_for_two_options() -> None:
    assert differs_from_paper(base("tensor2tensor-2017-06")) == [
        "model.sinusoid_layout: concatenated (paper: interleaved)",
        "train.label_smoothing_kind: exclude_gold (paper: uniform)",
    ]


def test_tensor2tensor_v2_has_its_published_numbers_at_paper_scale() -> None:
    """transformer_base_v2: pre-norm, dropout 0.1 inside the sub-layers, warm-up 8000, learning rate 0.2 for 0.1."""
    config = base("tensor2tensor-v2")
    assert isinstance(config.model, TransformerConfig)
    assert (config.model.norm, config.model.attention_dropout, config.model.activation_dropout) == ("pre", 0.1, 0.1)
    assert (config.train.warmup_steps, config.train.learning_rate_factor) == (8000, 2.0)
    assert len(differs_from_paper(config)) == 7


def test_sizes_dropout_batch_and_budget_stay_the_scales() -> None:
    for name in PROFILES:
        plain, profiled = base(None, "multi30k-cpu"), base(name, "multi30k-cpu")
        for key in ("model.d_model", "model.n_layers", "model.dropout", "train.batch_tokens", "train.budget"):
            assert value(profiled, key) == value(plain, key)
    assert base("tensor2tensor-v2", "smoke").train.warmup_steps == 2 * base(None, "smoke").train.warmup_steps


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_sets_every_disputed_model_option_and_says_where_each_is_from(name: str) -> None:
    settings = PROFILES[name].settings
    keys = [setting.key for setting in settings]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(known_keys(RunConfig()))
    assert set(OPTIONS) - {"train.average_checkpoints"} <= set(keys)
    assert all(setting.source for setting in settings)
    # Laid over a base that has the opposite of everything, it still comes to the same.
    other = RunConfig()
    for key, (_, others) in OPTIONS.items():
        other = replace_key(other, key, others[0])
    for text in profile_settings(name, other.document()):
        other = replace_key(other, *text.split("=", 1))
    assert {key: value(other, key) for key in keys} == {key: value(base(name), key) for key in keys}


def test_settings_come_after_the_profile() -> None:
    config = base("tensor2tensor-v2", settings=["model.norm=post"])
    assert isinstance(config.model, TransformerConfig)
    assert (config.model.norm, config.model.attention_dropout) == ("post", 0.1)


def test_an_unknown_profile_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as error:
        base("t2t")
    for word in ("t2t", "--profile", *PROFILES):
        assert word in str(error.value)


def test_a_study_keeps_its_profile_and_makes_other_runs_of_another(tmp_path: Path) -> None:
    def selection(profile: str | None) -> Any:
        return choose("table3", "smoke", only=["base"], profile=profile)

    first = selection("tensor2tensor-2017-06")
    _, (planned,) = open_study(tmp_path / "s", first, [1], data())
    document = json.loads((tmp_path / "s" / "study.json").read_text())
    assert document["profile"] == "tensor2tensor-2017-06"
    assert "model.sinusoid_layout=concatenated" in document["set"]
    assert value(planned.directory.config(), "model.sinusoid_layout") == "concatenated"

    open_study(tmp_path / "s", selection("tensor2tensor-2017-06"), [1, 2], data())
    by_hand = choose("table3", "smoke", only=["base"], settings=document["set"])
    open_study(tmp_path / "s", by_hand, [1], data())
    for other, changed in ((None, "label_smoothing_kind"), ("tensor2tensor-v2", "model.norm")):
        _, (planned,) = open_study(tmp_path / "s", selection(other), [1], data())
        assert changed in planned.why, "another profile makes other runs, and says what it changes"


def test_a_profile_has_a_study_of_its_own_unless_told_where() -> None:
    paths = {default_path(choose("demo", "smoke", profile=name)).name for name in (None, *PROFILES)}
    assert paths == {"demo-smoke", "demo-smoke-tensor2tensor-2017-06", "demo-smoke-tensor2tensor-v2"}


def test_the_command_line_takes_a_profile(capfd: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "table3", "--scale", "paper", "--only", "base", "--gpu", "P100", "--json"]
    assert run([*line, "--profile", "tensor2tensor-v2", "--set", "train.warmup_steps=5"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert "model.norm=pre" in document["set"]
    assert document["set"][-1] == "train.warmup_steps=5"
    # Pre-norm's two final LayerNorms of 512 gains and biases come on top of base's 65.11 million.
    assert document["variants"][0]["parameters"] == pytest.approx(65.11e6 + 2048, abs=5100)
    for command in (line, ["run", "demo", "--scale", "smoke"], ["train", "--scale", "smoke", "--out", "x"]):
        assert run([*command, "--profile", "t2t"]) == 2
        told = capfd.readouterr()
        assert "known: tensor2tensor-2017-06, tensor2tensor-v2" in told.err
        assert told.out == ""
