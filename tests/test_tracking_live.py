"""Tracking survives kills at any time, follows a running study and waits for no server."""

from __future__ import annotations

import io
import logging
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tracking_study import MadeStudy, empty_database, everything, rows, shape, tracked

from ablations import conduct
from ablations.progress import Teller
from ablations.study import Study
from ablations.tracking import open_tracking
from ablations.ui import running_server
from repro.errors import CheckError
from repro.runs.directory import RunDirectory


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
    make: Callable[..., MadeStudy], tmp_path: Path
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
        shutil.copy(empty_database(), copy / "mlflow.db")
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


def test_runs_begin_while_a_server_still_owes_its_first_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "3600")
        begun = threading.Event()

        def begin() -> None:
            with conduct.tracked(Study.load(study.path), Teller(Console(file=io.StringIO()))):
                begun.set()

        threading.Thread(target=begin, daemon=True).start()
        assert begun.wait(120)


# A real server.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server with a store of its own."""
    home = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database(), home / "mlflow.db")
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
