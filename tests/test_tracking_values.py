"""Names, addresses and metric values reach MLflow in the form that it takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ablations.tracking.names import cut, entity_name, shown
from ablations.tracking.points import Tail, final_points
from ablations.tracking.records import CREATED
from ablations.tracking.server import Tracked
from ablations.tracking.stores import store_of
from repro.errors import UsageError

# Names and values.


@pytest.mark.parametrize("name", ["train/loss", "valid/bleu", "model.d_k", "by length/10-20", "a_b", "größe"])
def test_a_name_that_mlflow_takes_stays(name: str) -> None:
    assert entity_name(name) == name


@pytest.mark.parametrize("name", ["exact %", "f(x)", "/abs", "a//b", "../up", "a/", "", "a\nb"])
def test_a_name_that_mlflow_refuses_is_changed_into_one_that_it_takes(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    with pytest.raises(Exception, match=r".+"):
        _validate_metric_name(name)
    _validate_metric_name(entity_name(name))


def test_two_names_never_become_one() -> None:
    names = ["a%", "a(", "a)", "a_", "apercent", "a/b", "a//b", "a/./b"]
    assert len({entity_name(name) for name in names}) == len(names)
    assert len({entity_name("x" * length) for length in (250, 251, 300)}) == 3
    assert len(entity_name("x" * 300)) == 250


def test_a_long_value_is_cut_and_says_so() -> None:
    assert cut("short", 100) == "short"
    long = cut("x" * 7000, 6000)
    assert len(long) == 6000
    assert long.endswith("[cut, 7000 characters in all]")


def test_passwords_are_never_shown() -> None:
    assert shown("https://me:secret@host:5000/path?token=abc") == "https://host:5000/path"
    assert "secret" not in shown("postgresql://me:secret@db/mlflow")


def test_without_a_setting_the_store_lies_in_the_study(tmp_path: Path) -> None:
    store = store_of(tmp_path, {})
    assert store.uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert store.artifacts == tmp_path / "mlartifacts"


def test_a_server_keeps_its_own_artifacts(tmp_path: Path) -> None:
    store = store_of(tmp_path, {"MLFLOW_TRACKING_URI": "http://u:p@tracking:5000"})
    assert store.artifacts is None
    assert store.name == "http://tracking:5000"


@pytest.mark.parametrize(
    "uri", ["./mlruns", "file:///tmp/mlruns", "nonsense", "sqlite://", "http://[::1", "http://h:x1"]
)
def test_an_address_that_mlflow_cannot_use_is_wrong_usage(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI"):
        store_of(tmp_path, {"MLFLOW_TRACKING_URI": uri})


@pytest.mark.parametrize("written", ["yesterday", "", "1e"])
def test_an_mlflow_run_whose_time_of_making_somebody_overwrote_is_as_old_as_its_start(written: str) -> None:
    first = Tracked(id="b", status="FINISHED", started=1000, tags={CREATED: written})
    second = Tracked(id="a", status="FINISHED", started=9000, tags={CREATED: "2.5"})
    assert sorted([second, first], key=lambda run: run.age) == [first, second]


# Reading metrics.


def line(step: int, **metrics: Any) -> str:
    return json.dumps({"step": step, "time": 1000.5 + step, "metrics": metrics}) + "\n"


def test_only_new_whole_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text(line(1, loss=3.0) + line(2, loss=2.0)[:10])
    assert [(point.step, point.value, point.milliseconds) for point in tail.read()] == [(1, 3.0, 1_001_500)]
    path.write_text(line(1, loss=3.0) + line(2, loss=2.0))
    assert [point.step for point in tail.read()] == [2]
    assert tail.read() == []


def test_a_file_rewritten_after_a_resume_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(step, loss=1.0) for step in (1, 2, 3)))
    tail = Tail(path)
    assert len(tail.read()) == 3
    path.write_text(line(1, loss=1.0) + "".join(line(step, loss=1.25, acc=1) for step in (2, 3)))
    assert {point.step for point in tail.read()} == {1, 2, 3}


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"step": 1, "time": 1, "metrics": {"a": NaN, "b": Infinity, "c": null, "d": "x", "e": true, "f": 2}}\nwords\n'
    )
    assert [(point.key, point.value) for point in Tail(path).read()] == [("f", 2.0)]


def test_a_finished_models_score_is_no_point_of_the_learning_curve() -> None:
    result = {"steps": 100, "train_flops": 9.0, "valid": {"bleu": 31.0, "loss": 1.5}, "test": {"bleu": 30.0}}
    points = {(point.key, point.step): point.value for point in final_points(result, {"valid/bleu", "train/flops"}, 1)}
    assert points == {
        ("train/flops", 100): 9.0,
        ("train/steps", 0): 100.0,
        ("valid_final/bleu", 0): 31.0,
        ("valid/loss", 0): 1.5,
        ("test/bleu", 0): 30.0,
    }
