"""A study over a few hundred pairs of the smoke language, its frozen work, and tasks that do it as real processes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from small_corpus import PIECES
from tracking_study import empty_database

from ablations.selection import choose
from ablations.study import Data, Study, open_study
from ablations.submit.frozen import Frozen, Options
from repro.data.prepared import Prepared
from repro.runs.directory import RunDirectory
from repro.runs.outcome import TIMES

ROOT = Path(__file__).parent.parent
PATIENCE = 500.0
"""Seconds after which a test gives up waiting; never a statement about speed."""
CLOCKED = ("train/target_tokens_per_second", "time/train_seconds")

TINY = [
    "data.corpus=local:svo-sov",
    f"data.vocabulary_size={PIECES}",
    "data.max_pieces=64",
    "model.n_layers=1",
    "model.d_model=16",
    "model.d_ff=32",
    "model.n_heads=2",
    "model.max_positions=64",
    "decode.extra_length=4",
    "train.batch_tokens=200",
    "train.warmup_steps=10",
    "train.log_every=5",
    "train.checkpoint_seconds=0",
]
"""What makes a run of the smoke scale small; its length is up to the test."""


def settings(budget: int, *more: str) -> list[str]:
    """A tiny run of so many steps."""
    return [*TINY, f"train.budget={budget}", f"train.evaluate_every={max(1, budget // 3)}", *more]


def small_study(path: Path, corpus: Prepared, only: Sequence[str], budget: int = 24, *more: str) -> Study:
    """The study of some rows, each with one seed. Its MLflow database is there already: making one takes seconds."""
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "mlflow.db").exists():
        shutil.copy(empty_database(), path / "mlflow.db")
    data = Data(corpus="local:svo-sov", directory=corpus.directory, digest=corpus.digest, vocabulary_size=PIECES)
    selection = choose("table3", "smoke", only=list(only), settings=settings(budget, *more))
    return open_study(path, selection, [1], data)[0]


def frozen(study: Study, token: str = "t0", **options: Any) -> Frozen:
    """All runs of the study as one submission's work."""
    runs = tuple(os.path.relpath(run.path, study.path) for run in study.runs)
    work = Frozen(
        study=study.path, token=token, mode="array", code="code", runs=runs, options=Options(**options), command="again"
    )
    work.write()
    return work


class Task:
    """`ablate work` in a process of its own."""

    def __init__(self, study: Path, *arguments: str, **variables: str) -> None:
        names = ("SLURM_", "MLFLOW_", "RANK", "WORLD_SIZE", "MASTER_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ablations", "work", str(study), *arguments],
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Exit code and output."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output


def wait_for(what: Callable[[], Any], told: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, f"waited in vain: {told}"
        time.sleep(0.02)


def bits(run: RunDirectory) -> dict[str, Any]:
    """All that a run leaves behind, but for times, speeds and the label of its table."""
    result = run.result()
    assert result is not None, run.status()
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES | {"table"}},
        "metrics": [
            (line.step, {name: value for name, value in line.metrics.items() if name not in CLOCKED})
            for line in run.metrics()
        ],
        "hypotheses": [run.hypotheses("valid"), run.hypotheses("test")],
        "weights": hashlib.sha256((run.checkpoints / "final.safetensors").read_bytes()).hexdigest(),
    }
