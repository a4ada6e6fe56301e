"""Again: a task that has saved goes on in its own job, requeued, or in another, submitted for it."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace

from repro.errors import UserError
from slurm.commands import ask
from slurm.record import Record, locked, now
from slurm.submission import enter

RAN_OUT = "TimeLimit"
"""SLURM's reason for a job that ended because its time was over."""


def go_on(record: Record, index: int, restart: int, first: signal.Signals | None) -> tuple[bool, str]:
    """See to it that a task goes on after `first`, the signal that stopped it: whether it will, and how.

    On TERM SLURM has mostly settled already what becomes of the job: requeued by an administrator or a preemption it
    starts anew by itself, cancelled it must not. Only a job that SLURM still takes for running, as in the grace time of
    a preemption, is requeued from here.
    """
    if Record.load(record.path).cancelled:
        return False, "cancelled, so it does not start again"
    state, reason = _state(record)
    settled = state != "RUNNING" and reason != RAN_OUT if state else first == signal.SIGTERM
    if settled:
        return True, f"SLURM ends this job ({state or 'no state'}); it starts anew unless it was cancelled"
    if restart >= record.site.tries:
        return False, f"it has started {restart + 1} times, all that the site file allows (tries)"
    try:
        return _requeued(record) or _resubmitted(record, index)
    except UserError as error:
        return False, str(error)


def _requeued(record: Record) -> tuple[bool, str] | None:
    """Requeue this task alone: an array's number by itself would mean all its tasks."""
    if not record.site.requeue:
        return None
    job = _own()
    answer = ask("scontrol", "requeue", job, seconds=record.site.answer_seconds)
    if answer.ok or "pending" in answer.err.lower():
        return True, f"job {job} is requeued and goes on from here"
    if answer.code is None:  # It may have been heard all the same.
        time.sleep(record.site.answer_seconds)
        state, _ = _state(record)
        if state not in {"RUNNING", ""}:
            return True, f"job {job} is {state} after scontrol gave no answer"
    return None


def _resubmitted(record: Record, index: int) -> tuple[bool, str]:
    """A job of its own for this task, under the next ticket."""
    number, tries = record.first + index, record.resubmissions + 1
    fresh = replace(
        record,
        ticket=f"{record.token}-{number}r{tries}",
        first=number,
        tasks=1,
        created=now(),
        job=None,
        resubmissions=tries,
    )
    with locked(record.request.folder, record.token):
        if Record.load(record.path).cancelled:
            return False, "cancelled, so it does not start again"
        job = enter(fresh, lambda _: None).job
    return True, f"goes on in job {job}"


def _state(record: Record) -> tuple[str, str]:
    """SLURM's state of this job and its reason; empty where it does not say."""
    told = ask("scontrol", "--oneliner", "show", "job", _own(), seconds=record.site.answer_seconds).out
    found = re.search(r"\bJobState=(\S+) Reason=(\S+)", told)
    return (found[1], found[2]) if found else ("", "")


def _own() -> str:
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]
