"""MLflow says what the run directories say: each run once, each metric once a step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tracking_study import MadeStudy, empty_database, everything, metrics_at, rows, shape, tracked

from ablations.tracking import open_tracking
from ablations.tracking.stores import store_of


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., MadeStudy]:
    """Makes studies that have an empty database already."""

    def made(name: str = "study", **options: Any) -> MadeStudy:
        study = MadeStudy(tmp_path / name, **options)
        shutil.copy(empty_database(), study.path / "mlflow.db")
        return study

    return made


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
        "valid_reference_digest": "w" * 64,
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
    make: Callable[..., MadeStudy], tmp_path: Path
) -> None:
    study = make(rows=2)
    study.complete(study.ids[0])
    open_tracking(study.path).sync()
    before = shape(tracked(study.path / "mlflow.db"))
    for left in study.path.glob("mlflow.db*"):
        left.unlink()
    moved = study.path.rename(tmp_path / "elsewhere")  # MLflow keeps a connection to the old path
    shutil.copy(empty_database(), moved / "mlflow.db")
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
