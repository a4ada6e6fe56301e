"""Whatever a tracking server does, runs are as without it, and one sync mends what it missed."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tracking_proxy import Proxy, free_port, proxied
from tracking_study import MadeStudy, empty_database, everything, rows, shape, tracked

from ablations.tracking import open_tracking
from ablations.tracking.follower import pause_after
from ablations.ui import ui_command
from repro.runs.directory import RunDirectory
from repro.runs.outcome import TIMES


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The only way to the server. The client gives up at once where it is refused, and never for a busy machine."""
    with proxied(server) as between:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", between.url)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        yield between


def made(tmp_path: Path, name: str, **options: Any) -> MadeStudy:
    """A study that no other test has."""
    made_at = f"2026-02-{1 + hash(str(tmp_path)) % 27:02d}T00:00:{len(name):02d}+00:00"
    return MadeStudy(tmp_path / name, created=made_at, **options)


def in_server(home: Path, study: MadeStudy) -> dict[str, dict[str, Any]]:
    """What the server shows of a study, each run once."""
    database = home / "mlflow.db"
    found: dict[str, dict[str, Any]] = {}
    with closing(sqlite3.connect(database)) as connection:
        query = (
            "SELECT r.run_uuid FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid "
            "WHERE r.lifecycle_stage = 'active' AND t.key = 'directory' AND t.value LIKE ?"
        )
        ours = {uuid for (uuid,) in connection.execute(query, (f"{study.path.resolve()}%",))}
    for uuid in ours:
        tags = dict(rows(database, "SELECT key, value FROM tags WHERE run_uuid = ?", uuid))
        run_id = tags.get("ablate.run_id", "")
        assert run_id not in found, f"{run_id} is there twice"
        values = rows(database, "SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = ?", uuid)
        points = {(key, step): (value, at) for key, step, value, at in values}
        assert len(points) == len(values), "a metric twice at a step"
        ((status,),) = rows(database, "SELECT status FROM runs WHERE run_uuid = ?", uuid)
        tags = {name: tags[name] for name in ("state", "attempt", "seed", "variant") if name in tags}
        params = dict(rows(database, "SELECT key, value FROM params WHERE run_uuid = ?", uuid))
        found[run_id] = {"status": status, "tags": tags, "params": params, "metrics": points}
    return found


def expected_of(study: MadeStudy, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """What a database of its own shows of a copy of the study that nobody disturbed."""
    copy = tmp_path / "undisturbed" / study.path.name
    shutil.copytree(study.path, copy, ignore=shutil.ignore_patterns("mlflow*", "mlartifacts", "tracking.json"))
    shutil.copy(empty_database(), copy / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert open_tracking(copy).sync().complete
    found = tracked(copy / "mlflow.db")
    names = ("state", "attempt", "seed", "variant")
    return {
        id: {"status": run["status"], "params": run["params"], "metrics": run["metrics"]}
        | {"tags": {name: run["tags"][name] for name in names if name in run["tags"]}}
        for id, run in found.items()
    }


def records(study: MadeStudy) -> dict[str, bytes]:
    """The files of all runs."""
    return {
        path.relative_to(study.path).as_posix(): path.read_bytes()
        for path in sorted((study.path / "runs").rglob("*"))
        if path.is_file()
    }


def eventually(check: Callable[[], bool], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)


# A server that comes and goes.


def test_a_server_that_is_down_then_breaks_off_then_comes_back_has_all_in_the_end(
    home: Path, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = made(tmp_path, "comes-and-goes", rows=3)
    first, second, third = study.ids
    proxy.down()
    with caplog.at_level(logging.INFO):
        follower = open_tracking(study.path).follow(seconds=0.02)
        study.complete(first)
        eventually(lambda: "nothing listens there; training goes on" in caplog.text)
        proxy.up()
        study.start(second)
        study.log(second, 10, 20, 30)
        eventually(lambda: ("train/loss", 30) in in_server(home, study).get(second, {}).get("metrics", {}))
        eventually(lambda: "MLflow is up to date again" in caplog.text)  # the same trouble is told once until then
        caplog.clear()
        proxy.down()
        study.log(second, 40, 50)
        eventually(lambda: "training goes on" in caplog.text)
        study.log(second, *range(60, 101, 10))
        study.finish(second)
        proxy.up()
        study.complete(third)
        eventually(lambda: "MLflow is up to date again" in caplog.text)
        before = records(study)
        report = follower.close(timeout=240)
    assert report is not None
    assert report.complete
    assert records(study) == before
    assert in_server(home, study) == expected_of(study, tmp_path)


REFUSALS = {
    401: "it wants a login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
    403: "it refuses this user: check MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN",
    500: "it answers with errors",
    503: "it answers with errors",
}


def test_a_refusal_is_one_line_that_says_what_to_do_and_a_sync_mends_it(
    home: Path, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = made(tmp_path, "refused", rows=2)
    study.complete(study.ids[0])
    for status, words in REFUSALS.items():
        proxy.refuse = status
        line = f"MLflow at {proxy.url}: {words}"
        assert open_tracking(study.path).sync().problems == [line]
        caplog.clear()
        follower = open_tracking(study.path).follow(seconds=0.01)
        eventually(lambda line=line: f"{line}; training goes on" in caplog.messages)
        assert follower.close(timeout=60) is None
        assert caplog.messages[-1] == f"MLflow has not everything ({line}); run `ablate sync {study.path}` later"
    proxy.refuse = 0
    assert open_tracking(study.path).sync().complete
    assert in_server(home, study) == expected_of(study, tmp_path)


def test_a_port_or_an_id_that_holds_401_is_no_login(tmp_path: Path) -> None:
    from ablations.tracking.errors import tracking_error

    refused = ConnectionError("HTTPConnectionPool(host='h', port=54013): Connection refused")
    assert "nothing listens there" in str(tracking_error(refused, "s"))


def test_an_answer_that_is_lost_makes_no_second_run_and_no_second_value(
    home: Path, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    study = made(tmp_path, "lost", rows=2)
    for id in study.ids:
        study.complete(id)
    asked: Counter[str] = Counter()

    def lose(method: str, path: str) -> bool:
        name = path.rpartition("/")[2]
        asked[name] += 1
        # The parent is made by the first request, its first child by the third.
        return (name, asked[name]) in {("create", 1), ("create", 3), ("log-batch", 1), ("result.json", 1)}

    proxy.lose = lose
    report = open_tracking(study.path).sync()
    assert report.complete
    assert report.duplicates == 2
    assert in_server(home, study) == expected_of(study, tmp_path)
    assert not open_tracking(study.path).sync(full=True).changed


# A server that is slow.


def test_a_run_of_1000_points_costs_few_calls(proxy: Proxy, tmp_path: Path) -> None:
    study = made(tmp_path, "many", rows=1)
    (id,) = study.ids
    open_tracking(study.path).sync()  # experiment and parent
    study.start(id)
    study.log(id, *range(1, 1001))
    study.finish(id)
    proxy.calls.clear()
    assert open_tracking(study.path).sync().complete
    # 3 092 values in 4 requests, 9 files, and what makes, describes and ends the run and its parent.
    assert len(proxy.calls) < 40


def test_the_end_of_a_study_does_not_wait_for_a_server_that_owes_an_answer(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    study.complete(study.ids[0])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        code = (
            "from pathlib import Path; from ablations.tracking import open_tracking\n"
            f"print(open_tracking(Path({str(study.path)!r})).follow(seconds=0.01).close(timeout=3))"
        )
        environment = os.environ | {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "36000",
        }
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=400
        )
    assert done.stdout.strip() == "None"
    assert done.stderr.strip().endswith(f"run `ablate sync {study.path}` later")


# A second sync.


def test_following_takes_a_twentieth_of_a_core_at_most_and_looks_again_within_a_minute() -> None:
    assert pause_after(busy=0.01, least=3.0) == 3.0
    assert pause_after(busy=1.0, least=3.0) == 20.0
    assert pause_after(busy=30.0, least=3.0) == 60.0


def test_a_sync_of_nothing_new_asks_twice_however_many_runs_and_writes_nothing(proxy: Proxy, tmp_path: Path) -> None:
    asked = []
    for rows_, name in ((1, "few"), (5, "more")):
        study = made(tmp_path, name, rows=rows_)
        for id in study.ids:
            study.complete(id)
        assert open_tracking(study.path).sync().complete
        proxy.calls.clear()
        assert not open_tracking(study.path).sync().changed
        asked.append(list(proxy.calls))
        assert proxy.writes == []
    assert asked[0] == asked[1]
    assert len(asked[0]) == 2
    proxy.calls.clear()
    assert not open_tracking(study.path).sync(full=True).changed
    assert proxy.writes == []


def test_a_sync_of_nothing_new_opens_no_record_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = MadeStudy(tmp_path / "study", rows=3)
    shutil.copy(empty_database(), study.path / "mlflow.db")
    for id in study.ids:
        study.complete(id)
    open_tracking(study.path).sync()
    assert opened_runs(study, "sync") == set()


def test_the_status_of_a_study_reads_no_metrics(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=3)
    for id in study.ids:
        study.complete(id)
    opened = opened_runs(study, "status")
    assert "result.json" in opened
    assert not opened & {"metrics.jsonl", "valid.txt", "test.txt"}


def opened_runs(study: MadeStudy, command: str) -> set[str]:
    """The names of the files under runs/ that a command opens, as the interpreter itself tells."""
    code = (
        "import sys, os\n"
        "def hook(event, arguments):\n"
        "    if event == 'open' and '/runs/' in str(arguments[0]): print(os.path.basename(arguments[0]))\n"
        "sys.addaudithook(hook)\n"
        "from ablations.cli import run\n"
        f"sys.stderr.write(str(run([{command!r}, {str(study.path)!r}])))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0"
    return set(done.stdout.split("\n")) & {path.name for path in (study.path / "runs").rglob("*") if path.is_file()}


# Orphans.


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeStudy:
    """Two done runs, tracked in a database of their own."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = MadeStudy(tmp_path / "study", rows=2)
    shutil.copy(empty_database(), study.path / "mlflow.db")
    for id in study.ids:
        study.complete(id)
    assert open_tracking(study.path).sync().complete
    return study


def client_of(study: MadeStudy) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{study.path}/mlflow.db")


def test_whatever_stands_as_running_without_reason_is_put_right_by_a_plain_sync(own: MadeStudy) -> None:
    database = own.path / "mlflow.db"
    before = tracked(database)
    client = client_of(own)
    run = client.get_run(before[own.ids[0]]["uuid"])
    experiment = run.info.experiment_id
    # A second one, which a request that was given up has made after all; one of a run that the study does not have;
    # and a done one and its parent that somebody has set back.
    late = run.data.tags | {"ablate.created": str(float(run.data.tags["ablate.created"]) + 9)}
    client.create_run(experiment, tags=late)
    strange = {**run.data.tags, "ablate.run_id": "A.h9-s1-000000000000"}
    strange_id = client.create_run(experiment, tags=strange).info.run_id
    client.update_run(before[own.ids[1]]["uuid"], status="RUNNING")
    client.update_run(before[""]["uuid"], status="RUNNING")
    report = open_tracking(own.path).sync()
    assert report.complete
    assert report.duplicates == 1
    after = tracked(database)
    assert after.pop("A.h9-s1-000000000000")["status"] == "KILLED"
    assert {id: run["status"] for id, run in after.items()} == dict.fromkeys(("", *own.ids), "FINISHED")
    assert shape(after) == shape(before)
    assert rows(database, "SELECT status FROM runs WHERE run_uuid = ?", strange_id) == [("KILLED",)]
    assert rows(database, "SELECT count(*) FROM runs WHERE status = 'RUNNING'") == [(0,)]
    content = everything(database)
    for full in (False, True):
        assert not open_tracking(own.path).sync(full=full).changed
        assert everything(database) == content


def test_a_duplicate_whose_removal_was_cut_short_is_removed(own: MadeStudy) -> None:
    database = own.path / "mlflow.db"
    kept = tracked(database)[own.ids[0]]["uuid"]
    client = client_of(own)
    run = client.get_run(kept)
    tags = run.data.tags | {"ablate.duplicate_of": kept}
    left = client.create_run(run.info.experiment_id, tags=tags).info.run_id
    assert open_tracking(own.path).sync().complete
    assert rows(database, "SELECT status, lifecycle_stage FROM runs WHERE run_uuid = ?", left) == [
        ("KILLED", "deleted")
    ]
    assert not open_tracking(own.path).sync(full=True).changed


def test_a_superseded_run_is_told_apart_and_its_study_stays_one(own: MadeStudy) -> None:
    database = own.path / "mlflow.db"
    old, new = own.ids
    document = json.loads((own.path / "study.json").read_text())
    was = next(entry for entry in document["runs"] if entry["id"] == old)
    document["runs"] = [entry for entry in document["runs"] if entry["id"] != old]
    document["superseded"] = [was | {"why": "train.budget 100 -> 200", "since": "2026-02-01T00:00:00+00:00"}]
    history = {"until": "2026-02-01T00:00:00+00:00", "why": "the corpus", "set": [], "semantics": 1}
    document["history"] = [history | {"data": document["data"]}]
    document["data"] = document["data"] | {"digest": "e" * 64}
    (own.path / "study.json").write_text(json.dumps(document))
    assert open_tracking(own.path).sync().complete
    after = tracked(database)
    assert after.keys() == {"", old, new}  # `tracked` fails when there are two parents
    assert [after[id]["tags"]["ablate.kind"] for id in (old, new)] == ["superseded", "run"]
    assert after[old]["tags"]["superseded"] == "train.budget 100 -> 200"
    assert after[""]["tags"]["runs"] == "1 done"
    shutil.rmtree(own.directory(old).path)  # to free the disk
    assert open_tracking(own.path).sync().complete


# A database that goes away, and one that many meet.


def test_a_database_deleted_while_a_study_runs_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = MadeStudy(tmp_path / "study", rows=2)
    database = study.path / "mlflow.db"
    shutil.copy(empty_database(), database)
    first, second = study.ids
    follower = open_tracking(study.path).follow(seconds=0.02)
    study.complete(first)
    study.start(second)
    study.log(second, 10)
    eventually(lambda: second in tracked(database))
    (study.path / "mlartifacts").rename(tmp_path / "gone")
    for left in study.path.glob("mlflow.db*"):
        left.unlink()
    study.log(second, 20)
    eventually(database.exists)
    study.log(second, *range(30, 101, 10))
    study.finish(second)
    report = follower.close(timeout=240)
    assert report is not None
    assert report.complete
    found = tracked(database)
    assert {id: run["status"] for id, run in found.items()} == dict.fromkeys(("", *study.ids), "FINISHED")
    for id in study.ids:
        assert {step for key, step in found[id]["metrics"] if key == "train/loss"} == set(range(10, 101, 10))
        assert (study.path / "mlartifacts" / found[id]["uuid"] / "artifacts" / "result.json").is_file()
    assert not open_tracking(study.path).sync(full=True).changed


def test_a_database_deleted_between_two_syncs_of_one_process_is_filled_again(own: MadeStudy) -> None:
    database = own.path / "mlflow.db"
    before = shape(tracked(database))
    database.unlink()
    shutil.copy(empty_database(), database)
    assert open_tracking(own.path).sync().complete
    assert shape(tracked(database)) == before


@pytest.mark.parametrize("new", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_eight_syncing_processes_meet_one_database(tmp_path: Path, new: bool) -> None:
    studies = [
        MadeStudy(tmp_path / f"study-{number}", rows=2, created=f"2026-03-0{1 + number}T00:00:00+00:00")
        for number in range(4)
    ]
    for study in studies:
        for id in study.ids:
            study.complete(id)
    shared = tmp_path / "shared.db"
    if not new:
        shutil.copy(empty_database(), shared)
    code = (
        "import os, sys; from pathlib import Path; from ablations.tracking import open_tracking\n"
        "import ablations.tracking.server, mlflow, mlflow.store.tracking.sqlalchemy_store\n"
        "def sync(path):\n"
        "    if os.fork() == 0:\n"
        "        report = open_tracking(Path(path)).sync()\n"
        "        print(report, flush=True)\n"
        "        os._exit(0 if report.complete else 1)\n"
        "for path in sys.argv[1:] * 2: sync(path)\n"
        "sys.exit(sum(os.wait()[1] != 0 for _ in range(8)))"
    )
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{shared}"}
    done = subprocess.run(
        [sys.executable, "-c", code, *(str(study.path) for study in studies)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert rows(shared, "SELECT count(*) FROM runs WHERE status = 'FINISHED'") == [(12,)]
    assert rows(shared, "SELECT count(*) FROM runs") == [(12,)]
    names = [name for (name,) in rows(shared, "SELECT name FROM experiments ORDER BY name")]
    assert names == ["Default", "table3/smoke"]
    twice = "SELECT count(*) FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1"
    assert rows(shared, twice) == []


# Real ends, real sweeps.


@pytest.mark.slow
def test_a_server_killed_and_started_again_has_all_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(empty_database(), home / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")
    port = free_port()
    command = ui_command(home, port)
    study = MadeStudy(tmp_path / "study", rows=3)
    first, second, third = study.ids
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}

    def start() -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment, start_new_session=True)

    follower = open_tracking(study.path).follow(seconds=0.1)
    study.complete(first)
    process = start()
    try:
        eventually(lambda: first in in_server(home, study))
        study.start(second)
        study.log(second, 10, 20)
        eventually(lambda: second in in_server(home, study))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        study.log(second, *range(30, 101, 10))
        study.finish(second)
        process = start()
        study.complete(third)
        eventually(lambda: third in in_server(home, study), seconds=400)
        report = follower.close(timeout=400)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert report is not None
    assert report.complete
    assert in_server(home, study) == expected_of(study, tmp_path)


@pytest.mark.slow
def test_a_sweep_beside_a_server_of_two_seconds_a_call_has_the_bits_of_one_without(
    home: Path, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.delay = 2.0
    slow, alone = tmp_path / "slow" / "study", tmp_path / "alone" / "study"
    told = swept(slow, {"MLFLOW_TRACKING_URI": proxy.url})
    swept(alone, {})
    assert bits(slow) == bits(alone)
    # Thirty seconds at most go into the rest of the tracking; what is left is named.
    assert "MLflow at" in told or f"run `ablate sync {slow}` later" in told
    proxy.delay = 0.0
    assert open_tracking(slow).sync().complete
    assert rows(home / "mlflow.db", "SELECT count(*) FROM runs WHERE status = 'RUNNING'") == [(0,)]


def swept(study: Path, extra: dict[str, str]) -> str:
    settings = ["train.budget=200", "train.evaluate_every=100", "model.d_model=16", "model.d_ff=32", "model.n_layers=1"]
    command = [sys.executable, "-m", "ablations", "run", "demo", "--scale", "smoke", "--only", "base,A.h1"]
    command += ["--study", str(study), *(word for setting in settings for word in ("--set", setting))]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    environment |= {"ABLATE_DATA": str(study.parent.parent / "data")} | extra
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def bits(study: Path) -> dict[str, Any]:
    left = {}
    for path in sorted((study / "runs").iterdir()):
        run = RunDirectory(path)
        result = run.result()
        assert result is not None
        plain = {key: value for key, value in result.items() if key not in TIMES}
        left[path.name] = plain, run.hypotheses("valid"), run.hypotheses("test")
    return left
