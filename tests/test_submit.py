"""`ablate submit slurm`, `cancel` and `status`, with SLURM's commands stubbed: one set of jobs, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_stubs import Stubs
from small_corpus import small_corpus
from small_study import ROOT, settings, wait_for

from ablations.cli import run
from ablations.cluster import Resources
from ablations.study import Study
from ablations.submit.frozen import submissions
from ablations.submit.slurm import Layout
from repro.errors import UsageError
from repro.runs.directory import RunDirectory


class Cluster:
    """A stubbed SLURM and a user in front of it, in a directory of their own."""

    def __init__(self, path: Path, text: Path) -> None:
        self.path, self.study, self._text = path, path / "study", text
        (path / "slurm").mkdir()
        self.slurm = Stubs(path / "slurm")
        self.site = path / "site.yaml"
        self.site.write_text("partition: main\nanswer_seconds: 1\n")

    def command(self, only: str, *more: str) -> list[str]:
        """`ablate submit slurm` for some rows."""
        changes = [part for setting in settings(24) for part in ("--set", setting)]
        table = ["submit", "slurm", "table3", "--scale", "smoke", "--only", only, "--study", str(self.study)]
        return [*table, *changes, "--source", str(self._text), "--site", str(self.site), *more]

    def start(self, only: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "ablations", *self.command(only)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def tasks(self) -> dict[str, int]:
        """How many tasks each job in SLURM has, by its number."""
        return self.slurm.tasks()

    def lists(self) -> list[list[str]]:
        """The rows of each submission's list."""
        return [[run.variant for run in frozen.listed()] for frozen in submissions(self.study)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    text, data = tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data")
    small_corpus(text, data)
    return text, data


@pytest.fixture
def cluster(tmp_path: Path, prepared: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(tmp_path, prepared[0])
    monkeypatch.setenv("ABLATE_DATA", str(prepared[1]))
    for name, value in found.slurm.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_TRACKING_URI", "ABLATE_SITE"):
        monkeypatch.delenv(name, raising=False)
    return found


Said = Callable[[], str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What was printed since the last call."""

    def read() -> str:
        captured = capsys.readouterr()
        return captured.out + captured.err

    return read


def finish(study: Path, variant: str) -> None:
    """Let the run of a row be done."""
    (path,) = (run.path for run in Study.load(study).runs if run.variant == variant)
    RunDirectory(path).write_result({"steps": 24, "test": {"bleu": 1.0}})


def test_the_same_command_again_submits_nothing_and_more_rows_only_those(cluster: Cluster, said: Said) -> None:
    assert run(cluster.command("base,A.h1")) == 0
    assert cluster.tasks() == {"100": 2}
    (first,) = submissions(cluster.study)
    frozen = (cluster.study / "jobs" / f"{first.token}.work.json").read_bytes()
    said()
    assert run(cluster.command("base,A.h1")) == 0
    assert cluster.tasks() == {"100": 2}
    assert "no job is submitted" in said()

    assert run(cluster.command("base,A.h1,C.ff-half")) == 0
    assert cluster.tasks() == {"100": 2, "101": 1}
    assert sorted(cluster.lists()) == [["C.ff-half"], ["base", "A.h1"]]
    # The study has grown; what is queued is what it was.
    assert (cluster.study / "jobs" / f"{first.token}.work.json").read_bytes() == frozen
    assert len(list((cluster.study / "code").glob("[!.]*"))) == 1

    # What ended without an outcome is submitted anew, what is done is not.
    finish(cluster.study, "base")
    for job in ("100", "101"):
        cluster.slurm.say(f"state.{job}", "TIMEOUT")
    assert run(cluster.command("base,A.h1,C.ff-half")) == 0
    assert cluster.tasks()["102"] == 2
    assert sorted(cluster.lists())[-1] == ["base", "A.h1"]
    assert sorted(cluster.lists())[:2] == [["A.h1", "C.ff-half"], ["C.ff-half"]]


def test_two_commands_at_the_same_moment_make_one_set_of_jobs(cluster: Cluster) -> None:
    processes = [cluster.start("base,A.h1") for _ in range(2)]
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert cluster.tasks() == {"100": 2}
    assert cluster.lists() == [["base", "A.h1"]]


def test_a_job_that_was_taken_without_an_answer_is_adopted(cluster: Cluster, said: Said) -> None:
    cluster.slurm.say("sbatch", "hang")
    assert run(cluster.command("base")) == 0
    assert cluster.tasks() == {"100": 1}
    assert "took the job" in said()
    cluster.slurm.say("sbatch", "take")
    assert run(cluster.command("base")) == 0
    assert cluster.tasks() == {"100": 1}


def test_a_submission_killed_while_sbatch_hangs_is_completed_by_the_same_command(cluster: Cluster, said: Said) -> None:
    cluster.slurm.say("sbatch", "hang")
    cluster.site.write_text("answer_seconds: 100\n")
    process = cluster.start("base,A.h1")
    wait_for(cluster.tasks, "a job")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cluster.slurm.say("sbatch", "take")
    assert run(cluster.command("base,A.h1")) == 0
    assert "was cut short" in said()
    assert cluster.tasks() == {"100": 2}
    assert cluster.lists() == [["base", "A.h1"]]


def test_what_sbatch_refuses_is_one_line_and_leaves_nothing_behind(cluster: Cluster, said: Said) -> None:
    cluster.slurm.say("sbatch", "refuse")
    assert run(cluster.command("base")) == 3
    told = said().strip().splitlines()[-1]
    assert told.startswith("ablate: ")
    assert "Invalid account" in told
    assert submissions(cluster.study) == []
    cluster.slurm.say("sbatch", "take")
    assert run(cluster.command("base")) == 0
    assert cluster.tasks() == {"100": 1}


def test_nothing_left_means_no_job_and_no_slurm_is_needed(
    cluster: Cluster, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cluster.path))  # a SLURM may be installed here
    assert run(cluster.command("base")) == 3
    assert "sbatch: there is no such command here" in said()
    monkeypatch.setattr("ablations.submit.slurm.close_finished", lambda *_: None)
    finish(cluster.study, "base")
    assert run(cluster.command("base")) == 0
    assert "no job is submitted" in said()


def test_cancel_ends_the_studys_jobs_alone_and_the_same_command_queues_them_again(cluster: Cluster, said: Said) -> None:
    assert run(cluster.command("base")) == 0
    cluster.slurm.take("900 N/A mine mine")
    assert run(["cancel", str(cluster.study)]) == 0
    assert "cancelled 100" in said()
    assert {job: cluster.slurm.state(job) for job in cluster.tasks()} == {"100": "CANCELLED", "900": "PENDING"}
    assert run(["cancel", str(cluster.study)]) == 0
    assert "nothing of it is queued" in said()
    assert run(cluster.command("base")) == 0
    assert len(cluster.tasks()) == 3
    # Also when the list of what the job is to do was damaged.
    for frozen in submissions(cluster.study):
        (cluster.study / "jobs" / f"{frozen.token}.work.json").write_text("{")
    assert run(["cancel", str(cluster.study)]) == 0
    assert cluster.slurm.state("102") == "CANCELLED"


def test_status_tells_where_runs_stand_in_the_queue_and_that_slurm_is_away(cluster: Cluster, said: Said) -> None:
    assert run(cluster.command("base,A.h1")) == 0
    cluster.slurm.say("state.100.1", "NODE_FAIL")
    said()
    assert run(["status", str(cluster.study), "--json"]) == 0
    document = json.loads(said())
    assert document["queue"]["counts"] == {"failed": 1, "waiting": 1}
    told = {entry["variant"]: entry["queue"] for entry in document["runs"]}
    assert (told["base"]["job"], told["base"]["meaning"], told["base"]["reason"]) == ("100", "waiting", "Priority")
    assert (told["A.h1"]["state"], told["A.h1"]["meaning"]) == ("NODE_FAIL", "failed")
    assert run(["status", str(cluster.study)]) == 0
    table = said()
    assert "waiting (job 100, Priority)" in table
    assert "failed (job 100, NODE_FAIL)" in table

    cluster.slurm.say("squeue.down", "")
    assert run(["status", str(cluster.study)]) == 0
    assert "warning: squeue" in said()
    # What may be queued is not submitted again, what cannot be asked is not guessed.
    assert run(["cancel", str(cluster.study)]) == 3
    for more in ((), ("--dry-run",)):
        assert run(cluster.command("base", *more)) == 3
        assert "cannot be asked for jobs that were submitted before (squeue" in said()
    assert len(cluster.tasks()) == 1


def test_a_dry_run_prints_the_script_and_writes_nothing(cluster: Cluster, said: Said) -> None:
    before = sorted(cluster.path.iterdir())
    assert run(cluster.command("base,A.h1", "--at-once", "1", "--dry-run")) == 0
    script = said()
    assert sorted(cluster.path.iterdir()) == before
    assert cluster.slurm.calls("sbatch") == []
    assert "#SBATCH --array=0-1%1" in script
    assert "#SBATCH --partition=main" in script
    assert f"{cluster.study}/code/" in script
    assert cluster.tasks() == {}


def test_a_dry_run_prints_what_would_be_submitted_beside_what_is_queued(cluster: Cluster, said: Said) -> None:
    assert run(cluster.command("base,A.h1")) == 0
    said()
    assert run(cluster.command("base,A.h1,C.ff-half", "--dry-run")) == 0
    shown = said()
    assert run(cluster.command("base,A.h1,C.ff-half")) == 0
    assert cluster.tasks() == {"100": 2, "101": 1}
    token = max(submissions(cluster.study), key=lambda frozen: "C.ff-half" in str(frozen.runs)).token
    script = (cluster.study / "jobs" / f"{token}-0.sh").read_text()
    assert shown[shown.index("#!") :].replace("TOKEN", token).startswith(script)
    said()
    assert run(cluster.command("base,A.h1,C.ff-half", "--dry-run")) == 3
    assert "there would be no job" in said()


def test_memory_that_the_site_gives_is_checked_before_anything_is_queued(cluster: Cluster, said: Said) -> None:
    cluster.site.write_text("memory: 0\n")  # in SLURM's words: all that a node has
    assert run(cluster.command("base", "--dry-run")) == 0
    cluster.site.write_text("memory: 20M\n")
    assert run(cluster.command("base")) == 3
    assert "the 20M of a node that the site file asks for" in said()
    assert cluster.tasks() == {}


def test_a_run_that_somebody_works_on_is_not_submitted(cluster: Cluster, said: Said) -> None:
    from repro.runs import attempts

    cluster.slurm.say("sbatch", "refuse")
    assert run(cluster.command("base,A.h1")) == 3
    cluster.slurm.say("sbatch", "take")
    base = next(run for run in Study.load(cluster.study).runs if run.variant == "base")
    held = attempts.claim(base.directory)
    assert held is not None
    with held:
        assert run(cluster.command("base,A.h1")) == 0
    assert cluster.lists() == [["A.h1"]]
    assert "works on it, not submitted" in said()


@pytest.mark.parametrize(
    ("layout", "asked"),
    [
        ({}, {"nodes": 1, "cpus": 1, "processes": 1, "gpus": 0}),
        ({"gpus_per_run": 8.0, "cpus_per_run": 64}, {"nodes": 1, "cpus": 8, "processes": 8, "gpus": 8}),
        ({"gpus_per_run": 8.0, "nodes": 2}, {"nodes": 2, "cpus": 1, "processes": 4, "gpus": 4}),
        ({"processes_per_run": 3, "cpus_per_run": 5}, {"nodes": 1, "cpus": 2, "processes": 3, "gpus": 0}),
        ({"mode": "ray", "nodes": 4, "gpus_per_run": 0.5, "runs_per_node": 8}, {"nodes": 4, "cpus": 8, "gpus": 4}),
        ({"mode": "ray", "gpus_per_run": 8.0, "cpus_per_run": 32}, {"nodes": 1, "cpus": 32, "gpus": 8}),
    ],
)
def test_what_a_run_gets_becomes_what_the_scheduler_is_asked(layout: dict[str, Any], asked: dict[str, int]) -> None:
    own = {name: layout[name] for name in ("mode", "nodes", "runs_per_node") if name in layout}
    each = {name: value for name, value in layout.items() if name not in own}
    demands = Layout(resources=Resources(**each), **own).demands()
    assert {name: demands[name] for name in asked} == asked


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        ({"resources": Resources(gpus_per_run=0.5)}, "--gpus-per-run"),
        ({"resources": Resources(gpus_per_run=8), "nodes": 3}, "8 processes on 3 nodes"),
        ({"runs_per_node": 2}, "--runs-per-node"),
    ],
)
def test_a_layout_that_no_array_can_have_is_refused(layout: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Layout(**layout)
