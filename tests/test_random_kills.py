"""A study killed at random, over and over, ends with the bits, and the MLflow runs, of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from held_runs import hold, let_go_once_asked, trained_by
from ray_nodes import ENVIRONMENT, Nodes, descendants
from ray_nodes import kill as end_at_once

from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.outcome import TIMES

PATIENCE = 900.0
"""Seconds after which a test gives up waiting; never a statement about speed."""
REPLAY = "KILLS_SEED"
"""Environment variable: the seed of a test's random choices, to see a failure again as far as clocks allow."""
CLOCKED = {"train/target_tokens_per_second", "time/train_seconds"}
"""Metrics that are times or speeds."""

SMALL = [
    "train.evaluate_every=100",
    "train.checkpoint_seconds=0.3",
    "model.d_model=16",
    "model.d_ff=32",
    "model.n_layers=1",
]


@pytest.fixture
def chance() -> random.Random:
    """Fresh random choices at each run; the seed is printed, and shown when the test fails."""
    seed = int(os.environ.get(REPLAY) or random.SystemRandom().randrange(2**32))
    print(f"{REPLAY}={seed}")
    return random.Random(seed)


class Study:
    """A study under `root`, conducted by `ablate run` as often as it takes."""

    def __init__(self, root: Path, *request: str, settings: list[str]) -> None:
        self.root, self.path = root, root / "study"
        self._command = [sys.executable, "-m", "ablations", "run", *request, "--scale", "smoke"]
        self._command += ["--study", str(self.path), *(word for one in settings for word in ("--set", one))]
        self._log = root.parent / f"{root.name}.log"

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """A driver."""
        environment = os.environ | ENVIRONMENT | {"ABLATE_DATA": str(self.root.parent / "data")}
        environment.pop("MLFLOW_TRACKING_URI", None)
        with self._log.open("ab") as log:
            return subprocess.Popen([*self._command, *options], stdout=log, stderr=subprocess.STDOUT, env=environment)

    def finish(self, *options: str) -> None:
        """Let it come to its end."""
        assert self.start(*options).wait(PATIENCE) == 0, self.told()

    def told(self) -> str:
        """What the drivers said."""
        return self._log.read_text()

    def runs(self) -> list[RunDirectory]:
        """The runs' directories."""
        return [RunDirectory(config.parent) for config in sorted(self.path.glob("runs/*/config.json"))]

    def owners(self) -> list[int]:
        """The process ids of those who train now."""
        return [pid for run in self.runs() if (pid := trained_by(run))]

    def seconds(self) -> float:
        """How long a run takes here, from claim to result, on average."""
        spans = [claim.beat - claim.started for run in self.runs() for claim in attempts.claims(run)]
        return sum(spans) / len(spans)

    def wait_for_a_run(self, process: subprocess.Popen[bytes]) -> list[int]:
        """Until a run is trained by a living process; its owners. Empty when the driver ended before."""
        ends = time.monotonic() + PATIENCE
        while process.poll() is None:
            owners = self.owners()
            if owners:
                return owners
            assert time.monotonic() < ends, f"no run was begun: {self.told()}"
            time.sleep(0.05)
        return []

    def bits(self) -> dict[str, Any]:
        """All that the runs leave behind, but for times and speeds."""
        left = {}
        for run in self.runs():
            result = run.result()
            assert result is not None, f"{run.path.name}: {run.status().reason}; {self.told()}"
            left[run.path.name] = {
                "result": {key: value for key, value in result.items() if key not in TIMES},
                "hypotheses": [run.hypotheses("valid"), run.hypotheses("test")],
                "metrics": [
                    (line.step, {name: value for name, value in line.metrics.items() if name not in CLOCKED})
                    for line in run.metrics()
                ],
            }
        return left

    def tracked(self) -> tuple[list[Any], list[Any]]:
        """(run, status) and (run, metric, step) of every child in MLflow, as often as they are there."""
        children = "from runs r join tags t on t.run_uuid = r.run_uuid and t.key = 'ablate.run_id'"
        with closing(sqlite3.connect(self.path / "mlflow.db")) as database:
            states = database.execute(f"select t.value, r.status {children} order by 1").fetchall()
            steps = database.execute(
                f"select t.value, m.key, m.step {children} join metrics m on m.run_uuid = r.run_uuid order by 1, 2, 3"
            ).fetchall()
        return states, steps


def assert_same(disturbed: Study, undisturbed: Study, told: str) -> None:
    assert disturbed.bits() == undisturbed.bits(), told
    assert disturbed.tracked() == undisturbed.tracked(), told
    for run in disturbed.runs():
        ends = [claim.ended for claim in attempts.claims(run)]
        assert ends.count("done") == 1, f"{run.path.name} ended as {ends}; {told}"


KILLS = ["worker"] * 3 + ["driver"] * 2 + ["node"] * 3 + ["everything"] * 2


class Machines:
    """A cluster of two nodes with one CPU each, and a driver: whatever was killed is there again when asked for."""

    def __init__(self, study: Study, chance: random.Random) -> None:
        self._study, self._chance = study, chance
        self._nodes: Nodes | None = None
        self._driver: subprocess.Popen[bytes] | None = None

    def driver(self) -> subprocess.Popen[bytes]:
        """A driver at work on a whole cluster."""
        if self._nodes is None:
            self._nodes = Nodes()
        if not any(node.lives() for node in self._nodes.nodes[1:]):
            self._nodes.add()
        if self._driver is None or self._driver.poll() is not None:
            after_death = self._chance.choice(["resume", "resume", "resume", "restart"])
            self._driver = self._study.start("--address", self._nodes.address, "--after-death", after_death)
        return self._driver

    def kill(self, what: str, owners: list[int]) -> None:
        """End a worker, the driver, the node without the head, or everything."""
        assert self._nodes is not None
        assert self._driver is not None
        if what == "worker":
            end_at_once([self._chance.choice(owners)])
        if what == "node":
            self._nodes.nodes[-1].kill()
        if what in ("driver", "everything"):
            end_at_once([self._driver.pid])
            self._driver.wait()
        if what == "everything":
            self.close()

    def close(self) -> None:
        """End all of it."""
        if self._nodes is not None:
            self._nodes.close()
            self._nodes = None
        if self._driver is not None and self._driver.poll() is None:
            end_at_once([self._driver.pid, *descendants(self._driver.pid)])
            self._driver.wait()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_workers_drivers_nodes_and_everything_killed_ten_times_leave_an_undisturbed_study(
    tmp_path: Path, chance: random.Random
) -> None:
    request = ("demo", "--only", "base,A.h1,scaling.off,positions.none", "--seeds", "2")
    settings = [*SMALL, f"train.budget={BUDGET}"]
    undisturbed = Study(tmp_path / "undisturbed", *request, settings=settings)
    disturbed = Study(tmp_path / "disturbed", *request, settings=settings)
    undisturbed.finish()
    kills = chance.sample(KILLS, len(KILLS))
    longest = 0.4 * undisturbed.seconds()  # the eight runs, two at a time, take ten such spells
    done = []
    machines = Machines(disturbed, chance)
    try:
        for what in kills:
            process = machines.driver()
            owners = disturbed.wait_for_a_run(process)
            time.sleep(chance.uniform(0, longest))
            if process.poll() is None:
                machines.kill(what, owners)
                done.append(what)
        told = f"killed in turn: {done}"
        assert len(done) > len(kills) / 2, f"{told}; the study ended too early to be disturbed: {disturbed.told()}"
        machines.driver().wait(PATIENCE)
    finally:
        machines.close()
    disturbed.finish()
    assert len(undisturbed.runs()) == 8
    assert_same(disturbed, undisturbed, told)


BUDGET = 400
"""Steps of a run: some seconds on one core."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_family_killed_once_ends_as_if_left_alone(tmp_path: Path, chance: random.Random) -> None:
    request = ("baselines", "--only", ",".join(FAMILIES))
    settings = ["train.budget=150", "train.evaluate_every=50", "train.checkpoint_seconds=0", "train.log_every=1"]
    settings += ["train.batch_tokens=400", "model.d_model=32", "model.d_ff=128", "model.n_layers=1"]
    undisturbed = Study(tmp_path / "undisturbed", *request, settings=settings)
    disturbed = Study(tmp_path / "disturbed", *request, settings=settings)
    left = {family: chance.randrange(1, 100) for family in FAMILIES}  # the step from which on it is killed
    process = disturbed.start()
    while left and process.poll() is None:
        for run in disturbed.runs():
            variant, lines = run.config().variant, run.metrics()
            if variant in left and lines and lines[-1].step >= left[variant] and trained_by(run):
                end_at_once(list(hold(lambda run=run: [run])))  # type: ignore[misc]
                del left[variant]
        time.sleep(0.02)
    assert process.wait(PATIENCE) == 0, disturbed.told()
    assert not left, f"ended before they could be killed: {left}"
    undisturbed.finish()
    assert_same(disturbed, undisturbed, "one kill each")
    assert {len(attempts.claims(run)) for run in disturbed.runs()} == {2}


FAMILIES = ["baseline.lstm", "baseline.lstm-attention", "baseline.gnmt", "baseline.convs2s"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_commands_on_one_study_at_once_do_every_run_once(tmp_path: Path, chance: random.Random) -> None:
    request = ("demo", "--only", "base,A.h1,positions.none")
    settings = [*SMALL, "train.budget=200"]
    undisturbed = Study(tmp_path / "undisturbed", *request, settings=settings)
    twice = Study(tmp_path / "twice", *request, settings=settings)
    first = twice.start()
    time.sleep(chance.uniform(0, 5))
    second = twice.start()
    assert (first.wait(PATIENCE), second.wait(PATIENCE)) == (0, 0), twice.told()
    undisturbed.finish()
    assert_same(twice, undisturbed, "two commands")
    assert {len(attempts.claims(run)) for run in twice.runs()} == {1}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_interrupted_command_says_how_to_go_on_and_that_is_so(tmp_path: Path) -> None:
    study = Study(tmp_path / "my study", "demo", "--only", "base", settings=[*SMALL, "train.budget=1000"])
    process = study.start()
    held = hold(study.runs)
    process.send_signal(signal.SIGINT)
    let_go_once_asked(held, study.path)
    assert process.wait(PATIENCE) == 1
    (line,) = [line for line in study.told().splitlines() if line.startswith("interrupted; to go on from here: ")]
    words = shlex.split(line.partition(": ")[2])
    assert words[0] == "ablate"
    environment = os.environ | ENVIRONMENT | {"ABLATE_DATA": str(tmp_path / "data")}
    subprocess.run([sys.executable, "-m", "ablations", *words[1:]], env=environment, check=True, timeout=PATIENCE)
    (run,) = study.runs()
    assert [claim.ended for claim in attempts.claims(run)] == ["stopped", "done"]


# One process, without Ray: signals that come while a checkpoint is written.


def trained(tmp_path: Path, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ablations", "train", "--scale", "smoke", "--out", str(tmp_path / name)]
    settings = [*(one for one in SMALL if "checkpoint" not in one), "train.checkpoint_seconds=0", "train.budget=300"]
    command += [word for one in settings for word in ("--set", one)]
    environment = os.environ | ENVIRONMENT | {"ABLATE_DATA": str(tmp_path / "data")}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def until(what: Callable[[], bool], process: subprocess.Popen[str]) -> bool:
    """Whether it came to be before the process ended; looked at all the time."""
    while not what():
        if process.poll() is not None:
            return False
    return True


def saved_step(run: RunDirectory) -> int:
    """The step of its newest checkpoint."""
    return max([int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*")], default=0)


DISTURBED = 4
"""Rounds that are disturbed; the one after them is left alone."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_signals_during_the_save_lose_nothing(tmp_path: Path, chance: random.Random) -> None:
    run = RunDirectory(tmp_path / "disturbed")
    rounds = 0
    while True:
        process = trained(tmp_path, "disturbed")
        writing = lambda: bool(list(run.checkpoints.glob(".step-*")))  # noqa: E731
        begun = until(lambda: (run.path / "config.json").exists() and run.status().state == "running", process)
        goal = saved_step(run) + chance.randrange(1, 60)  # in four rounds it does not come to its end
        far = lambda goal=goal: saved_step(run) >= goal  # noqa: E731
        if rounds < DISTURBED and begun and until(far, process) and until(writing, process):
            for _ in range(3):
                with suppress(ProcessLookupError):
                    process.send_signal(chance.choice([signal.SIGTERM, signal.SIGUSR1]))
                time.sleep(chance.uniform(0, 0.01))
        told, _ = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in told, told
        rounds += 1
        if process.returncode == 0:
            break
        assert run.status().state == "stopped", told
        assert rounds <= DISTURBED, told
    assert [claim.ended for claim in attempts.claims(run)][:-1] == ["stopped"] * (rounds - 1)
    assert rounds > 1, "it ended before it could be disturbed"
    alone = trained(tmp_path, "undisturbed")
    told, _ = alone.communicate(timeout=PATIENCE)
    assert alone.returncode == 0, told
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("disturbed", "undisturbed")]
    left = [{key: value for key, value in result.items() if key not in TIMES} for result in results]
    assert left[0] == left[1]
