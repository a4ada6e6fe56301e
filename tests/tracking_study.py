"""Small synthetic studies for the tests of tracking: real run directories, made-up numbers."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from ablations.tracking.stores import Store, create_schema
from repro.config import RunConfig, TransformerConfig
from repro.files import write_json
from repro.runs.attempts import Attempt, claim
from repro.runs.directory import RunDirectory, Status

BASE = RunConfig(table="table3", model=TransformerConfig(d_model=128, d_ff=256, n_heads=4, n_layers=2)).resolved()
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "A.h1": {"n_heads": 1},
    "A.h2": {"n_heads": 2},
    "C.ff-half": {"d_ff": 128},
    "positions.none": {"positions": "none"},
}
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"


class MadeStudy:
    """A study directory whose runs the test moves on by hand."""

    def __init__(
        self,
        path: Path,
        rows: int = 3,
        seeds: int = 1,
        created: str = "2026-01-31T12:00:00+00:00",
        name: str | None = None,
    ) -> None:
        self.path = path
        self.attempts: dict[str, Attempt] = {}
        configs = [
            dataclasses.replace(
                BASE,
                variant=name,
                seed=seed,
                model=dataclasses.replace(BASE.model, d_k=None, d_v=None, **changes),
            ).resolved()
            for seed in range(1, seeds + 1)
            for name, changes in list(ROWS.items())[:rows]
        ]
        self.configs = {config.run_id(): config for config in configs}
        document = {
            "schema": 1,
            "study": name or path.name,
            "table": "table3",
            "scale": "smoke",
            "seeds": list(range(1, seeds + 1)),
            "set": ["train.log_every=10"],
            "data": {"corpus": "smoke", "directory": "/data", "digest": "d" * 64, "vocabulary_size": 4000},
            "created": created,
            "version": "0.1.0",
            "semantics": 1,
            "base": BASE.document(),
            "variants": [
                {
                    "id": name,
                    "group": name[0],
                    "title": f"the row {name}",
                    "changes": {f"model.{key}": value for key, value in changes.items()},
                }
                for name, changes in list(ROWS.items())[:rows]
            ],
            "runs": [
                {
                    "id": id,
                    "variant": config.variant,
                    "seed": config.seed,
                    "hash": config.hash(),
                    "directory": f"runs/{id}",
                }
                for id, config in self.configs.items()
            ],
        }
        write_json(path / "study.json", document)
        for config in configs:
            RunDirectory.create(path / "runs", config, Path("/data"))

    @property
    def ids(self) -> list[str]:
        """The runs in the plan's order."""
        return list(self.configs)

    def directory(self, id: str) -> RunDirectory:
        return RunDirectory(self.path / "runs" / id)

    def start(self, id: str) -> None:
        """Claim the run for this process."""
        attempt = claim(self.directory(id))
        assert attempt is not None
        self.attempts[id] = attempt
        self.directory(id).write_environment(
            {
                "host": "gpu7",
                "code": {"commit": "0123abcd", "dirty": False},
                "slurm": {"SLURM_JOB_ID": "77", "SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "4"},
            }
        )
        self.directory(id).write_status(Status(state="running", attempt=attempt.number))

    def log(self, id: str, *steps: int, start: float = 1_800_000_000.0) -> None:
        """Append the metrics of these steps; the values depend on the step only, as those of a resumed run do."""
        with (self.directory(id).path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            for step in steps:
                file.write(json.dumps({"step": step, "time": start + step, "metrics": metrics_at(step)}) + "\n")

    def finish(self, id: str, bleu: float = 30.0) -> None:
        """Write a result and end the attempt."""
        run, config = self.directory(id), self.configs[id]
        run.write_hypotheses("valid", ["ein hund", "zwei"])
        run.write_hypotheses("test", ["ein hund läuft", ""])
        run.write_result(result_of(config, bleu))
        run.write_status(Status(state="done", attempt=self.attempts[id].number, step=100, progress=1.0))
        self.attempts.pop(id).end("done")

    def end(self, id: str, state: Any, reason: str) -> None:
        """End the attempt in another state."""
        self.attempts.pop(id).end(state, reason)

    def die(self, id: str) -> None:
        """As a killed process leaves its run: claimed by one that is no more."""
        attempt = self.attempts.pop(id)
        attempt.end("stopped")  # ends the heartbeat
        document = json.loads(attempt.path.read_text())
        document["ended"] = None
        document["owner"] |= {"pid": 2**22 + 1 + os.getpid()}
        attempt.path.write_text(json.dumps(document))

    def complete(self, id: str, bleu: float = 30.0) -> None:
        """The whole life of a run."""
        self.start(id)
        self.log(id, *range(10, 101, 10))
        self.finish(id, bleu)


def metrics_at(step: int) -> dict[str, float]:
    """What is measured at a step."""
    values = {"train/loss": 7.0 - step / 50, "train/flops": step * 1e9, "time/train_seconds": step * 0.5}
    return values | ({"valid/bleu": step / 4, "valid/perplexity": 100.0 / step} if step % 50 == 0 else {})


def result_of(config: RunConfig, bleu: float) -> dict[str, Any]:
    """A result in the documented form."""
    signatures = {"bleu": SIGNATURE, "chrf": "nrefs:1|nc:6"}
    scores = {"chrf": 55.5, "perplexity": 6.5, "loss": 1.87, "capped_share": 0.0, "signatures": signatures}
    return {
        "variant": config.variant,
        "table": config.table,
        "scale": config.scale,
        "seed": config.seed,
        "run_id": config.run_id(),
        "hash": config.hash(),
        "corpus": "smoke",
        "parameters": 1_234_567,
        "steps": 100,
        "skipped_steps": 0,
        "epochs": 2,
        "budget": {"unit": "steps", "amount": 100},
        "source_tokens": 1000,
        "target_tokens": 1100,
        "padding_share": 0.03,
        "train_flops": 100e9,
        "padded_flops": 104e9,
        "flops": {"source": 30e9, "target": 40e9, "attention": 10e9, "softmax": 20e9},
        "train_seconds": 50.0,
        "seconds": {"train": 49.0, "data": 1.0, "evaluate": 3.0, "decode": 2.0, "checkpoint": 0.5},
        "target_tokens_per_second": 22.0,
        "valid": {"bleu": bleu + 1, **scores, "reference_sha256": "w" * 64},
        "test": {
            "bleu": bleu,
            **scores,
            "reference_sha256": "r" * 64,
            "exact_match": 0.8,
            "by_distance": {"2": 0.9, "10+": 0.7},
        },
        "digests": {"corpus": "c" * 64, "vocabulary": "v" * 64},
        "differs_from_paper": ["warmup 400"],
        "threads": 1,
        "device": "cpu",
        "precision": "fp32",
    }


@functools.cache
def empty_database() -> Path:
    """An MLflow database without runs: making one takes seconds, copying it nothing."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "mlflow.db"
    create_schema(Store(uri=f"sqlite:///{path}", database=path, artifacts=folder, own=False))
    return path


def rows(database: Path, query: str, *values: Any) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()


def everything(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    tables = [name for (name,) in rows(database, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: sorted(rows(database, f"SELECT * FROM {table}"), key=repr) for table in tables}


def tracked(database: Path) -> dict[str, dict[str, Any]]:
    """What is shown of every run: by our run id, "" being the parent. Fails when one is there twice."""
    found: dict[str, dict[str, Any]] = {}
    for uuid, status in rows(database, "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'"):
        tags = dict(rows(database, "SELECT key, value FROM tags WHERE run_uuid = ?", uuid))
        tags.pop("ablate.created")
        tags.pop("mlflow.parentRunId", None)
        run_id = tags.get("ablate.run_id", "")
        assert run_id not in found, f"{run_id} is tracked twice"
        metrics = rows(database, "SELECT key, step, value, timestamp FROM metrics WHERE run_uuid = ?", uuid)
        once = Counter((key, step) for key, step, _, _ in metrics)
        assert set(once.values()) <= {1}, f"a metric twice at a step: {once.most_common(1)}"
        found[run_id] = {
            "status": status,
            "tags": tags,
            "params": dict(rows(database, "SELECT key, value FROM params WHERE run_uuid = ?", uuid)),
            "metrics": {(key, step): (value, timestamp) for key, step, value, timestamp in metrics},
            "uuid": uuid,
        }
    return found


def shape(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without MLflow's own ids."""
    return {run_id: {key: value for key, value in run.items() if key != "uuid"} for run_id, run in found.items()}
