"""Inside a job: the command gets its signals, and its exit code decides what becomes of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from slurm_stubs import Stubs, waited_for

from slurm.queue import look
from slurm.record import Note, Record, now, records
from slurm.request import Request
from slurm.site import Site

SAVES = """
import pathlib, signal, sys, time
def save(number, frame):
    with open(sys.argv[1] + ".signals", "a") as told:
        told.write(signal.Signals(number).name + " ")
    time.sleep(1)
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
pathlib.Path(sys.argv[1] + ".up").write_text("up")
time.sleep(600)
"""
"""A command that takes a second to save, and would notice a second signal."""


class Job:
    """One task, number 7 of its submission and index 2 of its array, as SLURM would start it."""

    def __init__(self, place: Path, command: tuple[str, ...], site: Site | None = None, tasks: int = 5) -> None:
        (place / "stubs").mkdir()
        self.stubs = Stubs(place / "stubs")
        self.stubs.say("own", "RUNNING")
        self.folder = place / "jobs"
        request = Request(
            folder=self.folder,
            name="heads",
            command=command,
            tasks=9,
            mode="array",
            code=Path(__file__).parent.parent,
            environment={"MARK": "a b"},
        )
        site = site or Site(answer_seconds=5)
        self.record = Record(
            token="k7", ticket="k7-5", first=5, tasks=tasks, request=request, site=site, created=now(), job="100"
        )
        assert self.record.create()

    def start(self, restart: int = 0) -> subprocess.Popen[str]:
        """Its batch script, after bash."""
        slurm = {"SLURM_JOB_ID": "103", "SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "2"}
        slurm |= {"SLURM_RESTART_COUNT": str(restart)} if restart else {}
        slurm |= {"PYTHONPATH": str(self.record.request.code)}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "slurm.batch", str(self.record.path)],
            env=os.environ | self.stubs.environment | slurm,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, restart: int = 0) -> tuple[int, str]:
        """Its exit code and what it printed."""
        process = self.start(restart)
        told, _ = process.communicate(timeout=60)
        return process.returncode, told

    def note(self) -> Note | None:
        """What it noted of itself."""
        return Note.load(self.record.note(2))

    def requeued(self) -> list[str]:
        """What SLURM was asked to requeue."""
        return [call.split()[1] for call in self.stubs.calls("scontrol") if call.startswith("requeue")]


def test_the_command_learns_its_number_and_its_log(tmp_path: Path) -> None:
    job = Job(tmp_path, ("sh", "-c", 'echo "{task} $MARK $ABLATE_TASK_LOG"'))
    assert job.run() == (0, f"7 a b {job.folder / 'k7-5.2.log'}\n")
    assert job.note() == Note(job="100", state="ended", code=0)
    assert job.stubs.calls("scontrol") == []


def test_a_failure_is_passed_on_and_not_tried_again(tmp_path: Path) -> None:
    job = Job(tmp_path, ("sh", "-c", "exit 3"))
    assert job.run()[0] == 3
    assert job.note() == Note(job="100", state="failed", code=3)
    assert job.stubs.calls("scontrol") == []


def test_a_task_that_wants_to_go_on_requeues_itself_and_no_other(tmp_path: Path) -> None:
    job = Job(tmp_path, ("sh", "-c", "exit 75"))
    assert job.run(restart=3)[0] == 0
    assert job.requeued() == ["100_2"]
    assert job.note() == Note(job="100", state="again", code=75, restart=3)


@pytest.mark.parametrize("why", ["the site file says so", "SLURM refuses"])
def test_where_a_job_cannot_be_requeued_another_takes_its_task(tmp_path: Path, why: str) -> None:
    job = Job(tmp_path, ("sh", "-c", "exit 75"), Site(answer_seconds=5, requeue=why != "the site file says so"))
    job.stubs.say("norequeue", "")
    assert job.run()[0] == 0
    [first, second] = records(job.folder)
    assert (second.ticket, second.job, second.first, second.tasks) == ("k7-7r1", "100", 7, 1)
    assert second.resubmissions == first.resubmissions + 1 == 1
    assert job.stubs.jobs() == ["k7-7r1"]
    assert "#SBATCH --array=0-0\n" in second.script().read_text()


def test_tries_come_to_an_end(tmp_path: Path) -> None:
    job = Job(tmp_path, ("sh", "-c", "exit 75"), Site(answer_seconds=5, tries=2))
    assert job.run(restart=1)[0] == 0
    assert job.run(restart=2)[0] == 75
    assert job.requeued() == ["100_2"]
    assert job.note() == Note(job="100", state="failed", code=75, restart=2)
    code, told = job.run(restart=3)  # By a hand other than ours.
    assert (code, len(job.requeued())) == (1, 1)
    assert "site file allows 2" in told


def test_a_warning_reaches_the_command_and_more_signals_do_no_harm(tmp_path: Path) -> None:
    job = Job(tmp_path, (sys.executable, "-c", SAVES, str(tmp_path / "saved")))
    process = job.start()
    waited_for(tmp_path / "saved.up")
    process.send_signal(signal.SIGUSR1)
    waited_for(tmp_path / "saved.signals")
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert (tmp_path / "saved.signals").read_text() == "SIGUSR1 "
    assert job.requeued() == ["100_2"]


@pytest.mark.parametrize(
    ("state", "reason", "again"),
    [
        ("COMPLETING", "None", False),  # scancel, or a requeue that SLURM sees to.
        ("PENDING", "BeginTime", False),
        ("CANCELLED", "None", False),
        ("COMPLETING", "TimeLimit", True),
        ("RUNNING", "None", True),  # The grace time of a preemption.
    ],
)
def test_after_sigterm_only_a_job_that_slurm_leaves_alone_is_requeued(
    tmp_path: Path, state: str, reason: str, again: bool
) -> None:
    job = Job(tmp_path, (sys.executable, "-c", SAVES, str(tmp_path / "saved")))
    job.stubs.say("own", state)
    job.stubs.say("reason", reason)
    process = job.start()
    waited_for(tmp_path / "saved.up")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert (tmp_path / "saved.signals").read_text() == "SIGTERM "
    assert job.requeued() == (["100_2"] if again else [])


def test_a_cancelled_task_does_not_start_again(tmp_path: Path) -> None:
    job = Job(tmp_path, (sys.executable, "-c", SAVES, str(tmp_path / "saved")))
    process = job.start()
    waited_for(tmp_path / "saved.up")
    document = job.record.path.read_text()
    assert '"cancelled": false' in document
    job.record.path.write_text(document.replace('"cancelled": false', '"cancelled": true'))
    process.send_signal(signal.SIGUSR1)
    told, _ = process.communicate(timeout=60)
    assert job.requeued() == []
    assert "cancelled" in told


def test_a_command_that_is_not_ready_for_the_signal_goes_on_later(tmp_path: Path) -> None:
    job = Job(tmp_path, ("sh", "-c", f"echo up > {tmp_path}/up; exec sleep 600"))
    process = job.start()
    waited_for(tmp_path / "up")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert job.requeued() == ["100_2"]


def test_a_job_that_was_resubmitted_counts_as_one_task_of_its_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, ("sh", "-c", "exit 75"), Site(answer_seconds=5, requeue=False), tasks=4)
    for name, value in job.stubs.environment.items():
        monkeypatch.setenv(name, value)
    job.stubs.say("jobs", "100 0-3 k7-5 heads-k7-5\n")
    job.run()
    assert [(task.task, task.job) for task in look(job.folder).tasks] == [
        (5, "100"), (6, "100"), (7, "100"), (8, "100"), (7, "101"),
    ]  # fmt: skip
