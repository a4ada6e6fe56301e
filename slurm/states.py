"""The states of SLURM's jobs, all of them, and what each means for a task."""

from __future__ import annotations

import re
from typing import Literal

Meaning = Literal["waiting", "running", "again", "ended", "failed", "gone", "unknown"]
"""waiting to start; running; about to start again; ended well; ended ill; away without a trace; a word unknown here."""

STATES: dict[str, Meaning] = {
    "PENDING": "waiting",
    "CONFIGURING": "waiting",
    "POWER_UP_NODE": "waiting",
    "RESV_DEL_HOLD": "waiting",
    "RUNNING": "running",
    "COMPLETING": "running",
    "SUSPENDED": "running",
    "STOPPED": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "UPDATE_DB": "running",
    "REQUEUED": "again",
    "REQUEUE_FED": "again",
    "REQUEUE_HOLD": "again",
    "SPECIAL_EXIT": "again",
    "EXPEDITING": "again",
    "COMPLETED": "ended",
    "FAILED": "failed",
    "TIMEOUT": "failed",
    "CANCELLED": "failed",
    "PREEMPTED": "failed",
    "NODE_FAIL": "failed",
    "BOOT_FAIL": "failed",
    "LAUNCH_FAILED": "failed",
    "RECONFIG_FAIL": "failed",
    "OUT_OF_MEMORY": "failed",
    "DEADLINE": "failed",
    "REVOKED": "gone",
}
"""Base states and flags, as squeue, sacct and scontrol print them. A requeued job shows as PENDING soon after."""

COMPACT = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "RD": "RESV_DEL_HOLD",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "S": "SUSPENDED",
    "ST": "STOPPED",
    "RS": "RESIZING",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "RQ": "REQUEUED",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "SE": "SPECIAL_EXIT",
    "CD": "COMPLETED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "CA": "CANCELLED",
    "PR": "PREEMPTED",
    "NF": "NODE_FAIL",
    "BF": "BOOT_FAIL",
    "LF": "LAUNCH_FAILED",
    "OOM": "OUT_OF_MEMORY",
    "DL": "DEADLINE",
    "RV": "REVOKED",
}

_STRONGEST: tuple[Meaning, ...] = ("again", "running", "waiting", "gone", "failed", "ended", "unknown")
"""Of several words for one job: a flag says more than the base, and a job that still goes on has not ended."""


def meaning(state: str) -> Meaning:
    """What it means: "CANCELLED by 1000", "PD", "CANCELLED+" (cut short), "TIMEOUT,COMPLETING", and all others."""
    words = re.split(r"[,|&+\s]+", re.sub(r"\s+by\s+\S+.*$", "", state.strip().upper()))
    found = {_of(word) for word in words if word}
    known = (found - {"unknown"}) or {"unknown"}
    return next(candidate for candidate in _STRONGEST if candidate in known)


def lives(state: Meaning) -> bool:
    """Whether such a task will go on by itself."""
    return state in {"waiting", "running", "again"}


def _of(word: str) -> Meaning:
    word = COMPACT.get(word, word)
    if word in STATES:
        return STATES[word]
    full = {meant for name, meant in STATES.items() if name.startswith(word)} if len(word) > 3 else set()
    return full.pop() if len(full) == 1 else "unknown"
