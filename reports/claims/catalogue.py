"""What the paper and its commentators say, read from `claims.yaml` and checked: testable sentences about named rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from reports.records.paper import load_paper
from reports.records.study import BudgetAxis
from reports.statistics.budgets import AXES
from repro.errors import CheckError

Kind = Literal["difference", "equivalence", "interaction", "order", "trend"]
Metric = Literal["bleu", "perplexity", "length"]
Expect = Literal["below", "above", "equal", "at-least", "at-most"]

CLAIMS = Path(__file__).with_name("claims.yaml")
"""The claims that come with this package."""

_CLAIM_KEYS = {"id", "sentence", "source", "kind", "note", "budget", "match", "paper", "parts"}
_PART_KEYS = {"says", "contrast", "order", "metric", "expect", "margin"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One contrast of rows, and where its mean must lie for the claim to hold."""

    says: str
    contrast: Mapping[str, float]
    """Row to its weight in the sum that is taken for every seed."""
    metric: Metric
    expect: Expect
    margin: float
    """equal, at-least, at-most: what still counts as equal. below, above: what does not count as a difference."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One statement; it holds when all its parts do."""

    id: str
    sentence: str
    source: str
    kind: Kind
    parts: tuple[Part, ...]
    note: str = ""
    budget: BudgetAxis = "steps"
    """What the rows must have spent alike. "steps": whatever the study's own budget counts."""
    match: str = ""
    """ "parameters": the rows must be equally large."""
    paper: tuple[str, str] | None = None
    """The two systems of the paper's Table 2 whose BLEU is compared there."""
    same: Mapping[str, str] = field(default_factory=dict)
    """Rows to the other name of the same configuration."""

    @property
    def rows(self) -> list[str]:
        """All rows it compares, each once."""
        return list(dict.fromkeys(row for part in self.parts for row in part.contrast))


def load_claims(path: Path = CLAIMS) -> list[Claim]:
    """The claims of `path`. Raises CheckError that names the claim when one is not sound."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    reader = _Reader(path, document)
    claims = [reader.claim(entry) for entry in document["claims"]]
    repeated = [claim.id for number, claim in enumerate(claims) if claim.id in {c.id for c in claims[:number]}]
    if repeated:
        raise reader.fault(repeated[0], "its id is used twice")
    return claims


class _Reader:
    """Turns entries into claims, and refuses what could not be tested."""

    def __init__(self, path: Path, document: Any) -> None:
        self.path = path
        missing = {"rows", "same", "metrics", "claims"} - set(document if isinstance(document, dict) else ())
        if missing:
            raise CheckError(f"no {sorted(missing)[0]}", where=str(path), fix="restore the file")
        self.rows, self.same = set(document["rows"]), document["same"]
        self.negligible = {name: float(entry["negligible"]) for name, entry in document["metrics"].items()}

    def fault(self, claim: str, what: str) -> CheckError:
        """The error for `claim`."""
        return CheckError(f"claim {claim}: {what}", where=str(self.path), fix="correct the claim")

    def claim(self, entry: Mapping[str, Any]) -> Claim:
        """One claim."""
        name = str(entry.get("id", "without an id"))
        self._keys(name, entry, _CLAIM_KEYS, {"id", "sentence", "source", "kind", "parts"})
        self._one_of(name, "kind", entry["kind"], get_args(Kind))
        self._one_of(name, "budget", entry.get("budget", "steps"), AXES)
        self._one_of(name, "match", entry.get("match", ""), ("", "parameters"))
        parts = tuple(part for number in entry["parts"] for part in self._parts(name, number))
        if not parts:
            raise self.fault(name, "it has no parts")
        claim = Claim(
            id=name,
            sentence=entry["sentence"],
            source=entry["source"],
            kind=entry["kind"],
            parts=parts,
            note=entry.get("note", ""),
            budget=entry.get("budget", "steps"),
            match=entry.get("match", ""),
            paper=cast("tuple[str, str]", tuple(entry["paper"])) if "paper" in entry else None,
            same=self.same,
        )
        self._check_kind(claim)
        self._check_paper(claim)
        return claim

    def _parts(self, claim: str, entry: Mapping[str, Any]) -> list[Part]:
        self._keys(claim, entry, _PART_KEYS, {"metric", "expect"})
        self._one_of(claim, "metric", entry["metric"], get_args(Metric))
        self._one_of(claim, "expect", entry["expect"], get_args(Expect))
        if ("order" in entry) == ("contrast" in entry):
            raise self.fault(claim, "a part needs a contrast or an order")
        if entry["expect"] in ("equal", "at-least", "at-most") and "margin" not in entry:
            raise self.fault(claim, f"{entry['expect']} needs a margin")
        if "order" not in entry:
            return [self._part(claim, entry, entry["contrast"], str(entry.get("says", "")))]
        return self._steps(claim, entry)

    def _steps(self, claim: str, entry: Mapping[str, Any]) -> list[Part]:
        """The parts of an order: its ends, and every step between."""
        rows, expect = list(entry["order"]), entry["expect"]
        if len(rows) < 2 or expect not in ("below", "above") or "margin" not in entry:
            raise self.fault(claim, "an order needs two rows or more and a margin, and expects below or above")
        unit = "BLEU" if entry["metric"] == "bleu" else entry["metric"]
        ends = {key: value for key, value in entry.items() if key != "margin"}
        step = {**entry, "expect": "at-least" if expect == "above" else "at-most"}
        return [
            self._part(claim, ends, {rows[-1]: 1, rows[0]: -1}, f"{rows[-1]} {expect} {rows[0]} in {unit}"),
            *(
                self._part(claim, step, {row: 1, before: -1}, f"{row} no worse than {before} in {unit}")
                for before, row in pairwise(rows)
            ),
        ]

    def _part(self, claim: str, entry: Mapping[str, Any], contrast: Mapping[str, Any], says: str) -> Part:
        for row in contrast:
            if row not in self.rows:
                raise self.fault(claim, f"unknown row {row!r}")
        weights = {row: self._number(claim, f"the weight of {row}", weight) for row, weight in contrast.items()}
        if len(weights) < 2 or not says:
            raise self.fault(claim, "a part says what it expects of two rows or more")
        margin = self._number(claim, "margin", entry.get("margin", self.negligible[entry["metric"]]))
        if margin <= 0:
            raise self.fault(claim, "a margin must be above 0")
        return Part(says=says, contrast=weights, metric=entry["metric"], expect=entry["expect"], margin=margin)

    def _check_kind(self, claim: Claim) -> None:
        """Refuse a kind that the parts are not of."""
        equal = [part.expect == "equal" for part in claim.parts]
        if any(equal) != (claim.kind == "equivalence") or any(equal) != all(equal):
            raise self.fault(claim.id, "an equivalence, and nothing else, expects equal")
        if (claim.kind == "interaction") != all(len(part.contrast) == 4 for part in claim.parts):
            raise self.fault(claim.id, "an interaction, and nothing else, contrasts four rows")
        if (claim.kind == "trend") != all(part.metric == "length" for part in claim.parts):
            raise self.fault(claim.id, "a trend, and nothing else, is of the metric length")

    def _check_paper(self, claim: Claim) -> None:
        if claim.paper is None:
            return
        known = published_systems()
        for system in claim.paper:
            if len(claim.paper) != 2 or system not in known:
                raise self.fault(claim.id, f"{system!r} is no pair of systems of the paper's Table 2")

    def _keys(self, claim: str, entry: Mapping[str, Any], known: set[str], needed: set[str]) -> None:
        for key in entry:
            if key not in known:
                raise self.fault(claim, f"unknown key {key!r}")
        for key in sorted(needed):
            if key not in entry:
                raise self.fault(claim, f"no {key}")

    def _one_of(self, claim: str, key: str, value: object, known: Sequence[str]) -> None:
        if value not in known:
            raise self.fault(claim, f"unknown {key} {value!r}; known: {', '.join(filter(None, known))}")

    def _number(self, claim: str, what: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(claim, f"{what} is no number: {value!r}")
        return float(value)


def published_systems() -> Mapping[str, float]:
    """BLEU of the systems of the paper's Table 2, English-German."""
    return {row.model: row.bleu_german for row in load_paper().systems if row.bleu_german is not None}
