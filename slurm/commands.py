"""SLURM's commands: run with a time-out, in an environment that changes nothing of what is asked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from repro.errors import CheckError

_KEPT = {"SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER"}
"""What of SLURM's variables says where the cluster is; the others describe the job in which we may be."""
_CHANGING = ("SLURM_", "SLURMD_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SRUN_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What came of a command. `code` is None when it gave no answer in time and was ended."""

    code: int | None
    out: str
    err: str

    @property
    def ok(self) -> bool:
        """Whether it says that it did what it was asked."""
        return self.code == 0

    def told(self) -> str:
        """Its own words in one line, most important last."""
        if self.code is None:
            return "it did not answer in time"
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return "; ".join(lines[-3:]) or f"exit code {self.code}"


def ask(*command: str, seconds: float, keep: Iterable[str] = ()) -> Answer:
    """Run one of SLURM's commands and wait for it, at most `seconds`. `keep` names variables that stay in force.

    Raises CheckError when there is no such command here.
    """
    try:
        done = subprocess.run(
            command,
            env=environment(keep),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        fix = "run this on a login node of the cluster, with SLURM's commands on PATH"
        raise CheckError("there is no such command here", where=command[0], fix=fix) from error
    except subprocess.TimeoutExpired:
        return Answer(code=None, out="", err="")
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)


def environment(keep: Iterable[str] = ()) -> dict[str, str]:
    """Ours, without variables that are options of SLURM's commands in disguise or speak of another job."""
    kept = {*_KEPT, *keep}
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith(_CHANGING)}
