"""The sweep, with a real private Ray: retries, kills, interruptions, and nothing done twice."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from held_runs import hold
from sweep_driver import DIES_ONCE, DIVERGES, FAILS, IS_WRONG, SECONDS, pretended_study

from ablations import cluster
from ablations.cluster import Cluster, Resources, available_cpus, check_room
from ablations.study import Study, StudyRun
from ablations.sweep import each_once
from ablations.worker import Order, RunError, StopWatch, work
from repro.errors import CheckError, UsageError
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status
from repro.runs.outcome import TIMES
from repro.runs.owned import owned_directory
from repro.runs.processes import Process

TESTS = Path(__file__).parent
PATIENCE = 400.0
"""Seconds after which a test gives up waiting; never a statement about speed."""


def wait_for(what: Callable[[], bool], told: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, f"waited in vain: {told}"
        time.sleep(0.1)


class Driver:
    """A sweep in a process of its own."""

    def __init__(self, study: Path, only: list[str], seconds: float = 0.0) -> None:
        environment = os.environ | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        self.study = study
        self.process = subprocess.Popen(
            [sys.executable, str(TESTS / "sweep_driver.py"), str(study), ",".join(only), f"--seconds={seconds}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def running(self) -> list[int]:
        """Process ids of the runs' owners, as the run directories tell."""
        if not (self.study / "study.json").is_file():
            return []
        found = [run.directory.status() for run in Study.load(self.study).runs if (run.path / "config.json").is_file()]
        return [status.pid for status in found if status.state == "running"]

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


@pytest.fixture
def drivers() -> Iterator[list[Driver]]:
    """Drivers put in here are ended with the test."""
    started: list[Driver] = []
    yield started
    for driver in started:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()


def states(study: Path) -> dict[str, Status]:
    return {run.variant: run.directory.status() for run in Study.load(study).runs}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_a_failing_and_a_dying_run_end_no_other_one(tmp_path: Path, drivers: list[Driver]) -> None:
    only = ["base", FAILS, IS_WRONG, DIES_ONCE, DIVERGES, "C.ff-half"]
    drivers.append(Driver(tmp_path, only))
    code, output = drivers[0].end()
    found = states(tmp_path)
    assert {variant: status.state for variant, status in found.items()} == {
        "base": "done",
        FAILS: "failed",
        IS_WRONG: "failed",
        DIES_ONCE: "done",
        DIVERGES: "diverged",
        "C.ff-half": "done",
    }
    assert {variant: status.attempt for variant, status in found.items()} == {
        "base": 1,
        FAILS: 1 + cluster.RETRIES,
        IS_WRONG: 1,
        DIES_ONCE: 2,
        DIVERGES: 1,
        "C.ff-half": 1,
    }
    assert found[FAILS].reason == "no luck"
    assert code == 1
    assert f"{FAILS} seed 1: failed, step 3 (attempt 3; no luck)" in output
    assert "Traceback" not in output
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".sweep")]


def test_a_ray_that_died_ends_the_sweep_with_a_word_instead_of_being_waited_for(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    drivers.append(Driver(tmp_path, ["base"], 3600.0))
    wait_for(lambda: bool(drivers[0].running()), "a run")
    (owner,) = drivers[0].running()
    os.kill(raylet_of(drivers[0].process.pid), signal.SIGKILL)
    code, output = drivers[0].end()
    assert code == 3
    assert "Ray died" in output
    wait_for(lambda: not alive(owner), "the end of the worker")
    assert states(tmp_path)["base"].state == "stopped"


def test_a_killed_driver_takes_its_workers_along_and_the_same_command_goes_on(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    only = ["base", "C.ff-half", "C.ff-double"]
    drivers.append(Driver(tmp_path, only, seconds=600))
    wait_for(lambda: len(drivers[0].running()) == 2, "two runs at work")
    workers = drivers[0].running()
    drivers[0].process.kill()
    drivers[0].process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in workers), "workers end with their driver")
    assert {status.state for status in states(tmp_path).values()} == {"stopped", "planned"}

    drivers.append(Driver(tmp_path, only, seconds=600))
    wait_for(lambda: len(drivers[1].running()) == 2, "two runs taken over")
    drivers[1].process.send_signal(signal.SIGINT)
    code, output = drivers[1].end()
    assert code == 1
    assert "runs save and stop" in output
    found = states(tmp_path).values()
    assert sorted((status.state, status.reason) for status in found) == [
        ("planned", ""),
        ("stopped", "asked to stop"),
        ("stopped", "asked to stop"),
    ]

    drivers.append(Driver(tmp_path, only))
    code, output = drivers[2].end()
    assert (code, "ray imported: True" in output) == (0, True)
    assert {status.state for status in states(tmp_path).values()} == {"done"}

    drivers.append(Driver(tmp_path, only))
    code, output = drivers[3].end()
    assert (code, "ray imported: False" in output) == (0, True)
    assert sorted(status.attempt for status in states(tmp_path).values()) == [1, 3, 3]


def test_a_worker_that_is_told_to_end_saves_and_its_run_goes_on_in_another(
    tmp_path: Path, drivers: list[Driver]
) -> None:
    drivers.append(Driver(tmp_path, ["base"], seconds=600))
    for attempt, number in enumerate([signal.SIGTERM, signal.SIGUSR1], 1):
        wait_for(lambda: bool(drivers[0].running()), "the run at work")
        (worker,) = drivers[0].running()
        for _ in range(3):
            os.kill(worker, number)
        wait_for(lambda attempt=attempt: states(tmp_path)["base"].attempt == attempt + 1, "another try")
    drivers[0].process.send_signal(signal.SIGTERM)  # which Ray answers by an exit, if it is let
    assert drivers[0].end()[0] == 1
    run = Study.load(tmp_path).runs[0].directory
    assert [(claim.ended, claim.reason) for claim in attempts.claims(run)] == [("stopped", "asked to stop")] * 3


def test_two_sweeps_of_one_study_share_its_runs(tmp_path: Path, drivers: list[Driver]) -> None:
    only = ["base", "C.ff-half", "C.ff-double", "D.dropout-0"]
    drivers.append(Driver(tmp_path, only, seconds=4))
    wait_for(lambda: len(drivers[0].running()) == 2, "the first sweep at work")
    drivers.append(Driver(tmp_path, only, seconds=4))
    assert [driver.end()[0] for driver in drivers] == [0, 0]
    found = states(tmp_path).values()
    assert [status.state for status in found] == ["done"] * 4
    assert [status.attempt for status in found] == [1] * 4


# A real study, through the command line.

TINY = [
    "train.budget=300",
    "train.batch_tokens=256",
    "train.evaluate_every=150",
    "train.log_every=10",
    "train.valid_decode=none",
    "train.checkpoint_seconds=0",
    "model.d_model=16",
    "model.d_ff=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "decode.beam=1",
    "decode.extra_length=2",
]
"""A run of seconds at the smoke scale."""


def command(place: Path, *arguments: str) -> subprocess.Popen[str]:
    settings = [part for text in TINY for part in ("--set", text)]
    environment = os.environ | {
        "PYTHONPATH": str(TESTS.parent),
        "OMP_NUM_THREADS": "1",
        "ABLATE_DATA": str(place / "data"),
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    return subprocess.Popen(
        [sys.executable, "-m", "ablations", *arguments, "--scale", "smoke", *settings],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def timeless(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in TIMES}


def test_a_study_whose_worker_was_killed_ends_like_an_undisturbed_one(tmp_path: Path) -> None:
    study = tmp_path / "studies" / "mine"
    asked = ("run", "demo", "--study", "studies/mine", "--only")
    process = command(tmp_path, *asked, "base")

    def begun() -> list[RunDirectory]:
        assert process.poll() is None, process.communicate()
        return [RunDirectory(config.parent) for config in study.glob("runs/base-*/config.json")]

    ((worker, run),) = hold(begun).items()
    base = run.path
    os.kill(worker, signal.SIGKILL)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, told
    assert [(claim.number, claim.ended) for claim in attempts.claims(RunDirectory(base))] == [(1, None), (2, "done")]
    assert (study / "mlflow.db").is_file()
    shown = [path.read_bytes() for path in study.glob("mlartifacts/**/report/index.html")]
    assert shown == [(study / "report" / "index.html").read_bytes()]
    assert "report: studies/mine/report/index.html" in told
    assert "ablate ui studies/mine" in told

    undisturbed = command(tmp_path, "train", "--out", "alone")
    told, _ = undisturbed.communicate(timeout=PATIENCE)
    assert undisturbed.returncode == 0, told
    killed, alone = timeless(base), timeless(tmp_path / "alone")
    del killed["table"], alone["table"]
    assert killed == alone
    for split in ("valid", "test"):
        name = f"hypotheses/{split}.txt"
        assert (base / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()

    grown = command(tmp_path, *asked, "base,positions.none")
    told, _ = grown.communicate(timeout=PATIENCE)
    assert grown.returncode == 0, told
    assert "base seed 1: done already" in told
    assert [status.state for status in states(study).values()] == ["done", "done"]
    assert len(attempts.claims(RunDirectory(base))) == 2

    again = command(tmp_path, *asked, "base,positions.none")
    told, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, told
    assert "nothing is missing, nothing is run" in told
    assert "positions.none seed 1: done already" in told
    assert "starting Ray" not in told
    with closing(sqlite3.connect(study / "mlflow.db")) as database:
        names = [row[0] for row in database.execute("SELECT name FROM runs WHERE lifecycle_stage = 'active'")]
        (double,) = database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM metrics GROUP BY run_uuid, key, step HAVING count(*) > 1)"
        ).fetchone()
    assert (len(names), len(set(names)), double) == (3, 3, 0)


# The worker's side, without Ray.


def order(run: StudyRun, tmp_path: Path, driver: Process | None = None) -> Order:
    return Order(
        run=str(run.path),
        stop=str(tmp_path / "stop"),
        driver=(driver or Process.current()).document(),
        execute="sweep_driver:pretend",
    )


def test_a_failure_that_may_pass_is_told_to_ray_as_an_error_and_one_that_stays_is_not(tmp_path: Path) -> None:
    _, (may_pass, stays) = pretended_study(tmp_path, [FAILS, IS_WRONG])
    with pytest.raises(RunError, match="no luck"):
        work(order(may_pass, tmp_path))
    assert work(order(stays, tmp_path)) == {"state": "failed", "reason": "no such key"}


def test_a_damaged_run_directory_is_no_reason_to_try_again(tmp_path: Path) -> None:
    _, asked = pretended_study(tmp_path, ["base"])
    (asked[0].path / "config.json").write_text("{")
    assert work(order(asked[0], tmp_path))["state"] == "failed"


def test_a_process_that_cannot_end_its_claim_ends_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    _, asked = pretended_study(tmp_path, ["base"])
    monkeypatch.setattr("sweep_driver.pretend", broken)
    with pytest.raises(SystemExit, match="Read-only file system"):
        work(order(asked[0], tmp_path))


def test_a_run_that_another_process_works_on_is_left_alone(tmp_path: Path) -> None:
    _, asked = pretended_study(tmp_path, ["base"])
    with attempts.claim(asked[0].directory):  # type: ignore[union-attr]
        assert work(order(asked[0], tmp_path))["state"] == "running"
    assert work(order(asked[0], tmp_path))["state"] == "done"
    assert [claim.number for claim in attempts.claims(asked[0].directory)] == [1, 2]


def test_a_try_that_ray_lost_is_waited_for_and_taken_over_once_ray_knows_that_it_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier try is on another machine, so that only Ray can tell."""
    _, asked = pretended_study(tmp_path, ["base"])
    run = asked[0].directory
    lost = attempts.claim(run, by={"sweep": "mine", "node": "n1"})
    assert lost is not None
    document = json.loads(lost.path.read_text())
    document["owner"] |= {"host": "elsewhere", "pid": 1}
    lost.path.write_text(json.dumps(document))
    asked_for: list[tuple[str, str]] = []

    def is_lost(process: Process, node: str) -> bool:
        asked_for.append((process.host, node))
        return len(asked_for) > 1

    monkeypatch.setattr("ablations.nodes.is_lost", is_lost)
    monkeypatch.setattr("ablations.nodes.this_node", lambda: "n2")
    assert work(replace(order(asked[0], tmp_path), sweep="another"))["state"] == "running"
    assert asked_for == []
    assert work(replace(order(asked[0], tmp_path), sweep="mine"))["state"] == "done"
    assert asked_for == [("elsewhere", "n1")] * 2
    first, second = attempts.claims(run)
    assert (first.ended, first.died, second.ended, second.by["node"]) == ("stopped", True, "done", "n2")
    assert not lost.still_mine()


def test_no_run_begins_once_the_sweep_is_to_end(tmp_path: Path) -> None:
    _, asked = pretended_study(tmp_path, ["base"])
    (tmp_path / "stop").touch()
    assert work(order(asked[0], tmp_path))["state"] == "stopped"
    assert not attempts.claims(asked[0].directory)


def test_a_run_stops_when_its_driver_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECONDS, "600")
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stat = Path(f"/proc/{gone.pid}/stat").read_text().rpartition(")")[2].split()
    here = Process.current().document()
    driver = Process.read(here | {"pid": gone.pid, "start": stat[19]})
    gone.communicate()
    _, asked = pretended_study(tmp_path, ["base"])
    assert work(order(asked[0], tmp_path, driver)) == {"state": "stopped", "reason": "asked to stop"}


def test_a_stop_watch_sees_the_stop_file(tmp_path: Path) -> None:
    _, asked = pretended_study(tmp_path, ["base"])
    with StopWatch(order(asked[0], tmp_path)) as watch:
        assert not watch.asked()
        (tmp_path / "stop").touch()
        wait_for(watch.asked, "the stop file is seen")


# What Ray is given.


def test_the_cpus_are_those_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(cluster, "CPU_QUOTA", Path("/nonexistent"))
    assert available_cpus() == 6
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    assert available_cpus() == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "")
    assert available_cpus() == 6


@pytest.mark.parametrize(("quota", "cpus"), [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1)])
def test_a_containers_share_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cpus: int) -> None:
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setattr(cluster, "CPU_QUOTA", tmp_path / "cpu.max")
    assert available_cpus() == cpus


def test_what_a_killed_sweep_left_behind_is_cleared_away(tmp_path: Path) -> None:
    here = Process.current().document()
    for name, owner in (("dead", here | {"start": "1"}), ("alive", here), ("elsewhere", here | {"host": "other"})):
        (tmp_path / f"ablate-{name}").mkdir()
        (tmp_path / f"ablate-{name}" / "owner.json").write_text(json.dumps(owner))
    new = owned_directory(tmp_path, "ablate-")
    assert {path.name for path in tmp_path.iterdir()} == {"ablate-alive", "ablate-elsewhere", new.name}


def test_an_address_where_no_ray_answers_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"--address 127\.0\.0\.1:1: nobody answers"):
        Cluster(Resources(address="127.0.0.1:1"), wants_gpu=False, scratch=tmp_path).__enter__()


@pytest.mark.parametrize("devices", [{"gpus_per_run": math.inf}, {"cpus_per_run": math.nan}, {"gpus_per_run": 1.5}])
def test_a_number_of_devices_that_is_none_is_refused(devices: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(devices)).replace("_", "-")):
        Resources(**devices)


@pytest.mark.slow
def test_a_ray_that_does_not_come_up_in_time_is_started_again_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private import services

    asked, raylets, said = services.get_node, [], []

    def late(*arguments: Any) -> Any:
        """What Ray asks its own first node until 30 s are over; at the first start it never comes up."""
        if not raylets:
            raylets.append(raylet_of(os.getpid()))
            raise ValueError("The current node timed out during startup.")
        return asked(*arguments)

    monkeypatch.setattr(services, "get_node", late)
    with Cluster(Resources(cpus=1), wants_gpu=False, scratch=tmp_path, say=said.append):
        assert said == ["Ray does not start (The current node timed out during startup.): tried again"]
        wait_for(lambda: not alive(raylets[0]), "the end of the first raylet")
        assert raylet_of(os.getpid()) != raylets[0]


def raylet_of(driver: int) -> int:
    """The process id of the raylet that `driver` started."""
    children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
    living = [int(pid) for pid in children if alive(int(pid))]
    (raylet,) = [pid for pid in living if Path(f"/proc/{pid}/comm").read_text().strip() == "raylet"]
    return raylet


def test_a_run_of_several_rows_is_carried_out_once_under_the_name_it_bears(tmp_path: Path) -> None:
    own = StudyRun(id="a", variant="base", seed=1, hash="h", path=tmp_path / "a")
    twin = replace(own, id="b", variant="A.h8", same_as="a")
    other = replace(own, id="c", variant="A.h1", path=tmp_path / "c")
    assert each_once([own, other, twin]) == each_once([twin, other, own]) == [own, other]
    assert each_once([twin]) == [twin]


def node(**found: float) -> dict[str, Any]:
    return {"Resources": found}


def test_a_run_that_wants_more_than_any_node_has_is_refused() -> None:
    two = [node(CPU=2.0), node(CPU=1.0, GPU=1.0)]
    check_room(two, {"cpu": 2.0, "gpu": 0.0})
    check_room(two, {"cpu": 1.0, "gpu": 0.5})
    with pytest.raises(UsageError, match=r"--cpus-per-run: a run wants 3 CPUs, there are 2 on the largest node"):
        check_room(two, {"cpu": 3.0, "gpu": 0.0})
    with pytest.raises(UsageError, match=r"--gpus-per-run: a run wants 0\.5 GPUs, there are 0 \(ask for fewer"):
        check_room([node(CPU=2.0)], {"cpu": 1.0, "gpu": 0.5})
    with pytest.raises(UsageError, match="no node has 2 CPUs and 1 GPUs together"):
        check_room(two, {"cpu": 2.0, "gpu": 1.0})
