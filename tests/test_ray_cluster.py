"""A sweep on a real Ray cluster of two nodes, which die, lack things, or offer GPUs that are shared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from ray_nodes import ENVIRONMENT, PATIENCE, TESTS, Node, Nodes
from sweep_driver import SECONDS

from ablations.study import Study
from repro.runs import attempts
from repro.runs.attempts import Claim
from repro.runs.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROWS = ["base", "D.dropout-0", "C.ff-half", "C.ff-double"]


def wait_for(what: Callable[[], bool], told: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, f"waited in vain: {told}"
        time.sleep(0.1)


class Driver:
    """A sweep of pretended runs on a cluster, in a process of its own."""

    started: ClassVar[list[Driver]] = []

    def __init__(
        self, study: Path, nodes: Nodes, *options: str, rows: list[str] = ROWS, cwd: Path | None = None
    ) -> None:
        self.study = cwd / study.name if cwd is not None else study
        command = [sys.executable, str(TESTS / "sweep_driver.py"), str(study), ",".join(rows)]
        command += ["--address", nodes.address, *options]
        self.process = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(self)

    def working(self) -> dict[int, RunDirectory]:
        """The runs that are worked on, by the process id of their owner."""
        assert self.process.poll() is None, self.process.communicate()
        found = [RunDirectory(config.parent) for config in self.study.glob("runs/*/config.json")]
        return {run.status().pid: run for run in found if run.status().state == "running"}

    def on(self, node: Node) -> list[RunDirectory]:
        """The runs that are worked on there."""
        pids = node.pids()
        return [run for pid, run in self.working().items() if pid in pids]

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


@pytest.fixture(autouse=True)
def no_driver_stays() -> Iterator[None]:
    """Drivers end with the test that started them."""
    yield
    for driver in Driver.started:
        if driver.process.poll() is None:
            driver.process.kill()
            driver.process.communicate()
    Driver.started.clear()


def claims(study: Path) -> dict[str, list[Claim]]:
    return {run.variant: attempts.claims(run.directory) for run in Study.load(study).runs}


def states(study: Path) -> dict[str, str]:
    return {run.variant: run.directory.status().state for run in Study.load(study).runs}


def most_at_once(study: Path) -> int:
    """The largest number of attempts that were going on at one moment."""
    moments = []
    for claim in [claim for of_run in claims(study).values() for claim in of_run]:
        ended = claim.path.stat().st_mtime  # the last that is written to it is its end
        moments += [(claim.started, 1), (ended, -1)]
    running, most = 0, 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


def test_runs_of_a_dead_node_are_taken_over_and_a_lost_driver_or_head_costs_no_more_than_itself(tmp_path: Path) -> None:
    study, rows = tmp_path / "study", ROWS[:2]
    with Nodes(environment={SECONDS: "600"}) as nodes:
        second = nodes.add()
        driver = Driver(study, nodes, rows=rows)
        wait_for(lambda: len(driver.working()) == 2 and len(driver.on(second)) == 1, "a run on each node")
        (lost,) = driver.on(second)
        second.kill()
        third = nodes.add()
        wait_for(lambda: lost in driver.on(third), "the dead node's run is taken over")
        assert [claim.number for claim in attempts.claims(lost)] == [1, 2]

        # The driver: Ray ends the workers of one that is gone, wherever they are.
        workers = list(driver.working())
        driver.process.kill()
        driver.process.communicate()
        wait_for(lambda: not set(workers) & {*nodes.head.pids(), *third.pids()}, "workers end with their driver")
        assert set(states(study).values()) == {"stopped"}

        # The head: one line, and the same command goes on.
        again = Driver(study, nodes, rows=rows)
        wait_for(lambda: len(again.working()) == 2, "two runs at work again")
        nodes.head.kill()
        code, output = again.end()
        assert code == 3
        assert "Ray died (its head does not answer) (run the same command again" in output
        assert "Traceback" not in output
    with Nodes() as nodes:
        code, output = Driver(study, nodes, rows=rows).end()
        assert code == 0, output
    assert set(states(study).values()) == {"done"}
    assert not list(study.glob(".sweep*"))


def shares(study: Path) -> set[float]:
    """The shares of a GPU's memory that the runs were held to."""
    results = [run.directory.result() for run in Study.load(study).runs]
    return {result["gpu_share"] for result in results if result is not None}


def test_runs_share_a_gpu_and_no_more_run_at_once_than_asked_for(tmp_path: Path) -> None:
    # Five seconds a run: more than two workers that are started at once differ by.
    with Nodes(cpus=4, gpus=1, environment={SECONDS: "5"}) as nodes:
        code, output = Driver(tmp_path / "halves", nodes, "--gpus-per-run", "0.5", rows=ROWS[:3]).end()
        assert code == 0, output
        assert most_at_once(tmp_path / "halves") == 2
        assert shares(tmp_path / "halves") == {0.5}
        code, output = Driver(tmp_path / "capped", nodes, "--at-once", "1", rows=ROWS[:2]).end()
        assert code == 0, output
        assert most_at_once(tmp_path / "capped") == 1
        assert shares(tmp_path / "capped") == {1.0}
        code, output = Driver(tmp_path / "much", nodes, "--gpus-per-run", "2").end()
        assert (code, "--gpus-per-run: a run wants 2 GPUs, there are 1" in output) == (2, True)


def refusal(driver: Driver) -> str:
    code, output = driver.end()
    assert code == 3, output
    began, line = output.splitlines()[:2]
    assert began.startswith("joining the Ray")
    assert set(states(driver.study).values()) == {"planned"}
    return line


def test_a_node_that_does_not_see_the_study_is_refused_before_any_run(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    # A path that leads each process to the place where it was started stands for a disk that is not shared.
    here = Path("/proc/self/cwd/study")
    with Nodes(cwd=tmp_path, environment={"RAY_CHDIR_TO_TRIAL_DIR": "0"}) as nodes:
        unshared = nodes.add(cwd=elsewhere)
        line = refusal(Driver(here, nodes, cwd=tmp_path))
        assert re.match(rf"node \S+ \(\w+\): cannot read {here}/\S+ \(No such file or directory\) \(share", line)
        unshared.kill()
        code, output = Driver(here, nodes, cwd=tmp_path).end()  # a node that is dead is no hindrance
        assert code == 0, output


def test_a_node_with_another_version_is_refused_before_any_run(tmp_path: Path) -> None:
    for package in ("repro", "ablations"):
        shutil.copytree(TESTS.parent / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    version = tmp_path / "repro" / "__init__.py"
    version.write_text(version.read_text().replace('__version__ = "', '__version__ = "9.'))
    with Nodes() as nodes:
        nodes.add(environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{TESTS}"})
        elsewhere = tmp_path / "elsewhere"  # Ray lets workers import from where the driver was started
        elsewhere.mkdir()
        line = refusal(Driver(elsewhere / "study", nodes, cwd=elsewhere))
        assert re.match(r"node \S+ \(\w+\): has attention-ablations 9\.\S+, here it is \S+ \(share", line)
