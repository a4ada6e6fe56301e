"""`ablate` in processes of its own, and what they have begun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

from ray_nodes import PATIENCE
from small_study import ROOT

from ablations.study import PLAN, Study
from repro.data.prepared import Prepared
from repro.runs import attempts
from repro.runs.directory import RunDirectory


class Command:
    """`ablate ...` in a process of its own."""

    started: ClassVar[list[Command]] = []

    def __init__(self, *arguments: str, corpus: Prepared, cwd: Path | None = None, **variables: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MLFLOW_", "RAY_"))}
        ours = {"PYTHONPATH": str(ROOT), "ABLATE_DATA": str(corpus.directory.parent.parent), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ablations", *arguments],
            env=kept | ours | {"OMP_NUM_THREADS": "1"} | variables,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.started.append(self)

    @classmethod
    def end_all(cls) -> None:
        """End those that still run."""
        for command in cls.started:
            if command.process.poll() is None:
                command.process.kill()
                command.process.communicate()
        cls.started.clear()

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


def begun(study: Path, attempt: int = 1) -> list[RunDirectory]:
    """The runs that are at this attempt, or a later one; none before there is a study."""
    runs = [run.directory for run in Study.load(study).runs] if (study / PLAN).exists() else []
    return [run for run in runs if len(attempts.claims(run)) >= attempt]
