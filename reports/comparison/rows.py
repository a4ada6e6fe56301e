"""Two rows in depth: what differs in their settings, their scores by seed and by length, and in single sentences."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reports.formats import DASH, plain
from reports.records.comparable import agreed, check_no_search, check_runs_comparable
from reports.records.study import BASE, Run, Study, Variant, load_study
from reports.records.texts import lines_of_test
from reports.statistics.lengths import By, Span, bleu_of, length_groups, measured_by
from reports.statistics.measures import (
    Measure,
    Quantity,
    bleu_on_test,
    difference,
    measure,
    train_flops,
    valid_perplexity,
)
from reports.statistics.significance import RowTests, table_tests
from repro.errors import CheckError, UsageError
from repro.runs.directory import RunDirectory

SCHEMA = 1
_SECOND = "second"
_LABELS = {"variant", "table", "scale", "seed"}
_MOST = 10
"""Sentences shown: half of them those that the one does better, half those that the other does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two rows."""

    name: str
    """STUDY:VARIANT, as it was asked for."""
    study: Study
    variant: Variant

    @property
    def runs(self) -> list[Run]:
        """Its planned runs."""
        return self.study.by_variant[self.variant.id]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One quantity of both rows; `difference` is second minus first, paired by seed."""

    key: str
    title: str
    unit: str
    digits: int
    first: Measure
    second: Measure
    difference: Measure


@dataclass(frozen=True, kw_only=True, slots=True)
class Length:
    """BLEU of both rows on the sentences of one length."""

    span: Span
    sentences: int
    bleu: Score


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One sentence of the test side as both translated it, with sentence scores (0 to 100)."""

    number: int
    """Line, from 1."""
    source: str
    reference: str
    first: str
    second: str
    first_chrf: float
    second_chrf: float
    first_bleu: float
    second_bleu: float

    @property
    def gain(self) -> float:
        """chrF of the second minus that of the first."""
        return self.second_chrf - self.first_chrf


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All that is told of two rows."""

    first: Side
    second: Side
    settings: tuple[tuple[str, str, str], ...]
    """Keys of the configuration in which they differ, with the value of each; a dash where a family has none."""
    scores: tuple[Score, ...]
    tests: RowTests
    """Of the second against the first."""
    by: By | None
    """Whose length `lengths` are: the sources', or the references' in results of earlier versions."""
    lengths: tuple[Length, ...]
    seed: int | None
    """Of the pair of runs whose sentences are shown; None where none are."""
    sentences: tuple[Sentence, ...]
    """Those that differ most by chrF: first what the second does better, then what the first does."""
    signature: str
    """sacreBLEU's, of the BLEU on the test side."""


def compare(first: str, second: str, studies: Mapping[str, Path]) -> Comparison:
    """The rows `first` and `second`, each STUDY:VARIANT with STUDY a key of `studies`.

    Raises UsageError for a row that there is not, CheckError when a row has no finished run or their scores do not
    compare.
    """
    sides = [_side(name, studies) for name in (first, second)]
    for side in sides:
        if not any(run.done for run in side.runs):
            raise CheckError("no finished run to compare", where=side.name, fix="see ablate status")
    one, other = sides
    check_runs_comparable(
        [*one.runs, *other.runs], f"{one.name} and {other.name}", fix="compare rows that were scored on one text, alike"
    )
    both = _as_study(one, other)
    seed, sentences = _sentences(both)
    by = measured_by([*one.runs, *other.runs])
    return Comparison(
        first=one,
        second=other,
        settings=_settings(one, other),
        scores=tuple(_scores(one.runs, other.runs)),
        tests=table_tests(both)[_SECOND],
        by=by,
        lengths=tuple(_lengths(one.runs, other.runs, by)),
        seed=seed,
        sentences=tuple(sentences),
        signature=agreed(both, "test", "signatures", "bleu"),
    )


def split_name(name: str) -> tuple[str, str]:
    """The study and the variant of STUDY:VARIANT. Raises UsageError when it is not of this form."""
    study, colon, variant = name.rpartition(":")
    if not (study and colon and variant):
        raise UsageError(f"{name!r} names no row", fix="write STUDY:VARIANT, e.g. studies/demo:A.h1")
    return study, variant


def document(of: Comparison) -> dict[str, Any]:
    """`of` as a document of `ablate compare --json`; differences are second minus first."""
    return {
        "schema": SCHEMA,
        "first": _side_document(of.first),
        "second": _side_document(of.second),
        "signature": of.signature,
        "settings": [{"key": key, "first": one, "second": other} for key, one, other in of.settings],
        "scores": {score.key: _score_document(score) for score in of.scores},
        "tests": {
            name: None
            if test is None
            else {"name": test.name, "p": test.p, "n": test.n, "detail": test.detail, "signature": test.signature}
            for name, test in (("seeds", of.tests.seeds), ("test_set", of.tests.test_set))
        },
        "by_length": [
            {"by": of.by, "from": part.span.low, "to": part.span.high, "sentences": part.sentences}
            | _score_document(part.bleu)
            for part in of.lengths
        ],
        "seed": of.seed,
        "sentences": [
            {
                "number": sentence.number,
                "source": sentence.source,
                "reference": sentence.reference,
                "first": {"text": sentence.first, "chrf": sentence.first_chrf, "bleu": sentence.first_bleu},
                "second": {"text": sentence.second, "chrf": sentence.second_chrf, "bleu": sentence.second_bleu},
            }
            for sentence in of.sentences
        ],
    }


def _side(name: str, studies: Mapping[str, Path]) -> Side:
    place, id = split_name(name)
    study = load_study(studies[place])
    check_no_search(study)
    known = {variant.id: variant for variant in study.variants}
    if id not in known:
        near = difflib.get_close_matches(id, known, n=3, cutoff=0.5)
        fix = f"did you mean {' or '.join(near)}?" if near else f"its rows: {', '.join(known)}"
        raise UsageError(f"no row {id!r} in this study", where=place, fix=fix)
    return Side(name=name, study=study, variant=known[id])


def _as_study(first: Side, second: Side) -> Study:
    """The two rows as a study of their own with the first as base, so that they are tested as rows are."""
    labelled = ((first, BASE), (second, _SECOND))
    runs = [replace(run, variant=id, same_as=None) for side, id in labelled for run in side.runs]
    return replace(
        first.study,
        variants=tuple(replace(side.variant, id=id) for side, id in labelled),
        runs=tuple(runs),
    )


def _settings(first: Side, second: Side) -> tuple[tuple[str, str, str], ...]:
    one, other = (side.study.settings(side.variant.id) for side in (first, second))
    keys = [key for key in {**one, **other} if key not in _LABELS and one.get(key, _NONE) != other.get(key, _NONE)]
    return tuple((key, _shown(one, key), _shown(other, key)) for key in keys)


_NONE = object()


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return plain(settings[key]) if key in settings else DASH


def _scores(first: Sequence[Run], second: Sequence[Run]) -> list[Score]:
    def score(key: str, title: str, unit: str, digits: int, quantity: Quantity) -> Score:
        return Score(
            key=key,
            title=title,
            unit=unit,
            digits=digits,
            first=measure(first, quantity),
            second=measure(second, quantity),
            difference=difference(second, first, quantity),
        )

    return [
        score("bleu", "BLEU, test", "13a", 2, bleu_on_test),
        score("chrf", "chrF, test", "", 2, lambda run: run.number("test", "chrf")),
        score("perplexity", "perplexity, valid", "per piece", 3, valid_perplexity),
        score("parameters", "parameters", "", 0, lambda run: run.number("parameters")),
        score("train_flops", "training FLOPs", "our count", 0, train_flops),
        score("train_seconds", "training time", "s", 1, lambda run: run.number("train_seconds")),
    ]


def _lengths(first: Sequence[Run], second: Sequence[Run], by: By | None) -> list[Length]:
    sentences = {group.span: group.sentences for run in (*first, *second) for group in length_groups(run, by)}
    found = []
    for span in sorted(sentences, key=lambda span: span.low):
        quantity = bleu_of(span, by)
        bleu = Score(
            key="bleu",
            title="BLEU",
            unit="13a",
            digits=1,
            first=measure(first, quantity),
            second=measure(second, quantity),
            difference=difference(second, first, quantity),
        )
        found.append(Length(span=span, sentences=sentences[span], bleu=bleu))
    return found


def _sentences(both: Study) -> tuple[int | None, list[Sentence]]:
    """The seed and the sentences that differ most, where translations and corpus are at hand."""
    sides, text = both.by_variant, lines_of_test(both)
    pairs = [(one, other) for one in sides[BASE] for other in sides[_SECOND] if one.seed == other.seed]
    if text is None:
        return None, []
    for one, other in pairs:
        lines = [RunDirectory(run.path).hypotheses("test") if run.done else None for run in (one, other)]
        if all(found is not None and len(found) == len(text[0]) for found in lines):
            return one.seed, _most_different(text, lines[0] or [], lines[1] or [])
    return None, []


def _most_different(text: tuple[list[str], list[str]], first: list[str], second: list[str]) -> list[Sentence]:
    from sacrebleu.metrics import BLEU, CHRF

    # As sacreBLEU advises for single sentences: `effective_order` leaves out n-grams longer than the sentence.
    chrf, bleu = CHRF(), BLEU(effective_order=True)
    found = []
    for number, (source, reference, one, other) in enumerate(zip(*text, first, second, strict=True), 1):
        if one == other:
            continue
        scores = [(chrf.sentence_score(line, [reference]).score, line) for line in (one, other)]
        found.append((scores[1][0] - scores[0][0], number, source, reference, scores))
    better = sorted((entry for entry in found if entry[0] > 0), key=lambda entry: (-entry[0], entry[1]))
    worse = sorted((entry for entry in found if entry[0] < 0), key=lambda entry: (entry[0], entry[1]))
    return [
        Sentence(
            number=number,
            source=source,
            reference=reference,
            first=scores[0][1],
            second=scores[1][1],
            first_chrf=scores[0][0],
            second_chrf=scores[1][0],
            first_bleu=bleu.sentence_score(scores[0][1], [reference]).score,
            second_bleu=bleu.sentence_score(scores[1][1], [reference]).score,
        )
        for _, number, source, reference, scores in (*better[: _MOST // 2], *worse[: _MOST // 2])
    ]


def _side_document(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "study": side.study.name,
        "variant": side.variant.id,
        "title": side.variant.title,
        "changes": dict(side.variant.changes),
        "runs": [{"id": run.id, "seed": run.seed, "state": run.state, "hash": run.hash} for run in side.runs],
    }


def _score_document(score: Score) -> dict[str, Any]:
    return {
        "first": _measure_document(score.first),
        "second": _measure_document(score.second),
        "difference": _measure_document(score.difference),
    }


def _measure_document(values: Measure) -> dict[str, Any]:
    interval = values.interval
    return {
        "mean": values.mean,
        "n": values.n,
        "planned": values.planned,
        "interval": None if interval is None else {"low": interval.low, "high": interval.high, "level": interval.level},
        "values": list(values.values),
    }
