"""BLEU by sentence length, as results tell it: of sources, or of references where an earlier version scored."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from reports.formats import DASH
from reports.records.study import Run
from reports.statistics.measures import Quantity

By = Literal["source", "reference"]
"""Whose words are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The lengths of one group."""

    low: int
    high: int | None
    """Words, both inside; None: no upper end."""

    @property
    def words(self) -> str:
        """As an axis or a table calls it: "up to 10", "11–20", "over 50"."""
        if self.high is None:
            return f"over {self.low - 1}"
        return f"up to {self.high}" if self.low <= 1 else f"{self.low}{DASH}{self.high}"

    @property
    def middle(self) -> float:
        """Its middle in words; an open group is taken to be as wide as the others."""
        return (self.low + (self.low + 9 if self.high is None else self.high)) / 2


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthGroup:
    """The sentences of one run's test side whose lengths lie in `span`."""

    span: Span
    sentences: int
    bleu: float


def measured_by(runs: Iterable[Run]) -> By | None:
    """Whose length `runs` are to be compared by: the sources' if any run tells it; None where none tells either.

    Groups of sources and groups of references hold other sentences: only runs that were grouped alike compare.
    """
    found = {by for run in runs if (by := _by(run)) is not None}
    return "source" if "source" in found else next(iter(found), None)


def length_groups(run: Run, by: By | None) -> list[LengthGroup]:
    """BLEU of `run` by length, the shortest first; nothing where it was not grouped by the length of the `by`."""
    entries = run.value("test", "bleu_by_length")
    if not run.done or by is None or _by(run) != by or not isinstance(entries, list):
        return []
    return [
        LengthGroup(
            span=Span(low=entry["from"], high=entry["to"]), sentences=entry["sentences"], bleu=float(entry["bleu"])
        )
        for entry in entries
        if isinstance(entry, Mapping) and {"from", "to", "sentences", "bleu"} <= entry.keys()
    ]


def bleu_of(span: Span, by: By | None) -> Quantity:
    """BLEU of the sentences whose lengths lie in `span`."""

    def quantity(run: Run) -> float | None:
        return next((group.bleu for group in length_groups(run, by) if group.span == span), None)

    return quantity


def fall_of(by: By | None) -> Quantity:
    """The share of its BLEU that a run gains (falling: below 0) with every ten words of sentence length, test side.

    The slope of a straight line through BLEU by length group, each group at its middle and weighted by its sentences,
    over the weighted mean of BLEU. None with fewer than two groups, or where nothing is translated right.
    """
    return partial(_fall, by=by)


def _fall(run: Run, by: By | None) -> float | None:
    groups = length_groups(run, by)
    if len(groups) < 2:
        return None
    middles, scores = [group.span.middle for group in groups], [group.bleu for group in groups]
    weights = [group.sentences for group in groups]
    whole = math.fsum(weights)
    middle, score = (math.fsum(map(operator.mul, weights, column)) / whole for column in (middles, scores))
    if score <= 0:
        return None
    rise = math.fsum(w * (x - middle) * (y - score) for w, x, y in zip(weights, middles, scores, strict=True))
    return 10 * rise / math.fsum(w * (x - middle) ** 2 for w, x in zip(weights, middles, strict=True)) / score


def _by(run: Run) -> By | None:
    """Whose length its groups are of; results without the word are from a version that counted the references'."""
    entries = run.value("test", "bleu_by_length")
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], Mapping):
        return None
    return "source" if entries[0].get("by") == "source" else "reference"
