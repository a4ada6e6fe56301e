"""What the paper published, read from `paper.yaml`; a published number is written nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperRow:
    """One row of the paper's Table 3 (newstest2013, tokenised BLEU)."""

    id: str
    perplexity: float
    """Per word piece, unsmoothed."""
    bleu: float
    parameters: float | None
    """In millions, as printed; None where the paper prints none."""
    bleu_difference: float
    """BLEU minus that of the paper's base."""
    changes: Mapping[str, Any]
    """What is not as in the paper's base, by the paper's names: heads, d_k, layers, d_model, d_ff; all, for base."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperSystem:
    """One row of the paper's Table 2 (newstest2014, tokenised BLEU); None: not printed there."""

    model: str
    bleu_german: float | None
    bleu_french: float | None
    flops_german: float | None
    """Training cost of English-German by the paper's method."""
    flops_french: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperLayer:
    """One row of the paper's Table 1; n length, d width, k kernel, r neighbourhood."""

    layer: str
    complexity: str
    sequential: str
    path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The published tables and what a comparison with them has to say."""

    title: str
    arxiv: str
    rows: Mapping[str, PaperRow]
    """By variant, in the paper's order; rows of ours that are a published row under another name are added."""
    base: PaperRow
    base_steps: int
    batch_target_tokens: int
    task: str
    test: str
    bleu_protocol: str
    parameters_note: str
    systems: tuple[PaperSystem, ...]
    """Table 2."""
    systems_note: str
    layers: tuple[PaperLayer, ...]
    """Table 1."""
    cost_rule: str
    """How the paper reckons a training cost."""

    @property
    def base_target_tokens(self) -> float:
        """Target tokens the paper's base was trained on: steps times the stated batch (section 5.1)."""
        return float(self.base_steps * self.batch_target_tokens)


@cache
def load_paper() -> Paper:
    """The paper's numbers, from the data file that comes with this package."""
    document = yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
    table = document["table3"]
    base = next(row for row in table["rows"] if row["id"] == table["base"])
    rows = {
        row["id"]: PaperRow(
            id=row["id"],
            perplexity=row["perplexity"],
            bleu=row["bleu"],
            parameters=row["parameters"],
            # The paper prints one decimal; so has the difference.
            bleu_difference=round(row["bleu"] - base["bleu"], 1),
            changes=row["changes"],
        )
        for row in table["rows"]
    }
    rows |= {ours: rows[theirs] for ours, theirs in table["same_as"].items()}
    protocol = document["protocol"]
    return Paper(
        title=document["source"]["title"],
        arxiv=document["source"]["arxiv"],
        rows=rows,
        base=rows[table["base"]],
        base_steps=base["changes"]["steps"],
        batch_target_tokens=protocol["training"]["batch_target_tokens"],
        task=protocol["table3"]["task"],
        test=protocol["table3"]["test"],
        bleu_protocol=protocol["table3"]["bleu"],
        parameters_note=table["note"],
        systems=tuple(_system(row) for row in document["table2"]["rows"]),
        systems_note=document["table2"]["note"],
        layers=tuple(PaperLayer(**row) for row in document["table1"]["rows"]),
        cost_rule=protocol["training_cost"]["rule"],
    )


def _system(row: Mapping[str, Any]) -> PaperSystem:
    (bleu_german, bleu_french), (flops_german, flops_french) = row["bleu"], row["flops"]
    return PaperSystem(
        model=row["model"],
        bleu_german=bleu_german,
        bleu_french=bleu_french,
        flops_german=flops_german,
        flops_french=flops_french,
    )
