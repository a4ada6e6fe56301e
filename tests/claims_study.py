"""Studies whose truth is known: rows with a stated BLEU and perplexity, and seeds that scatter by a stated amount."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.records.study import Run, Study, Variant

SETTINGS = {"train.budget": 3000, "train.budget_unit": "steps", "train.batch_tokens": 1024}


class Made:
    """Collects rows; `study` puts them together. Nothing is on disk."""

    def __init__(self, seeds: int = 5, spread: float = 0.05) -> None:
        self.seeds, self.spread = range(1, seeds + 1), spread
        self.rows: dict[str, list[Run]] = {}

    def row(
        self,
        name: str,
        bleu: float,
        perplexity: float = 4.92,
        *,
        states: Mapping[int, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        curve: Sequence[tuple[int, float]] = (),
        shares: str = "",
        **result: Any,
    ) -> Made:
        """Add a row. `states`: seeds that did not finish; `curve`: BLEU on the validation side by step."""
        runs = []
        for seed in self.seeds:
            state = (states or {}).get(seed, "done")
            rng = random.Random(f"{name}/{seed}/{self.spread}")
            found = {
                "parameters": 1_000_000, "steps": 3000, "train_flops": 3e12, "target_tokens": 3_000_000,
                "train_seconds": 60.0,
                "test": {"bleu": bleu + rng.gauss(0, self.spread)},
                "valid": {"perplexity": perplexity * (1 + rng.gauss(0, self.spread) / 50)},
            } | result  # fmt: skip
            run = Run(
                id=f"{name}-s{seed}", variant=name, seed=seed, hash="", path=Path(f"{shares or name}-{seed}"),
                same_as=None, state=state, settings=SETTINGS | dict(settings or {}), environment={},  # type: ignore[arg-type]
                result=found if state == "done" else {},
            )  # fmt: skip
            flops = found["train_flops"] / found["steps"]
            run.__dict__["points"] = {
                "valid/bleu": [(step, value + rng.gauss(0, self.spread)) for step, value in curve],
                "train/flops": [(step, flops * step) for step, _ in curve],
            }
            runs.append(run)
        self.rows[name] = runs
        return self

    def study(self) -> Study:
        """The study of all rows."""
        return Study(
            path=Path("made"), name="made", table="table3", scale="multi30k-cpu", seeds=tuple(self.seeds),
            overrides=(), data={"corpus": "multi30k_en_de"}, created="", version="", planned_base={},
            variants=tuple(Variant(id=row, group=row.split(".")[0], title=row, changes={}) for row in self.rows),
            runs=tuple(run for runs in self.rows.values() for run in runs),
        )  # fmt: skip
