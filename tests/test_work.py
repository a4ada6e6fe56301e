"""`ablate work`, as real processes on tiny runs: who takes which run, signals, kills, and what a task leaves behind."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from held_runs import go_on, hold
from small_corpus import small_corpus
from small_study import Task as Work
from small_study import bits, frozen, small_study, wait_for

from ablations.study import Study
from ablations.submit.holders import is_free
from repro.data.prepared import Prepared
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from slurm.queue import Queue, Task

LONG = 200_000
"""Steps of a run that a test ends before its time."""
OTHER_LEFT = ["base", "A.h1"]
"""Rows of which the second is never begun, so that no task writes the report, which takes longer than the runs."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


@pytest.fixture
def tasks() -> Iterator[list[Work]]:
    """Tasks put in here are ended with the test."""
    started: list[Work] = []
    yield started
    for task in started:
        if task.process.poll() is None:
            task.process.kill()
            task.process.communicate()


def only_run(study: Study) -> RunDirectory:
    (run,) = study.runs
    return run.directory


def claims(run: RunDirectory) -> list[tuple[int, str | None]]:
    return [(claim.number, claim.ended) for claim in attempts.claims(run)]


def test_of_two_tasks_on_one_run_one_takes_the_next_and_a_third_finds_nothing(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    study = small_study(tmp_path / "s", corpus, ["base", "A.h1"])
    frozen(study)
    tasks += [Work(study.path, "--submission", "t0", "--task", "0") for _ in range(2)]
    ends = [task.end() for task in tasks]
    assert [code for code, _ in ends] == [0, 0], ends
    assert [claims(run.directory) for run in study.runs] == [[(1, "done")], [(1, "done")]]
    tasks.append(Work(study.path, "--submission", "t0", "--task", "1"))
    code, output = tasks[-1].end()
    assert code == 0
    assert "nothing is left to do" in output

    # The two ended at about the same time: MLflow has each run once, and the report is there.
    with closing(sqlite3.connect(study.path / "mlflow.db")) as database:
        names = [name for (name,) in database.execute("select name from runs order by name")]
    assert names == ["A.h1 seed 1", "base seed 1", "s"]
    assert (study.path / "report" / "index.html").is_file()


def test_any_number_of_signals_let_a_run_save_and_the_task_go_on_with_the_same_bits(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    budget = 200
    study = small_study(tmp_path / "s", corpus, OTHER_LEFT, budget)
    run = study.runs[0].directory
    frozen(study)
    tasks.append(Work(study.path, "--submission", "t0", "--task", "0", SLURM_JOB_ID="7"))
    held = hold(lambda: [run])
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        tasks[0].process.send_signal(number)
        go_on(held)
    code, output = tasks[0].end()
    status = run.status()
    assert (code, status.state) == (75, "stopped"), output
    assert "SIG" in status.reason
    assert f"saved at step {status.step}" in status.reason
    assert 0 < status.step < budget
    tasks.append(Work(study.path, "--submission", "t0", "--task", "0", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1"))
    assert tasks[1].end()[0] == 0
    assert claims(run) == [(1, "stopped"), (2, "done")]
    undisturbed = only_run(small_study(tmp_path / "t", corpus, ["base"], budget))
    execute(undisturbed)
    assert bits(run) == bits(undisturbed)


def test_a_task_that_starts_again_takes_its_run_from_a_node_that_it_cannot_ask(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    study = small_study(tmp_path / "s", corpus, [*OTHER_LEFT, "C.ff-half"])
    run = study.runs[0].directory
    frozen(study)
    shutil.rmtree(study.runs[2].path)  # no trouble of the others
    place = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "71"}
    by = {"submission": "t0", "task": "0", "slurm": "70_0", "restart": "0", "step": "0"}
    held = attempts.claim(run, by=by)
    assert held is not None
    held._ended.set()  # it shows no sign of life from now on
    held._document["owner"] |= {"host": "a-node-that-is-down", "boot_id": "b"}
    held.path.write_text(json.dumps(held._document))
    assert run.status().state == "running"
    tasks.append(Work(study.path, "--submission", "t0", "--task", "0", **place, SLURM_RESTART_COUNT="1"))
    code, output = tasks[0].end()
    assert code == 0, output
    assert claims(run) == [(1, "stopped"), (2, "done")]
    assert attempts.claims(run)[0].buried
    tasks.append(Work(study.path, "--submission", "t0", "--task", "2", **place))
    code, output = tasks[-1].end()
    assert code == 3
    assert output.strip() == f"ablate: {study.runs[2].path}: no run directory (no config.json)"


def held_elsewhere(run: RunDirectory, *, beats: bool, **by: str) -> attempts.Attempt:
    """A claim of a process on another machine, which may still show signs of life."""
    held = attempts.claim(run, ttl=3.0, by=by)
    assert held is not None
    held._document["owner"] |= {"host": "elsewhere", "boot_id": "b"}
    held.path.write_text(json.dumps(held._document))
    if not beats:
        held._ended.set()
    return held


def test_who_holds_a_run_elsewhere_is_asked_for_a_sign_of_life_or_of_the_queue(
    tmp_path: Path, corpus: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(tmp_path / "s", corpus, ["base", "A.h1", "C.ff-half", "D.dropout-0"])
    alive, silent, cancelled, waiting = (run.directory for run in study.runs)
    mine = {"submission": "t1", "task": "0", "slurm": "9_0", "restart": "0"}
    held = [held_elsewhere(alive, beats=True), held_elsewhere(silent, beats=False)]
    assert not is_free(alive, study.path, mine)
    assert is_free(silent, study.path, mine)  # once its three seconds are over

    def look(_: Path) -> Queue:
        said: dict[int, Any] = {1: "failed", 2: "running"}
        return Queue([Task(token="t0", job="8", task=n, state="", meaning=said[n]) for n in said])

    monkeypatch.setattr("slurm.queue.look", look)
    for number, run in ((1, cancelled), (2, waiting)):
        by = {"submission": "t0", "task": str(number), "slurm": f"8_{number}", "restart": "0"}
        held.append(held_elsewhere(run, beats=False, **by))
        held[-1].path.touch()
    assert is_free(cancelled, study.path, mine)
    assert attempts.claims(cancelled)[0].reason == "its job 8_1 has ended"
    assert not is_free(waiting, study.path, mine)
    for attempt in held:
        attempt._ended.set()


def test_a_run_that_gets_nowhere_twice_is_failed_with_what_was_said(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    study = small_study(tmp_path / "s", corpus, ["base"], LONG, "train.checkpoint_seconds=100000")
    run = only_run(study)
    frozen(study)
    log = tmp_path / "task.log"
    log.write_text("the kernel said: out of memory\n")
    place = {"SLURM_JOB_ID": "7", "ABLATE_TASK_LOG": str(log)}
    for restart in range(2):
        task = Work(study.path, "--submission", "t0", "--task", "0", **place, SLURM_RESTART_COUNT=str(restart))
        tasks.append(task)
        wait_for(lambda: run.status().state == "running" and run.status().step > 0, "a step")
        task.process.kill()
        task.process.wait()
    tasks.append(Work(study.path, "--submission", "t0", "--task", "0", **place, SLURM_RESTART_COUNT="2"))
    code, output = tasks[-1].end()
    status = run.status()
    assert (code, status.state) == (1, "failed"), output
    assert "two attempts running got no further than step 0" in status.reason
    assert "Traceback" not in output
    assert "out of memory" in (run.path / "attempts" / "0003.log").read_text()
    # Another submission tries anew.
    frozen(study, "t1")
    tasks.append(Work(study.path, "--submission", "t1", "--task", "0", SLURM_JOB_ID="8"))
    wait_for(lambda: run.status().state == "running", "another attempt")
    tasks[-1].process.terminate()
    assert tasks[-1].end()[0] == 75


def test_a_run_that_diverged_is_a_failed_task_and_no_reason_to_go_on(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    steep = ["train.learning_rate_factor=1e38", "train.max_skipped_steps=2", "train.evaluate_every=100"]
    study = small_study(tmp_path / "s", corpus, ["base"], 60, *steep)
    # Of a whole study, that nobody submitted. A tracking server that does not answer is no trouble of the task's.
    with closing(socket.socket()) as silent:
        silent.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        tasks.append(Work(study.path, MLFLOW_TRACKING_URI=uri))
        code, output = tasks[0].end()
    assert (code, only_run(study).status().state) == (1, "diverged"), output
    assert "Traceback" not in output
    assert (study.path / "report" / "index.html").is_file(), output


def test_a_task_that_cannot_read_the_data_says_so_and_leaves_the_run_alone(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    here = shutil.copytree(corpus.directory, tmp_path / "data")
    study = small_study(tmp_path / "s", Prepared.load(Path(here)), ["base"])
    frozen(study)
    shutil.move(here, tmp_path / "elsewhere")
    tasks.append(Work(study.path, "--submission", "t0", "--task", "0"))
    code, output = tasks[0].end()
    assert code == 3
    assert output.strip().startswith("ablate: ")
    assert len(output.strip().splitlines()) == 1
    assert "cannot be read" in output
    assert "all nodes share" in output
    assert claims(only_run(study)) == []


def test_processes_that_a_scheduler_started_do_one_run_together_and_save_together(
    tmp_path: Path, corpus: Prepared, tasks: list[Work]
) -> None:
    study = small_study(tmp_path / "s", corpus, ["base"], LONG)
    run = only_run(study)
    frozen(study)

    def start(restart: int) -> None:
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "SLURM_JOB_ID": "7"}
        tasks.extend(
            Work(
                study.path, "--submission", "t0", "--task", "0",
                RANK=str(rank), LOCAL_RANK=str(rank), SLURM_RESTART_COUNT=str(restart), **group,
            )
            for rank in range(2)
        )  # fmt: skip

    start(0)
    wait_for(lambda: any(run.checkpoints.glob("step-*")), "a checkpoint")
    for task in tasks:
        task.process.send_signal(signal.SIGUSR1)
    ends = [task.end() for task in tasks]
    assert [code for code, _ in ends] == [75, 0], ends
    assert run.status().state == "stopped"
    assert claims(run) == [(1, "stopped")]


def test_a_list_that_is_not_there_or_too_short_is_one_line(tmp_path: Path, corpus: Prepared, tasks: list[Work]) -> None:
    study = small_study(tmp_path / "s", corpus, ["base"])
    frozen(study)
    for arguments, code in ((["--submission", "t9"], 3), (["--submission", "t0", "--task", "1"], 2)):
        tasks.append(Work(study.path, *arguments))
        found, output = tasks[-1].end()
        assert found == code
        assert len(output.strip().splitlines()) == 1, output
    assert claims(only_run(study)) == []
