"""Synthetic studies for the tests of reports: real directories, numbers drawn from a seeded generator."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from repro.accounting.parameters import parameters
from repro.config import RunConfig, TransformerConfig
from repro.config.paper import differs_from_paper
from repro.files import write_json
from repro.runs.attempts import claim
from repro.runs.directory import MetricLine, RunDirectory, Status

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CHRF_SIGNATURE = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"

EFFECTS = {
    "A.h1": -2.1, "A.h4": -0.4, "A.h16": 0.1, "A.h32": -0.9, "B.dk-quarter": -1.3, "B.dk-half": -0.5,
    "C.layers-third": -4.2, "C.layers-2third": -1.6, "C.layers-4third": 0.5, "C.width-half": -5.9,
    "C.width-double": 1.2,
    "C.ff-half": -1.1, "C.ff-double": 0.6, "D.dropout-0": 0.9, "D.dropout-double": -2.4, "D.smoothing-0": -0.7,
    "D.smoothing-double": 0.2, "E.learned": -0.3, "big": 1.7, "scaling.off": -1.9, "scaling.dk-quarter": -1.3,
    "scaling.dk-quarter-off": -1.5, "scaling.dk-4x": 0.2, "scaling.dk-4x-off": -3.3, "positions.learned": -0.3,
    "positions.none": -78.0, "baseline.lstm": -31.0, "baseline.lstm-attention": -6.1, "baseline.gnmt": -4.4,
    "baseline.convs2s": -1.5, "baseline.lstm-flops": -28.0, "baseline.lstm-attention-flops": -5.0,
    "baseline.gnmt-flops": -3.3, "baseline.convs2s-flops": -1.1,
}  # fmt: skip
"""The made-up difference to base, in BLEU."""


TOUR = (
    "base", "A.h1", "B.dk-quarter", "C.layers-third", "C.width-half", "D.dropout-0", "E.learned", "scaling.off",
    "positions.none",
)  # fmt: skip
"""A row or two of every question."""


class SyntheticStudy:
    """Writes a study as the sweep would; what became of a run is the caller's choice."""

    def __init__(
        self, path: Path, *, scale: str = "smoke", table: str = "table3", base: RunConfig | None = None
    ) -> None:
        self.path, self.table = path, table
        self.base = (base or RunConfig(scale=scale)).resolved()
        self.variants: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.seeds: set[int] = set()
        self.open_attempts: list[Any] = []
        self.level = 93.4 if scale == "smoke" else 31.2

    def variant(self, id: str, group: str, title: str, changes: Mapping[str, Any]) -> None:
        """Plan one row."""
        self.variants.append({"id": id, "group": group, "title": title, "changes": dict(changes)})

    def run(self, config: RunConfig, state: str = "done", reason: str = "", **overrides: Any) -> RunDirectory:
        """Plan one run and bring it to `state`; `overrides` replace entries of its result."""
        config = config.resolved()
        id, digest = config.run_id(), config.hash()
        twin = next((run for run in self.runs if run["hash"] == digest), None)
        entry: dict[str, Any] = {
            "id": id,
            "variant": config.variant,
            "seed": config.seed,
            "hash": digest,
            "directory": f"runs/{id}",
        }
        if twin is not None:
            entry |= {"directory": twin["directory"], "same_as": twin["id"]}
        self.runs.append(entry)
        self.seeds.add(config.seed)
        run = RunDirectory(self.path / entry["directory"])
        if twin is None and state != "missing":
            run = RunDirectory.create(self.path / "runs", config, self.path / "data")
            self._fill(run, config, state, reason, overrides)
        return run

    def write(self) -> Path:
        """Freeze the plan."""
        document = {
            "schema": 1,
            "study": self.path.name,
            "table": self.table,
            "scale": self.base.scale,
            "seeds": sorted(self.seeds),
            "set": [],
            "data": {
                "corpus": self.base.data.corpus,
                "directory": str(self.path / "data"),
                "digest": self.base.data.digest,
                "vocabulary_size": self.base.data.vocabulary_size,
            },
            "created": "2026-01-31T12:00:00+00:00",
            "version": "0.1.0",
            "base": self.base.document(),
            "variants": self.variants,
            "runs": self.runs,
        }
        write_json(self.path / "study.json", document)
        return self.path

    def _fill(
        self, run: RunDirectory, config: RunConfig, state: str, reason: str, overrides: Mapping[str, Any]
    ) -> None:
        share = 1.0 if state == "done" else 0.4
        numbers = _Numbers(config, self.level + EFFECTS.get(config.variant, 0.0))
        run.path.joinpath("metrics.jsonl").write_text(
            "".join(json.dumps(dataclasses.asdict(line)) + "\n" for line in numbers.lines(share)), encoding="utf-8"
        )
        run.write_environment(_environment(config.seed))
        if state == "done":
            run.write_status(Status(state="done", attempt=1))
            run.write_result(_merged(numbers.result(run), overrides))
            return
        run.write_status(Status(state="running", attempt=1, step=int(config.train.budget * share), progress=share))
        attempt = claim(run)
        assert attempt is not None
        if state == "running":
            self.open_attempts.append(attempt)
        else:
            attempt.end(state, reason)  # type: ignore[arg-type]

    def close(self) -> None:
        """End the attempts of running runs."""
        for attempt in self.open_attempts:
            attempt.end("stopped")


class _Numbers:
    """What one run measures."""

    def __init__(self, config: RunConfig, bleu: float) -> None:
        self.config, self.random = config, random.Random(f"{config.variant}/{config.seed}")
        self.bleu = max(0.4, bleu + self.random.gauss(0, 0.35))
        self.steps = int(config.train.budget)
        self.flops_a_step = _flops_a_step(config)
        self.tokens_a_step = config.train.batch_tokens * 0.93

    def bleu_at(self, step: float) -> float:
        return self.bleu * (1 - math.exp(-5.5 * (step / self.steps) ** 1.4))

    def perplexity_at(self, step: float) -> float:
        end = 1.03 + 3.2 * math.exp(-self.bleu / 24)
        return end + 60 * math.exp(-8 * (step / self.steps) ** 0.7)

    def lines(self, share: float) -> list[MetricLine]:
        lines = []
        for tenth in range(1, int(20 * share) + 1):
            step = self.steps * tenth // 20
            metrics = {
                "train/loss": 1.2 + 5 * math.exp(-step / 150),
                "train/flops": self.flops_a_step * step,
                "train/target_tokens": self.tokens_a_step * step,
                "time/train_seconds": step * self.flops_a_step / 5.1e10,
            }
            if tenth % 2 == 0:
                noise = self.random.gauss(0, 0.2)
                metrics |= {
                    "valid/perplexity": self.perplexity_at(step),
                    "valid/bleu": max(0.0, self.bleu_at(step) + noise),
                }
            lines.append(MetricLine(step=step, time=1.7e9 + step, metrics=metrics))
        return lines

    def result(self, run: RunDirectory) -> dict[str, Any]:
        config, seconds = self.config, self.steps * self.flops_a_step / 5.1e10 * self.random.uniform(0.97, 1.05)
        tokens = self.tokens_a_step * self.steps
        scores = {
            "signatures": {"bleu": SIGNATURE, "chrf": CHRF_SIGNATURE},
            "sentences": 500,
            "capped_share": 0.0,
            "unknown_share": 0.0,
        }
        valid = scores | {
            "bleu": self.bleu_at(self.steps), "chrf": 90.0, "perplexity": self.perplexity_at(self.steps),
            "loss": math.log(self.perplexity_at(self.steps)), "reference_sha256": _digest("valid"),
        }  # fmt: skip
        test = valid | {"bleu": self.bleu, "reference_sha256": _digest("test"), "bleu_by_length": self.by_length()}
        if config.data.corpus == "smoke":
            test |= {"smoke": self.smoke_extras()}
        return {
            "variant": config.variant, "table": config.table, "scale": config.scale, "seed": config.seed,
            "run_id": config.run_id(), "hash": config.hash(), "corpus": config.data.corpus,
            "parameters": _parameters(config), "steps": self.steps, "skipped_steps": 0, "epochs": 5.2,
            "budget": {"unit": config.train.budget_unit, "amount": config.train.budget},
            "source_tokens": int(tokens * 0.95), "target_tokens": int(tokens), "padding_share": 0.041,
            "train_flops": self.flops_a_step * self.steps, "padded_flops": 1.05 * self.flops_a_step * self.steps,
            "flops": {"source": 1.0, "target": 1.0, "attention": 1.0, "softmax": 1.0},
            "train_seconds": seconds,
            "seconds": {"train": seconds, "data": 0.4, "evaluate": 3.1, "decode": 9.7, "checkpoint": 0.6},
            "target_tokens_per_second": tokens / seconds, "valid": valid, "test": test,
            "digests": {"corpus": _digest("corpus"), "vocabulary": _digest("vocabulary")},
            "differs_from_paper": differs_from_paper(config), "threads": 1, "device": "cpu", "precision": "fp32",
        }  # fmt: skip

    def by_length(self) -> list[dict[str, Any]]:
        falls = 9.0 if self.config.variant.startswith("baseline.lstm") else 3.0
        return [
            {
                "by": "source",
                "from": start,
                "to": end,
                "sentences": sentences,
                "bleu": max(0.0, self.bleu + 3.0 - falls * number),
            }
            for number, (start, end, sentences) in enumerate(
                [(0, 10, 240), (11, 20, 180), (21, 30, 61), (31, 40, 17), (41, None, 2)]
            )
        ]

    def smoke_extras(self) -> dict[str, Any]:
        good = self.bleu / 100
        distances = {"1-2": 1, "3-5": 4, "6-9": 8, "10+": 16}
        return {
            "exact_match": good**4,
            "agreement_by_distance": {name: max(0.3, good ** (0.4 + d / 6)) for name, d in distances.items()},
            "particle_accuracy": good**0.7,
            "counts": {"sentences": 500, "particles": 153},
        }


def full_study(
    path: Path,
    *,
    table: str = "table3+scaling+positions",
    scale: str = "smoke",
    seeds: Sequence[int] = (1, 2, 3),
    only: Iterable[str] | None = None,
    states: Mapping[tuple[str, int], tuple[str, str]] | None = None,
) -> SyntheticStudy:
    """A study of real tables at a real scale; `states` says which (variant, seed) did not finish, and why."""
    from ablations.selection import choose

    selection = choose(table, scale, only=only).with_data(_digest("corpus"))
    study = SyntheticStudy(path, scale=scale, table=table, base=selection.base)
    for row in selection.rows:
        study.variant(row.variant.id, row.variant.group, row.variant.title, row.changes)
    for seed in seeds:
        for row in selection.rows:
            state, reason = (states or {}).get((row.variant.id, seed), ("done", ""))
            study.run(row.with_seed(seed), state, reason)
    study.write()
    return study


def tiny_config(**changes: Any) -> RunConfig:
    """A small base to hand-made studies; `changes` replace labels such as `variant` and `seed`."""
    model = changes.pop("model", TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=4))
    return RunConfig(scale="smoke", table="table3", model=model, **changes)


def _flops_a_step(config: RunConfig) -> float:
    return 6 * _parameters(config) * config.train.batch_tokens * 0.9


def _parameters(config: RunConfig) -> int:
    model = config.resolved().model
    if not isinstance(model, TransformerConfig):
        return parameters(model, config.data.vocabulary_size)
    assert model.d_k is not None
    assert model.d_v is not None
    attention = 2 * model.d_model * model.n_heads * (model.d_k + model.d_v)
    layer = 3 * attention + 4 * model.d_model * model.d_ff
    return model.n_layers * layer + config.data.vocabulary_size * model.d_model


def _environment(seed: int) -> dict[str, Any]:
    return {
        "host": "maschine-<1>", "cpu": "AMD EPYC & Söhne", "python": "3.11.9", "cores": 2, "slurm": {},
        "code": {"commit": "0123456789abcdef0123456789abcdef01234567", "dirty": seed == 2},
        "versions": {"attention-ablations": "0.1.0", "torch": "2.13.0", "sacrebleu": "2.6.0"},
    }  # fmt: skip


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _merged(document: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in overrides.items():
        document[key] = document[key] | value if isinstance(value, dict) and key in document else value
    return document
