from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro import SEMANTICS_VERSION
from repro.config import DataConfig, DecodeConfig, RunConfig, TrainConfig, TransformerConfig
from repro.config.differences import differences
from repro.config.schema import known_keys, parse_text, replace_key
from repro.errors import UsageError

SHARES = st.floats(0.0, 0.99)
MODELS = st.builds(
    TransformerConfig,
    n_layers=st.integers(1, 12),
    n_heads=st.sampled_from([1, 2, 4, 8, 16]),
    d_model=st.sampled_from([16, 64, 512]),
    d_k=st.none() | st.integers(1, 64),
    d_v=st.none() | st.integers(1, 64),
    dropout=SHARES | st.just(0),
    norm=st.sampled_from(["post", "pre"]),
    positions=st.sampled_from(["sinusoidal", "learned", "none"]),
    scale_attention=st.booleans(),
    causal_mask=st.booleans(),
)
TRAINS = st.builds(
    TrainConfig,
    budget=st.integers(1, 10**12) | st.floats(0.001, 1e20),
    budget_unit=st.sampled_from(["steps", "tokens", "flops", "seconds"]),
    micro_batch_tokens=st.none() | st.integers(1, 10_000),
    label_smoothing=SHARES | st.just(0),
    clip_norm=st.sampled_from([0, 0.0, -0.0, 1, 0.1]),
)
CONFIGS = st.builds(
    RunConfig,
    variant=st.sampled_from(["base", "B.dk-quarter"]),
    seed=st.integers(-(10**6), 10**6),
    model=MODELS,
    train=TRAINS,
    decode=st.builds(DecodeConfig, alpha=st.floats(-2, 2) | st.integers(0, 2), beam=st.integers(1, 20)),
)


@given(config=CONFIGS)
@settings(max_examples=60, deadline=None)
def test_a_configuration_written_as_json_and_read_back_is_equal_and_has_the_same_hash(config: RunConfig) -> None:
    back = RunConfig.read(json.loads(json.dumps(config.document())))
    assert back == config
    assert back.hash() == config.hash()
    assert back.document() == config.document()


def test_a_whole_number_and_the_same_number_with_a_point_are_one_run() -> None:
    whole, point = TrainConfig(budget=100), TrainConfig(budget=100.0)
    assert RunConfig(train=whole).hash() == RunConfig(train=point).hash()
    assert json.dumps(RunConfig(train=whole).document()) == json.dumps(RunConfig(train=point).document())


def test_the_hash_covers_everything_but_the_labels() -> None:
    base = RunConfig(variant="base", table="table3", scale="smoke", seed=1)
    document = base.resolved().document()
    del document["variant"], document["table"]
    text = json.dumps({"config": document, "semantics": SEMANTICS_VERSION}, sort_keys=True, separators=(",", ":"))
    assert base.hash() == hashlib.sha256(text.encode()).hexdigest()
    assert dataclasses.replace(base, variant="other", table="positions").hash() == base.hash()
    hashes = {base.hash()}
    for key, value in [
        ("seed", "2"),
        ("scale", "multi30k"),
        ("model.n_heads", "4"),
        ("model.d_k", "32"),
        ("model.norm", "pre"),
        ("data.digest", "abc"),
        ("data.vocabulary_size", "4001"),
        ("train.budget", "99999"),
        ("train.threads", "2"),
        ("decode.alpha", "1"),
    ]:
        hashes.add(replace_key(base, key, value).hash())
    assert len(hashes) == 11


def test_a_width_that_follows_is_the_same_run_as_the_width_written_out() -> None:
    implied = RunConfig(model=TransformerConfig(d_model=512, n_heads=8))
    written = RunConfig(model=TransformerConfig(d_model=512, n_heads=8, d_k=64, d_v=64))
    assert implied.hash() == written.hash()
    assert implied.resolved() == written


def test_a_run_is_named_by_variant_seed_and_twelve_digits_of_its_hash() -> None:
    config = RunConfig(variant="B.dk-quarter", seed=3)
    assert config.run_id() == f"B.dk-quarter-s3-{config.hash()[:12]}"


def test_the_defaults_are_the_papers_base_model_and_training() -> None:
    model, train, decode = TransformerConfig().resolved(), TrainConfig(), DecodeConfig()
    assert (model.n_layers, model.d_model, model.d_ff, model.n_heads, model.d_k, model.d_v) == (6, 512, 2048, 8, 64, 64)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.1, 0.0, 0.0)
    assert (model.norm, model.positions, model.sinusoid_layout) == ("post", "sinusoidal", "interleaved")
    assert model.scale_attention
    assert (train.adam_beta1, train.adam_beta2, train.adam_eps) == (0.9, 0.98, 1e-9)
    assert (train.warmup_steps, train.budget, train.budget_unit) == (4000, 100_000, "steps")
    assert (train.label_smoothing, train.label_smoothing_kind, train.clip_norm) == (0.1, "uniform", 0.0)
    assert (decode.beam, decode.alpha, decode.length_penalty, decode.extra_length) == (4, 0.6, "gnmt", 50)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("model.d_model", "64", 64),
        ("model.d_model", "64.0", 64),
        ("model.d_k", "none", None),
        ("model.d_k", "null", None),
        ("model.dropout", "0", 0.0),
        ("model.dropout", "1e-1", 0.1),
        ("model.positions", "none", "none"),
        ("model.scale_attention", "false", False),
        ("model.scale_attention", "True", True),
        ("data.corpus", "123", "123"),
        ("data.corpus", "local:en-de", "local:en-de"),
        ("train.valid_decode", "none", "none"),
        ("train.micro_batch_tokens", "none", None),
        ("train.budget", "1e15", 1e15),
        ("seed", "7", 7),
    ],
)
def test_a_setting_typed_on_the_command_line_has_the_keys_type(key: str, text: str, expected: object) -> None:
    value: object = replace_key(RunConfig(), key, text)
    for name in key.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("model.d_modl", "64", "unknown key 'model.d_modl' (did you mean model.d_model"),
        ("modl.d_model", "64", "unknown key 'modl.d_model' (did you mean model.d_model"),
        ("budget", "5", "unknown key 'budget'"),
        ("model.d_model.x", "1", "unknown key 'model.d_model.x' (did you mean model.d_model"),
        ("", "1", "unknown key ''"),
        ("model", "1", "'model' is a group of keys"),
        ("train.warmup_steps", "1" + "0" * 300, "too large a number (the largest is 9007199254740992)"),
        ("train.warmup_steps", "1e300", "too large a number"),
        ("decode.alpha", "300", "alpha is 300.0 (choose from -10 to 10; the paper's is 0.6)"),
        ("model.d_model", "6.5", "6.5 is not a whole number"),
        ("model.d_model", "wide", "'wide' is not a whole number"),
        ("model.d_model", "true", "True is not a whole number"),
        ("model.d_model", "", "'' is not a whole number"),
        ("model.scale_attention", "1", "1 is not true or false"),
        ("model.norm", "Pre", "'Pre' is not one of post, pre"),
        ("train.budget", "NaN", "nan is not a number"),
        ("train.budget", "Infinity", "inf is not a number"),
        ("train.budget", "1e999", "inf is not a number"),
        ("train.clip_norm", "NaN", "nan is not a number"),
        ("train.budget", "9" * 400, "is not a number"),
        ("seed", "9" * 5000, "is not a whole number"),
        ("model.dropout", "1", "dropout is 1.0"),
        ("model.dropout", "-0.1", "dropout is -0.1"),
        ("model.n_layers", "0", "n_layers is 0"),
        ("model.d_k", "0", "d_k is 0"),
        ("train.budget", "0", "budget is 0"),
        ("train.label_smoothing", "1.5", "label_smoothing is 1.5"),
        ("train.clip_norm", "-1", "clip_norm is -1"),
        ("train.micro_batch_tokens", "0", "micro_batch_tokens is 0"),
        ("data.vocabulary_size", "-1", "vocabulary_size is -1"),
        ("decode.beam", "0", "beam is 0"),
        ("decode.beam", "1e9", "beam is 1000000000, the most is 1000"),
        ("model.d_model", "1e9", "d_model is 1000000000, the most is 131072"),
        ("model.d_v", "1e9", "d_v is 1000000000"),
        ("model.n_layers", "1e6", "n_layers is 1000000"),
        ("data.vocabulary_size", "1e15", "vocabulary_size is 1000000000000000"),
    ],
)
def test_a_wrong_setting_is_one_line_with_exit_code_2(key: str, text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace_key(RunConfig(), key, text)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_heads_that_leave_no_width_or_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="1024 heads over d_model 512 give d_k 0"):
        TransformerConfig(d_model=512, n_heads=1024).resolved()
    with pytest.raises(UsageError, match="d_model 512 does not divide into 3 heads"):
        TransformerConfig(d_model=512, n_heads=3).resolved()
    free = TransformerConfig(d_model=512, n_heads=3, d_k=5, d_v=7).resolved()
    assert (free.d_k, free.d_v) == (5, 7)


def test_an_odd_width_has_no_sinusoids() -> None:
    with pytest.raises(UsageError, match="even width"):
        TransformerConfig(d_model=65, n_heads=5)
    assert TransformerConfig(d_model=65, n_heads=5, positions="learned").resolved().d_k == 13


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"model": {"family": "transformer", "n_head": 4}}, "model.n_head"),
        ({"model": {"family": "transformer", "n_heads": "4"}}, "model.n_heads: '4' is not a whole number"),
        ({"train": {"budget": True}}, "train.budget: True is not a number"),
        ({"train": None}, "train: None is not"),
        ({"model": {"family": "perceptron"}}, "model: "),
        ({"seed": None}, "seed: None is not a whole number"),
    ],
)
def test_a_document_with_a_wrong_key_or_value_names_it(document: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig.read(document)
    assert told in str(caught.value)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().seed = 2  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        RunConfig().model.colour = "red"  # type: ignore[attr-defined, union-attr]


def test_every_key_can_be_named() -> None:
    keys = known_keys(RunConfig())
    assert "model.d_model" in keys
    assert "train.budget" in keys
    assert len(keys) == len(set(keys))
    for key in ("variant", "seed", "data.corpus", "decode.beam"):
        assert key in keys


def test_a_word_of_a_choice_wins_over_none() -> None:
    assert parse_text(str | None, "none", "x") is None
    assert parse_text(str | None, "some", "x") == "some"
    assert parse_text(int | None, "none", "x") is None


def test_differences_name_each_key_with_both_values_and_no_label() -> None:
    base = RunConfig(variant="base", table="table3")
    other = RunConfig(
        variant="other",
        table="scaling",
        seed=2,
        model=TransformerConfig(norm="pre", d_k=64),
        data=DataConfig(digest="abc"),
        train=TrainConfig(budget=5),
    )
    assert differences(other, base) == [
        "seed = 2 instead of 1",
        'model.norm = "pre" instead of "post"',
        'data.digest = "abc" instead of ""',
        "train.budget = 5.0 instead of 100000.0",
    ]
    assert differences(base, dataclasses.replace(base, variant="renamed")) == []
