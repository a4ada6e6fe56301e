"""`ablate pull` makes a study again from MLflow: the same records, the same report, and nothing of anybody's lost."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reports_study import full_study
from tracking_proxy import free_port
from tracking_study import MadeStudy, empty_database, everything, tracked

from ablations.cli import run as ablate
from ablations.tracking import open_tracking
from reports.pages.page import write_report
from repro.files import digest_of
from repro.runs.attempts import claim
from repro.runs.directory import RunDirectory, Status

EXPERIMENT = "table3/smoke"


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")  # a busy machine is no trouble of ours


@pytest.fixture
def study(tmp_path: Path) -> MadeStudy:
    """Four runs: done, diverged, left by a killed process, not begun."""
    made = MadeStudy(tmp_path / "there" / "study", rows=4)
    shutil.copy(empty_database(), made.path / "mlflow.db")
    done, diverged, killed, _ = made.ids
    made.complete(done)
    made.start(diverged)
    made.log(diverged, 10)
    made.end(diverged, "diverged", "20 updates with a loss of nan, the last at step 10")
    made.start(killed)
    made.log(killed, 10, 20)
    made.die(killed)
    assert open_tracking(made.path).sync().complete
    return made


@pytest.fixture
def pull(study: MadeStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Pulls the study to `here`; the exit code and all that was said."""

    def pulled(*options: str, here: Path = tmp_path / "here", experiment: str = EXPERIMENT) -> tuple[int, str]:
        capsys.readouterr()
        uri = f"sqlite:///{study.path}/mlflow.db"
        command = ["pull", "--experiment", experiment, "--study", str(here), "--tracking-uri", uri, *options]
        code = ablate(command)
        return code, "".join(capsys.readouterr())

    return pulled


def records(study: Path) -> dict[str, bytes]:
    """Plan and runs, without what only the machine that trained has."""
    found = [study / "study.json", *(path for path in (study / "runs").rglob("*") if path.is_file())]
    return {
        path.relative_to(study).as_posix(): path.read_bytes()
        for path in found
        if not any(part.startswith(".") or part == "checkpoints" for part in path.relative_to(study).parts)
    }


def begun(content: dict[str, bytes]) -> dict[str, bytes]:
    """Without runs of which there is a configuration only."""
    folders = {name.split("/")[1] for name in content if name.count("/") > 1 and not name.endswith("config.json")}
    return {name: data for name, data in content.items() if name == "study.json" or name.split("/")[1] in folders}


# The same study.


def test_the_report_of_a_study_pulled_from_a_server_is_the_same(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {
        ("A.h1", 2): ("diverged", "20 updates with a loss of nan"),
        ("E.learned", 1): ("failed", "CheckError: the disk is full"),
        ("E.learned", 2): ("stopped", "SIGTERM"),
        ("base", 3): ("missing", ""),
    }
    only = ("base", "A.h1", "E.learned")
    there, here = tmp_path / "there" / "study", tmp_path / "here" / "study"
    full_study(there, seeds=(1, 2, 3), only=only, states=states)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert open_tracking(there).sync().complete
    experiment = json.loads((there / "study.json").read_text())["table"] + "/smoke"
    assert ablate(["pull", "--experiment", experiment, "--study", str(here)]) == 0
    assert records(here) == records(there)
    for path in (there, here):
        write_report(path)
    pages = [{page.name: page.read_bytes() for page in (path / "report").rglob("*.*")} for path in (there, here)]
    assert {"index.html", "report.md"} < pages[0].keys()
    assert pages[0] == pages[1]


def test_a_file_that_a_server_has_lost_is_named(
    server: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    made = MadeStudy(tmp_path / "there" / "study", rows=2)
    for id in made.ids:
        made.complete(id)
    assert open_tracking(made.path).sync().complete
    lost = next(path for path in home.rglob("result.json") if made.ids[0] in path.read_text())
    lost.unlink()
    command = ["pull", "--experiment", EXPERIMENT, "--study", str(tmp_path / "here"), "--study-id", "study"]
    assert ablate(command) == 1
    told = capsys.readouterr().out
    assert f"run {made.ids[0]} is left out" in told
    assert "its result.json is missing" in told
    assert "1 runs pulled" in told
    # One look into all files there puts it right, here as well.
    assert open_tracking(made.path).sync(full=True).complete


def test_what_is_pulled_is_what_was_stored_and_a_second_pull_changes_nothing(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, told = pull()
    assert code == 0
    assert "3 runs pulled, 1 not begun" in told
    assert "Checkpoints are not kept in MLflow, so none were pulled." in told
    here = tmp_path / "here"
    assert records(here) == begun(records(study.path))
    # Where the run that was killed stands does not depend on how fresh its files are.
    killed = study.ids[2]
    assert RunDirectory(here / "runs" / killed).status() == study.directory(killed).status()
    assert RunDirectory(here / "runs" / killed).status().state == "stopped"
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file() and path.name[0] != "."}
    code, told = pull()
    assert (code, "0 runs pulled, 3 here already, 1 not begun" in told) == (0, True)
    after = {path: path.stat().st_mtime_ns for path in here.rglob("*") if path.is_file() and path.name[0] != "."}
    del before[here / "tracking.json"], after[here / "tracking.json"]
    assert after == before


def test_a_pull_writes_nothing_into_mlflow(study: MadeStudy, pull: Callable[..., tuple[int, str]]) -> None:
    before = everything(study.path / "mlflow.db")
    pull()
    assert everything(study.path / "mlflow.db") == before


class Cut(BaseException):
    """The end of the process, as seen from inside."""


def test_a_pull_cut_at_any_file_and_repeated_is_as_one_that_was_not(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    real = MlflowClient.download_artifacts
    calls = 0

    def cutting(number: int) -> Callable[..., str]:
        def call(*arguments: Any) -> str:
            nonlocal calls
            calls += 1
            if calls == number:
                raise Cut
            return str(real(*arguments))

        return call

    expected = begun(records(study.path))
    for number in (1, 2, 9, 16):
        here, calls = tmp_path / f"cut-{number}", 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MlflowClient, "download_artifacts", cutting(number))
            with pytest.raises(Cut):
                pull(here=here)
        half = records(here) if (here / "study.json").exists() else {}
        assert half.items() <= expected.items()
        for folder in (here / "runs").glob("*"):  # whole or not there
            whole = {name for name in expected if name.startswith(f"runs/{folder.name}/")}
            assert whole <= half.keys()
        assert pull(here=here)[0] == 0
        assert records(here) == expected
        assert not (here / ".pull").exists()


def test_a_run_that_is_worked_on_comes_once_it_has_ended(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    last = study.ids[3]
    study.start(last)
    study.log(last, 10)
    open_tracking(study.path).sync()
    assert "1 not finished there" in pull()[1]
    assert not (tmp_path / "here" / "runs" / last).exists()
    study.log(last, *range(20, 101, 10))
    study.finish(last)
    open_tracking(study.path).sync()
    assert "1 runs pulled, 3 here already" in pull()[1]
    assert records(tmp_path / "here") == records(study.path)


# Into a directory that is a study already.


def test_a_run_that_has_more_here_stays_and_one_that_has_less_is_completed(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    planned, stopped, trained, mine = study.ids
    for id in (stopped, trained, mine):
        study.start(id)
        study.log(id, *range(30, 101, 10))
        study.finish(id, bleu=40.0)
    open_tracking(study.path).sync()  # all four are done there
    here = MadeStudy(tmp_path / "here", rows=4, name="study")
    assert here.directory(planned).status().state == "planned"
    for id in (stopped, trained):
        here.start(id)
        here.end(id, "stopped", "SIGTERM")
    here.directory(trained).checkpoints.mkdir()  # it can go on from them
    here.complete(mine, bleu=25.0)
    kept = {id: records_of(here.directory(id)) for id in (trained, mine)}
    code, told = pull()
    assert code == 0
    assert "2 runs pulled, 2 here already" in told
    assert {id: records_of(here.directory(id)) for id in (trained, mine)} == kept
    for id in (planned, stopped):
        assert records_of(here.directory(id)) == records_of(study.directory(id))


def records_of(run: RunDirectory) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_moved_aside_by_a_pull_that_was_killed_is_put_back(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    here = MadeStudy(tmp_path / "here", rows=4, name="study")
    mine = here.ids[3]  # nothing of it is there
    here.complete(mine)
    before = records_of(here.directory(mine))
    (here.path / ".pull" / "aside").mkdir(parents=True)
    here.directory(mine).path.rename(here.path / ".pull" / "aside" / mine)
    assert pull()[0] == 0
    assert records_of(here.directory(mine)) == before


def test_a_run_that_somebody_works_on_here_stays(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    here = MadeStudy(tmp_path / "here", rows=4, name="study")
    attempt = claim(here.directory(study.ids[0]))
    assert attempt is not None
    with attempt:
        assert pull()[0] == 0
        assert attempt.still_mine()
        assert here.directory(study.ids[0]).result() is None


def test_a_pulled_study_goes_on_from_what_it_has(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    pull()
    done, _, killed, _ = study.ids
    here = tmp_path / "here" / "runs"
    assert RunDirectory(here / done).status().state == "done"
    attempt = claim(RunDirectory(here / killed))
    assert attempt is not None
    assert attempt.number == 2
    attempt.end("stopped")


def test_a_grown_plan_completes_the_one_here_and_two_that_grew_apart_are_left_alone(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    pull()
    grown = MadeStudy(study.path, rows=5)
    grown.complete(grown.ids[4])
    open_tracking(study.path).sync()
    code, told = pull()
    assert code == 0
    assert "1 runs pulled, 3 here already, 1 not begun" in told
    plan = tmp_path / "here" / "study.json"
    assert plan.read_bytes() == (study.path / "study.json").read_bytes()
    document = json.loads(plan.read_text())
    gone = document["runs"].pop(0)
    own = gone | {"id": "base-s9-aaaaaaaaaaaa", "seed": 9, "directory": "runs/base-s9-aaaaaaaaaaaa"}
    plan.write_text(json.dumps(document | {"runs": [own, *document["runs"]]}))
    before = plan.read_bytes()
    code, told = pull()
    assert code == 3
    assert f"base-s9-aaaaaaaaaaaa is only here, {gone['id']} only there" in told
    assert plan.read_bytes() == before


def test_another_study_and_another_directory_are_not_touched(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    other = MadeStudy(tmp_path / "other", rows=1, created="2026-05-01T00:00:00+00:00")
    before = records(other.path)
    code, told = pull(here=other.path)
    assert (code, "holds another study" in told) == (3, True)
    assert records(other.path) == before
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("mine")
    code, told = pull(here=notes)
    assert (code, "is no study and not empty (holds 'notes.txt')" in told) == (3, True)
    assert [path.name for path in notes.iterdir()] == ["notes.txt"]


# What cannot be pulled.


def test_an_unknown_experiment_is_told_with_those_that_exist(pull: Callable[..., tuple[int, str]]) -> None:
    code, told = pull(experiment="table3/paper")
    assert code == 2
    assert told.count("\n") == 1
    assert "no experiment 'table3/paper'" in told
    assert "it has: table3/smoke" in told


def test_of_several_studies_one_is_chosen_by_id_or_name(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = MadeStudy(tmp_path / "second", rows=1, created="2026-05-01T00:00:00+00:00")
    second.complete(second.ids[0], bleu=12.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{study.path}/mlflow.db")
    open_tracking(second.path).sync()
    code, told = pull()
    assert (code, told.count("\n")) == (2, 1)
    assert "2 studies there" in told
    words = told.partition("choose one with --study-id: ")[2].rstrip(")\n").split(", ")
    ids = {word.partition(" (")[2].rstrip(")"): word.partition(" (")[0] for word in words}
    assert ids.keys() == {"study", "second"}
    for number, wanted in enumerate(("second", ids["second"])):
        here = tmp_path / f"chosen-{number}"
        assert pull("--study-id", wanted, here=here)[0] == 0
        assert records(here) == records(second.path)
    assert pull("--study-id", "third")[0] == 2


def test_no_server_no_address_and_no_database_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    command = ["pull", "--experiment", EXPERIMENT, "--study", str(tmp_path / "here")]
    dead = f"http://127.0.0.1:{free_port()}"
    for uri, code, words in (
        (None, 2, "no MLflow server (name it there or in MLFLOW_TRACKING_URI)"),
        (dead, 3, f"MLflow at {dead}: nothing listens there"),
        (f"sqlite:///{tmp_path}/nowhere.db", 3, "no MLflow database"),
        ("./mlruns", 2, "no address of an MLflow server"),
    ):
        assert ablate([*command, *(["--tracking-uri", uri] if uri else [])]) == code
        told = capsys.readouterr()
        assert told.out == ""
        assert words in told.err
        assert told.err.count("\n") == 1
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "nowhere.db").exists()


# Nothing from a server is trusted.


def artifact(study: MadeStudy, id: str, name: str) -> Path:
    uuid = tracked(study.path / "mlflow.db")[id]["uuid"]
    return study.path / "mlartifacts" / uuid / "artifacts" / name


def forge(study: MadeStudy, id: str, name: str, content: bytes) -> None:
    """Store other content, with a digest that fits, as one who may write to the server can."""
    from mlflow import MlflowClient

    artifact(study, id, name).write_bytes(content)
    run = tracked(study.path / "mlflow.db")[id]
    digests = json.loads(run["tags"]["ablate.files"]) | {name: hashlib.sha256(content).hexdigest()[:12]}
    client = MlflowClient(tracking_uri=f"sqlite:///{study.path}/mlflow.db")
    client.set_tag(run["uuid"], "ablate.files", json.dumps(digests))


def test_a_damaged_artifact_is_named_and_keeps_no_other_run_back(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    done, diverged, killed, _ = study.ids
    metrics = artifact(study, done, "metrics.jsonl")
    metrics.write_bytes(metrics.read_bytes()[:-40])
    artifact(study, diverged, "environment.json").unlink()
    code, told = pull()
    assert code == 1, told
    assert f"run {done} is left out: MLflow run " in told
    assert "its metrics.jsonl is not what was stored (run `ablate sync --full` where the study is)" in told
    assert f"run {diverged} is left out" in told
    assert "its environment.json is missing" in told
    assert {path.name for path in (tmp_path / "here" / "runs").iterdir()} == {killed}


def test_records_without_the_attempt_that_ended_the_run_are_refused(
    study: MadeStudy, pull: Callable[..., tuple[int, str]]
) -> None:
    from mlflow import MlflowClient

    diverged = study.ids[1]
    run = tracked(study.path / "mlflow.db")[diverged]
    digests = json.loads(run["tags"]["ablate.files"])
    del digests["attempts/0001.json"]
    client = MlflowClient(tracking_uri=f"sqlite:///{study.path}/mlflow.db")
    client.set_tag(run["uuid"], "ablate.files", json.dumps(digests))
    code, told = pull()
    assert code == 1
    assert "it is diverged there, stopped by its records (run `ablate sync --full` where the study is)" in told
    assert open_tracking(study.path).sync(full=True).complete
    assert pull()[0] == 0


def test_a_configuration_that_does_not_fit_its_hash_or_the_plan_is_refused(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    done, diverged, killed, _ = study.ids
    config = json.loads(artifact(study, done, "config.json").read_text())
    config["config"]["train"]["budget"] = 5.0
    forge(study, done, "config.json", json.dumps(config).encode())
    # Of a whole other run, with a hash that fits it but not the plan.
    hashed = {key: value for key, value in config["config"].items() if key not in ("variant", "table")}
    other = config | {"hash": digest_of({"config": hashed, "semantics": config["semantics"]})}
    forge(study, diverged, "config.json", json.dumps(other).encode())
    # What would go on from somebody's directory.
    outside = json.loads(artifact(study, killed, "config.json").read_text()) | {"continues": "../../../secret"}
    forge(study, killed, "config.json", json.dumps(outside).encode())
    code, told = pull()
    assert code == 1
    assert "was changed after the run was made" in told
    assert "its configuration is not the planned one" in told
    assert "it would go on from outside of the study" in told
    assert list((tmp_path / "here" / "runs").glob("*")) == []


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"steps": NaN}', b"\xff\xfe"])
def test_a_result_that_is_none_is_refused(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path, content: bytes
) -> None:
    forge(study, study.ids[0], "result.json", content)
    code, told = pull()
    assert code == 1
    assert f"run {study.ids[0]} is left out: MLflow run " in told
    assert not (tmp_path / "here" / "runs" / study.ids[0]).exists()


@pytest.mark.parametrize(
    "directory", ["../../evil", "/evil", "runs/../../evil", "runs/..", "runs/a/b", "runs/.hidden", "runs/", "C:\\evil"]
)
def test_a_plan_whose_runs_would_lie_elsewhere_is_refused(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path, directory: str
) -> None:
    document = json.loads((study.path / "study.json").read_text())
    document["runs"][0]["directory"] = directory
    forge(study, "", "study.json", json.dumps(document).encode())
    code, told = pull()
    assert (code, told.count("\n")) == (3, 1)
    assert "a run would lie outside of the study" in told
    assert not (tmp_path / "here" / "study.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"there", "here"}


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"schema": 1, "table": 3}'])
def test_a_plan_that_is_none_is_refused(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path, content: bytes
) -> None:
    forge(study, "", "study.json", content)
    code, told = pull()
    assert (code, told.count("\n")) == (3, 1)
    assert "study.json of the study" in told
    assert str(tmp_path / "here") not in told


def test_files_that_no_run_has_are_not_asked_for(
    study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    done = study.ids[0]
    artifact(study, done, "evil.sh").write_text("#!/bin/sh")
    forge(study, done, "evil.sh", b"#!/bin/sh\n")
    artifact(study, done, "checkpoints").mkdir()
    forge(study, done, "checkpoints/state.json", b"{}")
    assert pull()[0] == 0
    assert not (tmp_path / "here" / "runs" / done / "evil.sh").exists()
    assert not (tmp_path / "here" / "runs" / done / "checkpoints").exists()
    assert os.access(tmp_path / "here" / "runs" / done / "result.json", os.R_OK)


def test_states_are_what_they_were(study: MadeStudy, pull: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    pull()
    there: list[Status] = [study.directory(id).status() for id in study.ids[:3]]
    assert [RunDirectory(tmp_path / "here" / "runs" / id).status() for id in study.ids[:3]] == there
