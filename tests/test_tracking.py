"""MLflow says what the run directories say: each run once, each metric once a step, whatever happens in between."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tracking_study import MadeStudy, metrics_at

from ablations.tracking import open_tracking
from ablations.tracking.names import cut, entity_name, shown
from ablations.tracking.points import Tail, final_points
from ablations.tracking.stores import Store, create_schema, store_of
from ablations.ui import running_server
from repro.errors import CheckError, UsageError
from repro.runs.directory import RunDirectory


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without runs: making one takes seconds, copying it nothing."""
    path = tmp_path_factory.mktemp("schema") / "mlflow.db"
    create_schema(Store(uri=f"sqlite:///{path}", database=path, artifacts=path.parent, own=False))
    return path


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def make(tmp_path: Path, empty_database: Path) -> Callable[..., MadeStudy]:
    """Makes studies that have an empty database already."""

    def made(name: str = "study", **options: Any) -> MadeStudy:
        study = MadeStudy(tmp_path / name, **options)
        shutil.copy(empty_database, study.path / "mlflow.db")
        return study

    return made


def rows(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def everything(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    tables = [name for (name,) in rows(database, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: sorted(rows(database, f"SELECT * FROM {table}"), key=repr) for table in tables}


def tracked(database: Path) -> dict[str, dict[str, Any]]:
    """What is shown of every run: by our run id, "" being the parent. Fails when one is there twice."""
    found: dict[str, dict[str, Any]] = {}
    for uuid, status in rows(database, "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"):
        tags = dict(rows(database, "SELECT key, value FROM tags WHERE run_uuid = ?", uuid))
        tags.pop("ablate.created")
        tags.pop("mlflow.parentRunId", None)
        run_id = tags.get("ablate.run_id", "")
        assert run_id not in found, f"{run_id} is tracked twice"
        metrics = rows(database, "SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = ?", uuid)
        once = Counter((key, step) for key, step, _, _ in metrics)
        assert set(once.values()) <= {1}, f"a metric twice at a step: {once.most_common(1)}"
        found[run_id] = {
            "status": status,
            "tags": tags,
            "params": dict(rows(database, "SELECT key, value FROM params WHERE run_uuid = ?", uuid)),
            "metrics": {(key, step): (value, timestamp) for key, step, value, timestamp in metrics},
            "uuid": uuid,
        }
    return found


def shape(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without MLflow's own ids."""
    return {run_id: {key: value for key, value in run.items() if key != "uuid"} for run_id, run in found.items()}


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


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "nonsense", "sqlite://"])
def test_an_address_that_mlflow_cannot_use_is_wrong_usage(uri: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI"):
        store_of(tmp_path, {"MLFLOW_TRACKING_URI": uri})


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


# What is in the store.


def test_a_study_is_an_experiment_with_a_parent_and_a_child_for_each_begun_run(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=3)
    done, running, planned = study.ids
    study.complete(done, bleu=31.5)
    study.start(running)
    study.log(running, 10, 20)

    report = open_tracking(study.path).sync()

    assert report.complete
    assert (report.runs_new, report.runs_planned) == (2, 1)
    database = study.path / "mlflow.db"
    assert ("table3/smoke",) in rows(database, "SELECT name FROM experiments")
    found = tracked(database)
    assert found.keys() == {"", done, running}
    parents = rows(database, "SELECT DISTINCT value FROM tags WHERE key = 'mlflow.parentRunId'")
    assert parents == [(found[""]["uuid"],)]
    assert [found[id]["status"] for id in ("", done, running)] == ["RUNNING", "FINISHED", "RUNNING"]
    assert planned not in found
    study.attempts.pop(running).end("stopped")


def test_a_child_carries_identity_configuration_scores_and_artifacts(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    id = study.ids[1]
    study.complete(id, bleu=31.5)
    (study.path / "report").mkdir()
    (study.path / "report" / "index.html").write_text("<p>report</p>")
    open_tracking(study.path).sync()

    child = tracked(study.path / "mlflow.db")[id]
    tags = child["tags"]
    config = study.configs[id]
    expected = {
        "ablate.study": "study",
        "ablate.run_id": id,
        "ablate.hash": config.hash(),
        "variant": "A.h1",
        "group": "A",
        "seed": "1",
        "attempt": "1",
        "state": "done",
        "changes": "n_heads 1",
        "commit": "0123abcd",
        "dirty": "false",
        "host": "gpu7",
        "slurm_job": "70_4",
        "signature.bleu": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
        "reference_digest": "r" * 64,
        "corpus_digest": "c" * 64,
        "vocabulary_digest": "v" * 64,
        "differs_from_paper": "warmup 400",
        "mlflow.runName": "A.h1 seed 1",
    }
    assert {key: tags.get(key) for key in expected} == expected
    assert child["params"]["model.n_heads"] == "1"
    assert child["params"]["train.micro_batch_tokens"] == "none"
    metrics = child["metrics"]
    # The whole curve, at the times of its making.
    for step in range(10, 101, 10):
        for key, value in metrics_at(step).items():
            assert metrics[key, step] == (value, (1_800_000_000 + step) * 1000)
    flat = {key: value for (key, step), (value, _) in metrics.items() if step == 0}
    assert {key: flat.get(key) for key in ("test/bleu", "test/chrf", "model/parameters", "time/data_seconds")} == {
        "test/bleu": 31.5,
        "test/chrf": 55.5,
        "model/parameters": 1_234_567,
        "time/data_seconds": 1.0,
    }
    assert (flat["test/by_distance/2"], flat["test/by_distance/10 or more"]) == (0.9, 0.7)
    files = {path.relative_to(study.path / "mlartifacts").as_posix() for path in _files(study.path / "mlartifacts")}
    place = f"{child['uuid']}/artifacts"
    names = ("config.json", "result.json", "environment.json", "hypotheses/test.txt", "hypotheses/valid.txt")
    assert {f"{place}/{name}" for name in names} <= files
    assert (study.path / "mlartifacts" / place / "hypotheses/test.txt").read_text() == "ein hund läuft\n\n"
    parent = tracked(study.path / "mlflow.db")[""]["uuid"]
    assert {f"{parent}/artifacts/study.json", f"{parent}/artifacts/report/index.html"} <= files


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_states_are_mapped_and_nothing_stays_running_when_its_owner_is_dead(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=4)
    ended, killed, diverged, failed = study.ids
    for id in study.ids:
        study.start(id)
        study.log(id, 10)
    open_tracking(study.path).sync()
    assert {run["status"] for run in tracked(study.path / "mlflow.db").values()} == {"RUNNING"}

    study.end(ended, "stopped", "SIGTERM")
    study.die(killed)
    study.end(diverged, "diverged", "20 updates with a loss of nan, the last at step 40")
    study.end(failed, "failed", "CheckError: the disk is full")
    report = open_tracking(study.path).sync()

    found = tracked(study.path / "mlflow.db")
    assert [found[id]["status"] for id in study.ids] == ["KILLED", "KILLED", "FAILED", "FAILED"]
    assert found[diverged]["tags"]["state"] == "diverged"
    assert found[diverged]["tags"]["reason"] == "20 updates with a loss of nan, the last at step 40"
    assert "ended without a word" in found[killed]["tags"]["reason"]
    assert found[""]["status"] == "FAILED"
    assert report.closed == 2


def test_a_retried_run_goes_on_in_the_same_child(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    (id,) = study.ids
    study.start(id)
    study.log(id, 10, 20)
    study.end(id, "failed", "out of memory")
    open_tracking(study.path).sync()
    before = tracked(study.path / "mlflow.db")
    assert (before[id]["status"], before[""]["status"]) == ("FAILED", "FAILED")

    study.start(id)
    study.log(id, *range(30, 101, 10))
    study.finish(id)
    open_tracking(study.path).sync()

    after = tracked(study.path / "mlflow.db")
    assert after[id]["uuid"] == before[id]["uuid"]
    assert (after[id]["status"], after[""]["status"]) == ("FINISHED", "FINISHED")
    assert (after[id]["tags"]["attempt"], after[id]["tags"]["reason"]) == ("2", "")


def test_steps_are_never_sent_twice_after_a_resume(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    (id,) = study.ids
    study.start(id)
    study.log(id, 10, 20, 30, 40)
    open_tracking(study.path).sync()
    study.die(id)
    study.directory(id).drop_metrics_after(20)  # the last checkpoint
    open_tracking(study.path).sync()
    study.start(id)
    study.log(id, 30, start=1_900_000_000.0)  # the same values, at other times
    open_tracking(study.path).sync()
    study.log(id, *range(40, 101, 10), start=1_900_000_000.0)
    study.finish(id)
    open_tracking(study.path).sync()
    open_tracking(study.path).sync(full=True)

    metrics = tracked(study.path / "mlflow.db")[id]["metrics"]  # fails itself when a step is there twice
    curve = {step: value for (key, step), (value, _) in metrics.items() if key == "train/loss"}
    assert curve == {step: metrics_at(step)["train/loss"] for step in range(10, 101, 10)}
    times = {step: milliseconds for (key, step), (_, milliseconds) in metrics.items() if key == "train/loss"}
    assert times[40] == (1_800_000_000 + 40) * 1000
    assert times[50] == (1_900_000_000 + 50) * 1000


def test_a_second_sync_changes_no_row(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=3)
    study.complete(study.ids[0])
    study.start(study.ids[1])
    study.die(study.ids[1])
    open_tracking(study.path).sync()
    before = everything(study.path / "mlflow.db")
    for full in (False, True, False):
        report = open_tracking(study.path).sync(full=full)
        assert (report.complete, report.changed, report.runs_same) == (True, False, 2)
        assert everything(study.path / "mlflow.db") == before


def test_a_sync_with_nothing_to_do_does_not_even_import_mlflow(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=3)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    code = (
        "import sys; from pathlib import Path; from ablations.tracking import open_tracking\n"
        f"print(open_tracking(Path({str(study.path)!r})).sync(), 'mlflow' in sys.modules, 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("0 new, 0 changed, 1 as before, 2 not begun False False")


def test_only_what_is_new_is_sent(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    tracking = open_tracking(study.path)
    tracking.sync()
    study.complete(study.ids[1])
    report = tracking.sync()
    assert (report.runs_new, report.runs_changed, report.runs_same) == (1, 0, 1)


def test_a_lost_marker_file_doubles_nothing(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = everything(study.path / "mlflow.db")
    for content in (None, "", "{}", '{"schema": 1, "stores": {"mlflow.db": {"place": 3}}}'):
        (study.path / "tracking.json").unlink()
        if content is not None:
            (study.path / "tracking.json").write_text(content)
        assert open_tracking(study.path).sync().complete
        assert everything(study.path / "mlflow.db") == before


def test_of_two_mlflow_runs_of_one_run_the_older_stays(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    (id,) = study.ids
    study.complete(id)
    open_tracking(study.path).sync()
    database = study.path / "mlflow.db"
    first = tracked(database)[id]["uuid"]
    second = _copy_of(study.path, first)
    report = open_tracking(study.path).sync(full=True)
    assert report.duplicates == 1
    assert tracked(database)[id]["uuid"] == first
    assert rows(database, "SELECT lifecycle_stage, status FROM runs WHERE run_uuid = ?", second) == [
        ("deleted", "KILLED")
    ]
    assert open_tracking(study.path).sync(full=True).duplicates == 0


def _copy_of(study: Path, uuid: str) -> str:
    """A second MLflow run with the tags of one, as a request that was sent twice leaves it."""
    client = _client(study)
    run = client.get_run(uuid)
    tags = {**run.data.tags, "ablate.created": str(float(run.data.tags["ablate.created"]) + 1)}
    return str(client.create_run(run.info.experiment_id, tags=tags).info.run_id)


def _client(study: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=store_of(study).uri)


def test_a_run_deleted_on_the_pages_comes_back_as_itself(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    (id,) = study.ids
    study.complete(id)
    open_tracking(study.path).sync()
    before = tracked(study.path / "mlflow.db")
    _client(study.path).delete_run(before[id]["uuid"])
    open_tracking(study.path).sync(full=True)
    assert tracked(study.path / "mlflow.db") == before


def test_a_deleted_experiment_comes_back(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = tracked(study.path / "mlflow.db")
    client = _client(study.path)
    client.delete_experiment(client.get_experiment_by_name("table3/smoke").experiment_id)
    open_tracking(study.path).sync()
    assert tracked(study.path / "mlflow.db") == before


def test_a_lost_database_is_built_again_from_the_run_directories(
    make: Callable[..., MadeStudy], empty_database: Path, tmp_path: Path
) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = shape(tracked(study.path / "mlflow.db"))
    for left in study.path.glob("mlflow.db*"):
        left.unlink()
    moved = study.path.rename(tmp_path / "elsewhere")  # MLflow keeps a connection to the old path
    shutil.copy(empty_database, moved / "mlflow.db")
    open_tracking(moved).sync()
    after = shape(tracked(moved / "mlflow.db"))
    assert after.keys() == before.keys()
    assert all(after[id]["metrics"] == before[id]["metrics"] for id in after if id)


def test_a_moved_study_keeps_its_runs_and_finds_its_artifacts(make: Callable[..., MadeStudy], tmp_path: Path) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = tracked(study.path / "mlflow.db")
    moved = study.path.rename(tmp_path / "an other name, 100 % ü")
    assert open_tracking(moved).sync().complete
    after = tracked(moved / "mlflow.db")
    assert {id: run["uuid"] for id, run in after.items()} == {id: run["uuid"] for id, run in before.items()}
    assert after[""]["tags"]["ablate.study"] == moved.name
    path = _client(moved).download_artifacts(after[study.ids[0]]["uuid"], "result.json", str(tmp_path))
    assert json.loads(Path(path).read_text())["test"]["bleu"] == 30.0


def test_two_studies_of_one_table_share_an_experiment_and_nothing_else(
    make: Callable[..., MadeStudy], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make("one", rows=1)
    two = make("two", rows=1, created="2026-02-01T00:00:00+00:00")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{one.path}/mlflow.db")
    for study in (one, two):
        study.complete(study.ids[0])
        open_tracking(study.path).sync()
    assert len(rows(one.path / "mlflow.db", "SELECT * FROM experiments")) == 2  # ours and MLflow's "Default"
    assert rows(one.path / "mlflow.db", "SELECT count(*) FROM runs") == [(4,)]
    assert not open_tracking(one.path).sync(full=True).changed


def test_a_grown_study_keeps_its_parent(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = tracked(study.path / "mlflow.db")
    grown = MadeStudy(study.path, rows=2, seeds=2)
    open_tracking(study.path).sync()
    after = tracked(study.path / "mlflow.db")
    assert after[""]["uuid"] == before[""]["uuid"]
    assert after[""]["tags"]["seeds"] == "1 2"
    assert after[""]["status"] == "KILLED"  # incomplete, and nobody works on it
    grown.complete(grown.ids[1])
    assert open_tracking(study.path).sync().runs_new == 1


def test_a_damaged_run_is_named_and_keeps_no_other_back(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    for id in study.ids:
        study.complete(id)
    damaged, good = study.ids
    (study.directory(damaged).path / "result.json").write_text("{")
    report = open_tracking(study.path).sync()
    assert not report.complete
    assert damaged in report.problems[0]
    assert good in tracked(study.path / "mlflow.db")
    assert damaged in str(report)


def test_many_values_go_in_few_requests(make: Callable[..., MadeStudy], monkeypatch: pytest.MonkeyPatch) -> None:
    study = make(rows=1)
    (id,) = study.ids
    study.start(id)
    study.log(id, *range(1, 1001))
    study.end(id, "stopped", "")
    sizes: list[int] = []
    from mlflow import MlflowClient

    real = MlflowClient.log_batch

    def counted(self: Any, run_id: str, metrics: Any = (), **others: Any) -> Any:
        sizes.append(len(metrics))
        return real(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(MlflowClient, "log_batch", counted)
    open_tracking(study.path).sync()
    values = sum(len(metrics_at(step)) for step in range(1, 1001))
    assert sum(sizes) - values < 20  # and the study's summary
    assert max(sizes) == 1000
    assert len(sizes) < 15


# Interrupted anywhere.


class Cut(BaseException):
    """The end of the process, as seen from inside."""


CALLS = (
    "create_experiment",
    "set_experiment_tag",
    "create_run",
    "log_batch",
    "log_artifact",
    "set_terminated",
    "update_run",
)


def _cut_at(monkeypatch: pytest.MonkeyPatch, number: int, *, done: bool) -> Callable[[], int]:
    """Let the process end at the `number`-th writing call, before or after the store has done it."""
    from mlflow import MlflowClient

    calls = 0

    def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number and not done:
                raise Cut
            answer = real(*arguments, **options)
            if calls == number:
                raise Cut
            return answer

        return call

    for name in CALLS:
        monkeypatch.setattr(MlflowClient, name, cutting(getattr(MlflowClient, name)))
    return lambda: calls


def test_a_sync_cut_at_any_call_and_repeated_is_as_one_that_was_not(
    make: Callable[..., MadeStudy], empty_database: Path, tmp_path: Path
) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    study.start(study.ids[1])
    study.log(study.ids[1], 10, 20)
    study.die(study.ids[1])
    with pytest.MonkeyPatch.context() as patch:
        count = _cut_at(patch, -1, done=False)
        open_tracking(study.path).sync()
        calls = count()
    undisturbed = shape(tracked(study.path / "mlflow.db"))
    assert calls > 20
    for number in range(1, calls + 1, 3):
        copy = tmp_path / f"cut-{number}" / "study"
        shutil.copytree(study.path, copy, ignore=shutil.ignore_patterns("mlflow.db*", "tracking.json", "mlartifacts"))
        shutil.copy(empty_database, copy / "mlflow.db")
        with pytest.MonkeyPatch.context() as patch:
            _cut_at(patch, number, done=number % 2 == 0)
            with pytest.raises(Cut):
                open_tracking(copy).sync()
        assert open_tracking(copy).sync().complete
        found = shape(tracked(copy / "mlflow.db"))
        assert _without_place(found) == _without_place(undisturbed), f"cut at call {number}"


def _without_place(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    places = ("directory", "mlflow.note.content")
    return {
        id: run | {"tags": {name: value for name, value in run["tags"].items() if name not in places}}
        for id, run in found.items()
    }


@pytest.mark.slow
def test_killed_at_random_times_and_repeated_nothing_is_there_twice(
    make: Callable[..., MadeStudy], tmp_path: Path
) -> None:
    study = make(rows=5, seeds=4)
    for id in study.ids:
        study.complete(id)
    code = (
        "from pathlib import Path; from ablations.tracking import open_tracking\n"
        "import ablations.tracking.server, mlflow; print('ready', flush=True)\n"
        f"print(open_tracking(Path({str(study.path)!r})).sync(), flush=True)"
    )
    for tenth in range(1, 16):
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(tenth / 10)
        process.kill()
        process.communicate()
        if tenth % 3 == 0:
            (study.path / "tracking.json").unlink(missing_ok=True)
    assert open_tracking(study.path).sync().complete
    assert open_tracking(study.path).sync(full=True).complete
    found = tracked(study.path / "mlflow.db")
    assert found.keys() == {"", *study.ids}
    assert {run["status"] for run in found.values()} == {"FINISHED"}
    assert rows(study.path / "mlflow.db", "SELECT count(*) FROM runs") == [(21,)]
    again = make("undisturbed", rows=5, seeds=4)
    shutil.rmtree(again.path / "runs")
    shutil.copytree(study.path / "runs", again.path / "runs")
    open_tracking(again.path).sync()
    for id, run in tracked(again.path / "mlflow.db").items():
        if id:
            assert run["metrics"] == found[id]["metrics"]
            assert run["params"] == found[id]["params"]


def test_several_drivers_at_once_make_one_database_one_parent_and_one_child_each(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=2)
    study.complete(study.ids[0])
    code = (
        "from pathlib import Path; from ablations.tracking import open_tracking\n"
        f"tracking = open_tracking(Path({str(study.path)!r}))\n"
        "assert tracking.prepare()\n"
        "report = tracking.sync()\n"
        "assert report.complete, report"
    )
    drivers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [driver.wait() for driver in drivers] == [0, 0, 0]
    assert tracked(study.path / "mlflow.db").keys() == {"", study.ids[0]}
    assert rows(study.path / "mlflow.db", "SELECT count(*) FROM runs") == [(2,)]
    assert [path.name for path in study.path.iterdir() if ".new" in path.name] == []


def test_a_writer_killed_within_a_transaction_does_not_spoil_the_database(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=1)
    database = study.path / "mlflow.db"
    code = (
        "import os, sqlite3, sys\n"
        "connection = sqlite3.connect(sys.argv[1])\n"
        "connection.execute('PRAGMA cache_size = 1')\n"  # so that changes go to the file before the end
        "connection.execute('CREATE TABLE left (text)')\n"
        "connection.executemany('INSERT INTO left VALUES (?)', [('x' * 5000,)] * 500)\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(database)], check=False)
    assert (study.path / "mlflow.db-journal").exists()
    study.complete(study.ids[0])
    assert open_tracking(study.path).sync().complete
    assert tracked(database).keys() == {"", study.ids[0]}


def test_another_file_of_that_name_is_not_touched(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    (study.path / "mlflow.db").write_text("my notes")
    report = open_tracking(study.path).sync()
    assert "no MLflow database" in report.problems[0]
    assert (study.path / "mlflow.db").read_text() == "my notes"


def test_no_study_is_an_error_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no study"):
        open_tracking(tmp_path / "nowhere").sync()


# While it runs.


def eventually(check: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


def test_a_running_study_is_followed(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    first, second = study.ids
    database = study.path / "mlflow.db"
    tracking = open_tracking(study.path)
    assert tracking.prepare()
    follower = tracking.follow(seconds=0.05)
    study.start(first)
    study.log(first, 10)
    eventually(lambda: first in tracked(database) and ("train/loss", 10) in tracked(database)[first]["metrics"])
    study.log(first, 20)
    eventually(lambda: ("train/loss", 20) in tracked(database)[first]["metrics"])
    assert tracked(database)[""]["status"] == "RUNNING"
    study.log(first, *range(30, 101, 10))
    study.finish(first)
    eventually(lambda: tracked(database)[first]["status"] == "FINISHED")
    assert tracked(database)[""]["status"] == "RUNNING"  # the driver is at work
    study.complete(second)
    report = follower.close()
    assert report is not None
    assert report.complete
    assert [tracked(database)[id]["status"] for id in ("", first, second)] == ["FINISHED"] * 3
    before = everything(database)
    assert not open_tracking(study.path).sync(full=True).changed
    assert everything(database) == before
    assert follower.close() is report


def test_a_sync_beside_a_follower_doubles_nothing(make: Callable[..., MadeStudy]) -> None:
    study = make(rows=2)
    follower = open_tracking(study.path).follow(seconds=0.01)
    for id in study.ids:
        study.start(id)
    for step in range(10, 101, 10):
        for id in study.ids:
            study.log(id, step)
        assert open_tracking(study.path).sync().complete
    for id in study.ids:
        study.finish(id)
    assert follower.close() is not None
    assert tracked(study.path / "mlflow.db").keys() == {"", *study.ids}
    assert rows(study.path / "mlflow.db", "SELECT count(*) FROM runs") == [(3,)]


def test_a_dead_server_is_said_once_and_nothing_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:secret@127.0.0.1:{port}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tracking = open_tracking(study.path)
    with caplog.at_level(logging.INFO):
        assert not tracking.prepare()
        caplog.clear()
        follower = tracking.follow(seconds=0.01)
        study.complete(study.ids[0])
        eventually(lambda: bool(caplog.messages))
        assert follower.close(timeout=20) is None
    told = [message for message in caplog.messages if "nothing listens there; training goes on" in message]
    assert len(told) == 1
    assert f"ablate sync {study.path}" in caplog.messages[-1]
    assert not any("secret" in message for message in caplog.messages)
    report = tracking.sync()
    assert report.problems == [f"MLflow at http://127.0.0.1:{port}: nothing listens there"]


def test_a_server_that_never_answers_holds_up_the_end_for_the_time_given_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "120")
        follower = open_tracking(study.path).follow(seconds=0.01)
        closed = threading.Thread(target=follower.close, args=(0.2,))
        closed.start()
        closed.join(60)
        assert not closed.is_alive()
    assert f"ablate sync {study.path}" in caplog.text


# A real server.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[str]:
    """A real MLflow server with a store of its own."""
    home = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, home / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with running_server(home, 0) as (url, _):
            yield url


def test_a_server_gets_what_a_database_gets(
    server: str, make: Callable[..., MadeStudy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    study = make(rows=3)
    study.complete(study.ids[0])
    study.start(study.ids[1])
    study.log(study.ids[1], 10, 20)
    study.end(study.ids[1], "diverged", "nan")
    open_tracking(study.path).sync()
    expected = tracked(study.path / "mlflow.db")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    tracking = open_tracking(study.path)
    assert tracking.prepare()
    follower = tracking.follow(seconds=0.05)
    report = follower.close(timeout=60)
    assert report is not None
    assert report.complete
    assert not tracking.sync().changed
    assert not tracking.sync(full=True).changed

    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("table3/smoke").experiment_id
    runs = {run.data.tags.get("ablate.run_id", ""): run for run in client.search_runs([experiment])}
    assert runs.keys() == expected.keys()
    for id, run in runs.items():
        assert run.info.status == expected[id]["status"]
        assert run.data.params == expected[id]["params"]
        curves = {key for key, _ in expected[id]["metrics"]}
        assert run.data.metrics.keys() == curves
        for key in curves:
            points = {
                (point.step, point.value, point.timestamp) for point in client.get_metric_history(run.info.run_id, key)
            }
            assert points == {(step, *at) for (name, step), at in expected[id]["metrics"].items() if name == key}
    done = runs[study.ids[0]].info.run_id
    path = client.download_artifacts(done, "hypotheses/test.txt", str(tmp_path))
    assert (
        Path(path).read_text() == RunDirectory(study.directory(study.ids[0]).path).hypotheses_path("test").read_text()
    )
