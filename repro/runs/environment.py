"""Where and with what a run runs: versions, machine, code and job, without importing anything heavy."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import repro

SNAPSHOT = "snapshot.json"
"""Beside packages that are a copy made at submission: what they are a copy of."""
PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "sacremoses", "safetensors")
_JOB = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_PARTITION",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_RESTART_COUNT",
    "SLURM_CLUSTER_NAME",
    "SLURMD_NODENAME",
)
_GIT_SECONDS = 5.0


def environment() -> dict[str, Any]:
    """A plain document; what cannot be found out is None. The caller adds the names of GPUs.

    "versions" by package, "cores" usable by this process, "code" with "commit" and "dirty" of the checkout that holds
    this package or that it was copied from, "slurm" with the job's variables (empty outside a job). Takes at most about
    5 s.
    """
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "versions": {"attention-ablations": repro.__version__} | {name: _version(name) for name in PACKAGES},
        "code": code(Path(repro.__file__).resolve().parent.parent),
        "slurm": {name: os.environ[name] for name in _JOB if name in os.environ},
    }


def usable_cores() -> int:
    """Logical cores that this process may use: its affinity mask where the system has one."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str | None:
    """The processor's name, e.g. "AMD EPYC 7443P"."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), None) or platform.processor() or platform.machine() or None


def code(root: Path) -> dict[str, Any]:
    """Commit and whether tracked files were changed, when `root` is the top of a git checkout; else both None.

    Of a snapshot it is that of the checkout from which it was made, then.
    """
    noted = _noted(root / SNAPSHOT)
    if noted is not None:
        return noted
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root.resolve():  # installed into a directory of somebody's project
        return {"commit": None, "dirty": None}
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no") if commit is not None else None
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _noted(snapshot: Path) -> dict[str, Any] | None:
    """What a snapshot's description says of its checkout, and the digest of its files; None when there is none."""
    try:
        document = json.loads(snapshot.read_text(encoding="utf-8"))
        return {name: document[name] for name in ("commit", "dirty")} | {"snapshot": document["digest"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _git(root: Path, *command: str) -> str | None:
    """What a git command says, or None when there is no git, no checkout or no answer in time."""
    # A hook's variables would name another repository. Status must not take the lock of the index: many runs ask at
    # once, and the user may be committing.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *command],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS / 3,
            check=False,
            env=variables,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
