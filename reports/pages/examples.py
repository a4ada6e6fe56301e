"""A few translations of base beside those of the row that fell most, where the corpus is at hand."""

from __future__ import annotations

from dataclasses import dataclass

from reports.records.study import BASE, Run, Study
from reports.records.texts import lines_of_test
from reports.statistics.measures import bleu_on_test, measure
from repro.errors import CheckError
from repro.runs.directory import RunDirectory

_SHOWN = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One source with its reference and what rows made of it."""

    number: int
    """Line of the test side, from 1."""
    source: str
    reference: str
    translations: tuple[tuple[str, str], ...]
    """Row and its translation."""


def examples(study: Study) -> list[Example]:
    """Evenly spaced sentences of the test side, not chosen by how well they came out; none without the corpus."""
    lowest, base = _lowest(study), _first_done(study, BASE)
    sides = lines_of_test(study)
    if base is None or sides is None:
        return []
    sources, references = sides
    outputs = []
    for run in (base, lowest):
        lines = _hypotheses(run) if run is not None else None
        if run is not None and lines is not None and len(lines) == len(sources):
            outputs.append((f"{run.variant}, seed {run.seed}", lines))
    candidates = [line for line, text in enumerate(sources) if text.strip()]
    if not outputs or not candidates:
        return []
    chosen = sorted({candidates[len(candidates) * (2 * part + 1) // (2 * _SHOWN)] for part in range(_SHOWN)})
    return [
        Example(
            number=line + 1,
            source=sources[line],
            reference=references[line],
            translations=tuple((name, lines[line]) for name, lines in outputs),
        )
        for line in chosen
    ]


def _first_done(study: Study, variant: str) -> Run | None:
    return next((run for run in study.by_variant.get(variant, []) if run.done), None)


def _lowest(study: Study) -> Run | None:
    """A finished run of the row with the lowest BLEU, base left out."""
    means = {v.id: measure(study.by_variant[v.id], bleu_on_test).mean for v in study.variants if v.id != BASE}
    known = {variant: mean for variant, mean in means.items() if mean is not None}
    return _first_done(study, min(known, key=lambda variant: known[variant])) if known else None


def _hypotheses(run: Run) -> list[str] | None:
    try:
        return RunDirectory(run.path).hypotheses("test")
    except (CheckError, UnicodeDecodeError):
        return None
