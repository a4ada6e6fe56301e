"""A study killed at random ends with the bits, and the MLflow runs, of one that was left alone."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from repro.runs.directory import RunDirectory
from repro.runs.outcome import TIMES

ROWS = ["base", "A.h1", "positions.none"]
PATIENCE = 300.0
"""Seconds after which a test gives up waiting; never a statement about speed."""


def started(root: Path) -> subprocess.Popen[bytes]:
    small = ["train.budget=400", "train.evaluate_every=100", "train.checkpoint_seconds=0.3"]
    small += ["model.d_model=16", "model.d_ff=32", "model.n_layers=1"]
    command = [sys.executable, "-m", "ablations", "run", "demo", "--scale", "smoke", "--only", ",".join(ROWS)]
    command += ["--study", str(root / "study"), *(word for setting in small for word in ("--set", setting))]
    environment = os.environ | {"ABLATE_DATA": str(root.parent / "data")}
    with (root.parent / f"{root.name}.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that they started, as /proc tells."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def runs(root: Path) -> list[RunDirectory]:
    return [
        RunDirectory(path) for path in sorted((root / "study" / "runs").glob("*")) if (path / "config.json").exists()
    ]


def wait_for_a_run(root: Path, process: subprocess.Popen[bytes]) -> list[int]:
    """Until a run is worked on; its owners' process ids. Empty when the sweep ended before."""
    ends = time.monotonic() + PATIENCE
    while process.poll() is None:
        states = [run.status() for run in runs(root)]
        owners = [status.pid for status in states if status.state == "running" and status.step > 0]
        if owners:
            return owners
        assert time.monotonic() < ends, "no run was begun"
        time.sleep(0.05)
    return []


def kill(what: str, process: subprocess.Popen[bytes], owners: list[int]) -> None:
    victims = {
        "worker": [random.choice(owners)],
        "driver": [process.pid],
        "everything": [process.pid, *descendants(process.pid)],
    }[what]
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def bits(root: Path) -> dict[str, Any]:
    left = {}
    for run in runs(root):
        result = run.result()
        assert result is not None, run.status().reason
        plain = {key: value for key, value in result.items() if key not in TIMES}
        left[run.path.name] = plain, run.hypotheses("valid"), run.hypotheses("test")
    return left


def tracked(root: Path) -> tuple[list[Any], list[Any]]:
    """(run, status) and (run, metric, step) of every child in MLflow, as often as they are there."""
    children = "from runs r join tags t on t.run_uuid = r.run_uuid and t.key = 'ablate.run_id'"
    with closing(sqlite3.connect(root / "study" / "mlflow.db")) as database:
        states = database.execute(f"select t.value, r.status {children} order by 1").fetchall()
        steps = database.execute(
            f"select t.value, m.key, m.step {children} join metrics m on m.run_uuid = r.run_uuid order by 1, 2, 3"
        ).fetchall()
    return states, steps


@pytest.mark.slow
def test_workers_driver_and_everything_killed_at_random_leave_an_undisturbed_study(tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    assert started(undisturbed).wait(PATIENCE) == 0
    done = []
    for what in random.sample(["worker", "driver", "everything"], 3):
        process = started(disturbed)
        owners = wait_for_a_run(disturbed, process)
        time.sleep(random.random() * 2)
        if owners and process.poll() is None:
            kill(what, process, owners)
            done.append(what)
        if what == "worker":
            time.sleep(random.random() * 4)
            process.kill()
        process.wait()
    assert done, "every sweep ended before it could be killed"
    assert started(disturbed).wait(PATIENCE) == 0
    assert bits(disturbed) == bits(undisturbed), f"killed in turn: {done}"
    assert tracked(disturbed) == tracked(undisturbed), f"killed in turn: {done}"
