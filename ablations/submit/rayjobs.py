"""The jobs of a study that were handed to Ray clusters, and how each stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ablations.submit.frozen import JOBS, Frozen
from ablations.submit.jobserver import Job, JobServer
from ablations.submit.places import Place
from repro.errors import CheckError, UserError
from repro.files import read_json, write_json

MODE: Literal["ray-job"] = "ray-job"
"""Of such a submission."""
_ENDED = ".ray.json"
_MEANINGS = {
    "PENDING": "waiting",
    "RUNNING": "running",
    "SUCCEEDED": "ended",
    "STOPPED": "ended",
    "FAILED": "failed",
}
LIVE, OVER = ("waiting", "running"), ("ended", "failed", "gone")
"""Meanings of jobs that have not ended, and of those that have."""
_NOT_SHARED = "no study here"
"""How a driver begins that finds nothing where this machine has the study."""


def look(listed: Sequence[Frozen]) -> tuple[list[Place], list[str]]:
    """How the jobs among `listed` stand, and warnings. A job that was seen ended is not asked for again."""
    tasks, warnings = [], []
    servers: dict[str, JobServer | None] = {}
    for frozen in listed:
        if frozen.mode != MODE:
            continue
        address = str(frozen.request["address"])
        if (ended := end_of(frozen)) is not None:
            tasks.append(_place(frozen, ended["state"], ended["meaning"], ended["reason"]))
            continue
        try:
            if address not in servers:
                servers[address] = None
                servers[address] = JobServer(address)
            server = servers[address]
            if server is not None:
                tasks.append(looked_at(frozen, server.look(frozen.token)))
                continue
        except UserError as error:
            warnings.append(str(error))
        tasks.append(_place(frozen, "", "unknown", "the job server does not answer"))
    return tasks, warnings


def looked_at(frozen: Frozen, job: Job | None) -> Place:
    """The job as it stands; an end is kept in the study, for clusters forget."""
    if job is None:
        return _place(frozen, "", "gone", "its cluster does not know it any more")
    reason = job.reason
    if reason.startswith(str(frozen.study)) and _NOT_SHARED in reason:
        fix = "keep the study on a disk that all nodes share, or give --storage URL"
        reason = f"the head does not see {frozen.study} as it is here: {fix}"
    task = _place(frozen, job.state, _MEANINGS.get(job.state, "unknown"), reason)
    if not job.live:
        kept = {"schema": 1, "state": task.state, "meaning": task.meaning, "reason": task.reason}
        write_json(frozen.study / JOBS / f"{frozen.token}{_ENDED}", kept)
    return task


def end_of(frozen: Frozen) -> dict[str, Any] | None:
    """How the job was seen ended, or None."""
    try:
        document = read_json(frozen.study / JOBS / f"{frozen.token}{_ENDED}")
        return {name: str(document[name]) for name in ("state", "meaning", "reason")}
    except (CheckError, KeyError, TypeError):
        return None


def _place(frozen: Frozen, state: str, meaning: str, reason: str) -> Place:
    return Place(token=frozen.token, job=frozen.token, task=None, state=state, meaning=meaning, reason=reason)


def name_of(frozen: Frozen) -> str:
    """How a message calls the job."""
    return f"Ray job {frozen.token}"
