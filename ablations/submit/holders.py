"""Whose a run is: claims of jobs that have ended are buried, those of other machines watched for a sign of life.

A claim on another machine is otherwise held alive until it was silent for long. A job that starts again just after its
node was lost would find its own run held by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ablations.submit.frozen import JOBS
from repro.runs import attempts
from repro.runs.attempts import Claim
from repro.runs.directory import RunDirectory

_LIVE = ("waiting", "running", "again")
_DEAD = ("ended", "failed", "gone")
"""What a queue says of tasks: that they may have processes, and that they have none."""
_POLL_SECONDS = 1.0


def identity(token: str, task: int) -> dict[str, str]:
    """What is kept with the claims of this process: its submission, its place in the list, its job in SLURM."""
    by = {"submission": token, "task": str(task)}
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    if job:
        place = os.environ.get("SLURM_ARRAY_TASK_ID")
        by["slurm"] = f"{job}_{place}" if place else job
        by["restart"] = os.environ.get("SLURM_RESTART_COUNT", "0")
    return by


def is_free(
    run: RunDirectory, study: Path, by: Mapping[str, str], stop: Callable[[], bool | str] = lambda: False
) -> bool:
    """Whether nobody works on `run`. The claim of an owner that is known to be dead is buried.

    Waits for a sign of life where the owner cannot be looked up: until its next heartbeat, or its claim is too old.
    """
    latest = attempts.newest(run)
    if latest is None or not latest.working():
        return True
    if latest.owner is not None and latest.owner.alive():
        return False
    told = _told_dead(latest, study, by)
    if told:
        attempts.bury(latest, told)
        return True
    return told is None and _falls_silent(run, latest, stop)


def bury_dead(run: RunDirectory, study: Path, by: Mapping[str, str]) -> None:
    """Bury the claim on `run` when its owner is known to be dead. Should it live, it finds a newer claim and stops."""
    latest = attempts.newest(run)
    if latest is not None and latest.working() and (told := _told_dead(latest, study, by)):
        attempts.bury(latest, told)


def _told_dead(claim: Claim, study: Path, by: Mapping[str, str]) -> str | None:
    """Why the owner of `claim` is known to be dead; empty: it is known to live; None: nobody can tell."""
    if is_earlier(claim.by, by):
        return "its job was started again"
    meaning = _in_queue(claim, study)
    if meaning in _DEAD:
        return f"its job {claim.by['slurm']} has ended"
    return "" if meaning in _LIVE else None


def is_earlier(theirs: Mapping[str, str], ours: Mapping[str, str]) -> bool:
    """Whether a claim of `theirs` is of the task of `ours`, before SLURM started it again."""
    if not ours.get("slurm") or theirs.get("slurm") != ours["slurm"]:
        return False
    before, now = theirs.get("restart", ""), ours["restart"]
    return before.isdigit() and now.isdigit() and int(before) < int(now)


def _in_queue(claim: Claim, study: Path) -> str:
    """What the task that made `claim` means to the queue; empty where it tells nothing."""
    if "slurm" not in claim.by:
        return ""
    from slurm.queue import look

    job = claim.by["slurm"].partition("_")[0]
    tasks = [task for task in look(study / JOBS).tasks if task.job == job]
    return next((task.meaning for task in tasks if str(task.task or 0) == claim.by.get("task")), "")


def _falls_silent(run: RunDirectory, seen: Claim, stop: Callable[[], bool | str]) -> bool:
    """Wait until the claim `seen` shows a sign of life, or is so old that its owner counts as dead: then True."""
    while not stop():
        latest = attempts.newest(run)
        if latest is None or not latest.working():
            return True
        if latest.number != seen.number or latest.beat != seen.beat:
            return False
        time.sleep(_POLL_SECONDS)
    return False
