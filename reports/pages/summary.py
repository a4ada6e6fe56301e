"""The opening of a report in plain words: what was run, what held, what did not, and how far to trust it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from reports.claims.verdicts import Finding, State, Verdict
from reports.formats import counted, duration, fixed, listed, signed
from reports.pages.trust import trust
from reports.probes.parts import Page
from reports.records.paper import Paper
from reports.records.study import BASE, STATES, Study
from reports.statistics.effects import Effect, effects
from reports.statistics.measures import bleu_on_test, direction, measure, valid_perplexity
from reports.tables.table3 import base_settings, changes_budget, study_title

MECHANISMS = "mechanisms"
"""The id of the section on mechanisms, without the study's prefix."""

_NAMED = 3
"""Rows that the summary names at either end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One heading of the summary with its sentences, and its points if they make a list."""

    title: str
    text: str = ""
    points: tuple[str, ...] = ()
    more: str = ""
    """The id, without the study's prefix, of the section that tells more of it; empty where none does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number that stands at the top of the page."""

    value: str
    name: str
    note: str = ""


def _told(effect: Effect) -> str:
    """The row and its difference, with what the reader must know of it: "big (+1.4, another budget)"."""
    told = [signed(effect.mean, 1)]
    if not effect.bleu.complete:
        told.append(effect.bleu.partial)
    if changes_budget(effect.variant):
        told.append("another budget")
    return f"{effect.variant.id} ({', '.join(told)})"


def summary(study: Study, paper: Paper, verdicts: Sequence[Verdict], probes: Sequence[Page] = ()) -> list[Statement]:
    """All statements, in order; `probes` is what was measured of mechanisms in the study."""
    # Another row under a second name would count twice.
    found = [effect for effect in effects(study, paper) if not study.repeats(effect.variant.id)]
    statements = [_what_was_run(study), _what_came_out(study, found)]
    if study.finished and study.base is not None:
        statements += _claims(verdicts)
        if compared := _beside_the_paper(found):
            statements.append(compared)
    statements += _mechanisms(probes)
    points = trust(study, paper)
    return [*statements, Statement(title="How far to trust it", points=tuple(points))]


def headline(study: Study, verdicts: Sequence[Verdict]) -> list[Figure]:
    """The numbers at the top of the page."""
    figures = [
        Figure(value=f"{len(study.finished)}/{len(study.trained)}", name="runs finished", note=_unfinished(study))
    ]
    base = study.by_variant.get(BASE, [])
    bleu, perplexity = measure(base, bleu_on_test), measure(base, valid_perplexity)
    for name, values, digits in (("BLEU of base, test", bleu, 1), ("perplexity of base, valid", perplexity, 2)):
        if values.mean is not None:
            half = f"±{fixed(values.interval.half, digits)}, " if values.interval else ""
            note = half + (values.partial or counted(values.n, "seed"))
            figures.append(Figure(value=fixed(values.mean, digits), name=name, note=note))
    counts = Counter(verdict.state for verdict in verdicts)
    if tested := sum(counts.values()) - counts["not tested"]:
        note = f"{counts['contradicted']} contradicted, {counts['inconclusive']} undecided"
        figures.append(
            Figure(value=f"{counts['reproduced']}/{tested}", name="tested claims reproduced here", note=note)
        )
    seconds = sum(run.number("train_seconds") or 0.0 for run in study.finished)
    if seconds:
        figures.append(
            Figure(value=duration(seconds), name="of training in all", note="finished runs, evaluation apart")
        )
    return figures


def _what_was_run(study: Study) -> Statement:
    base = base_settings(study)
    sentences = [
        f"{study_title(study)}: {counted(len(study.variants), 'row')}{_seeds(study)}"
        f" on the corpus {study.data.get('corpus', 'unknown')}"
        f" ({fixed(study.data.get('vocabulary_size', 0), 0)} joint pieces)."
    ]
    if "train.budget" in base:
        sentences.append(
            f"The budget of base is {fixed(base['train.budget'], 0)} {base.get('train.budget_unit', 'steps')}, in"
            f" batches of at most {fixed(base.get('train.batch_tokens', 0), 0)} positions a side."
        )
    if study.overrides:
        sentences.append(f"Set for the whole study: {', '.join(study.overrides)}.")
    total, done = len(study.trained), len(study.finished)
    if done == total:
        sentences.append(f"All {counted(total, 'run')} finished." if total != 1 else "The one run finished.")
    else:
        sentences.append(f"Of {counted(total, 'run')} {fixed(done, 0)} finished: {_unfinished(study)}.")
    return Statement(title="What was run", text=" ".join(sentences))


def _seeds(study: Study) -> str:
    """The seeds of the rows, to stand after their number."""
    rows = study.seeds_of_rows
    if len(rows) < 2:
        return _seeded(study.seeds)
    return " (" + listed([f"{number}{_seeded(seeds)}" for seeds, number in rows.items()]) + ")"


def _seeded(seeds: Sequence[int]) -> str:
    if len(seeds) > 4 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f" with seeds {seeds[0]} to {seeds[-1]}"
    return f" with {'seed' if len(seeds) == 1 else 'seeds'} {listed([str(seed) for seed in seeds])}"


def _unfinished(study: Study) -> str:
    counts = Counter(run.state for run in study.trained)
    return listed([f"{counts[state]} {state}" for state in STATES if counts[state] and state != "done"])


def _what_came_out(study: Study, found: Sequence[Effect]) -> Statement:
    title = "What came out"
    if not study.finished:
        return Statement(title=title, text="No run has finished yet, so there is nothing to compare.")
    if study.base is None:
        return Statement(title=title, text="The study has no base row, so no difference can be formed.")
    base = study.by_variant[BASE]
    bleu, perplexity = measure(base, bleu_on_test), measure(base, valid_perplexity)
    if bleu.mean is None:
        return Statement(title=title, text="No run of base has finished, so no difference can be formed.")
    seeds = bleu.partial or counted(bleu.n, "seed")
    if bleu.n > 1:
        seeds += f", from {fixed(min(bleu.values), 1)} to {fixed(max(bleu.values), 1)}"
    sentences = [f"Base reaches {fixed(bleu.mean, 1)} BLEU on the test side ({seeds})"]
    if perplexity.mean is not None:
        sentences[0] += f" and a validation perplexity of {fixed(perplexity.mean, 2)} a piece"
    sentences[0] += "."
    ordered = sorted(found, key=lambda effect: effect.mean)
    below = [_told(effect) for effect in ordered if signed(effect.mean, 1).startswith("\u2212")][:_NAMED]
    above = [_told(effect) for effect in reversed(ordered) if signed(effect.mean, 1).startswith("+")][:_NAMED]
    if below:
        sentences.append(f"Farthest below base: {listed(below)}.")
    if above:
        sentences.append(f"Farthest above: {listed(above)}.")
    elif found:
        sentences.append("No row is above base.")
    return Statement(title=title, text=" ".join(sentences))


def _claims(verdicts: Sequence[Verdict]) -> list[Statement]:
    """What held of the paper's claims, what did not, and what stays open."""
    by_state: dict[State, list[Verdict]] = {}
    for verdict in verdicts:
        by_state.setdefault(verdict.state, []).append(verdict)
    held, failed = by_state.get("reproduced", []), by_state.get("contradicted", [])
    open_, untested = by_state.get("inconclusive", []), by_state.get("not tested", [])
    tested = len(verdicts) - len(untested)
    if not tested:
        return [
            Statement(title="What held", text=f"None of the {len(verdicts)} claims could be tested: {_rows_lack()}.")
        ]
    return [
        Statement(
            title="What held",
            text=f"{len(held)} of the {counted(tested, 'claim')} that could be tested "
            f"{'is' if len(held) == 1 else 'are'} reproduced here{':' if held else '.'}",
            points=tuple(_held(verdict) for verdict in held),
        ),
        Statement(
            title="What did not",
            text="" if failed else "No claim is contradicted here. That is no proof of any of them.",
            points=tuple(_failed(verdict) for verdict in failed),
        ),
        _what_stays_open(open_, untested),
    ]


def _rows_lack() -> str:
    return "their rows are not in this study, or have not finished"


def _held(verdict: Verdict) -> str:
    shown = [_size(finding) for finding in verdict.findings if finding.shown]
    return _with(verdict.claim.sentence, listed(shown))


def _with(sentence: str, words: str) -> str:
    """A sentence with `words` in brackets at its end."""
    return f"{sentence.removesuffix('.')} ({words})." if words else sentence


def _size(finding: Finding) -> str:
    """What was compared and the effect alone: what is shown of it begins with its mean, the table has the rest."""
    return f"{finding.part.says}: {finding.shown.partition(',')[0]}"


def _failed(verdict: Verdict) -> str:
    return f"{verdict.claim.sentence} Here not: {_reason(verdict.leading)}."


def _reason(finding: Finding) -> str:
    shown = f" ({finding.shown})" if finding.shown else ""
    return f"{finding.part.says}{shown}, {finding.reason}"


def _what_stays_open(verdicts: Sequence[Verdict], untested: Sequence[Verdict]) -> Statement:
    waiting: dict[str, list[str]] = {}
    for verdict in verdicts:
        waiting.setdefault(_needed(verdict), []).append(verdict.claim.sentence)
    points = [
        _with(sentences[0], reason)
        if len(sentences) == 1
        else f"{reason[:1].upper()}{reason[1:]}: {' '.join(sentences)}"
        for reason, sentences in waiting.items()
    ]
    text = ""
    if untested:
        text = f"{counted(len(untested), 'claim')} could not be tested: {_rows_lack()}."
    elif not verdicts:
        text = "Nothing: every claim that was tested is decided here."
    return Statement(title="What stays open", text=text, points=tuple(points))


def _needed(verdict: Verdict) -> str:
    """What an undecided claim waits for."""
    waiting = [finding for finding in verdict.findings if finding.state == "inconclusive"]
    if not waiting:
        return "its parts disagree"
    # A part that no number of seeds decides keeps the whole claim open.
    stuck = [finding.reason for finding in waiting if finding.needed is None]
    return stuck[0] if stuck else f"about {max(finding.needed or 0 for finding in waiting)} seeds would decide"


def _beside_the_paper(rows: Sequence[Effect]) -> Statement | None:
    """Directions beside Table 3, for the rows that move there by a printed decimal."""
    found = [(effect, direction(effect.bleu, effect.published)) for effect in rows]
    words = [(effect, word) for effect, word in found if word]
    if not words:
        return None
    every = " with every seed" if any(effect.bleu.n > 1 for effect, _ in words) else ""
    kinds = {
        "same": f"Moved in the paper's direction{every}",
        "opposite": f"Moved the other way{every}",
        "mixed": "Seeds disagree",
        "none": "Did not move by a printed decimal",
    }
    points = []
    for kind, text in kinds.items():
        # Rows that did as published are many, and the figure shows their sizes; the others are worth their numbers.
        tell = _named if kind == "same" else _beside
        names = [tell(effect) for effect, word in words if word == kind]
        if names:
            points.append(f"{text}: {listed(names)}.")
    return Statement(
        title="Beside the paper's Table 3",
        text="Difference to base in BLEU, here and in the paper: a comparison of directions, no test of chance.",
        points=tuple(points),
    )


def _mechanisms(probes: Sequence[Page]) -> list[Statement]:
    """How many claims about mechanisms came to which verdict; nothing where none was probed."""
    states = Counter(judged.state for page in probes for judged in page.verdicts)
    if not states:
        return []
    told = [f"{n} {'is' if n == 1 else 'are'} {state}" for state in get_args(State) if (n := states[state])]
    text = f"Of the {counted(states.total(), 'claim')} about mechanisms that were probed here {listed(told)}."
    return [Statement(title="Why it works", text=text, more=MECHANISMS)]


def _named(effect: Effect) -> str:
    return f"{effect.variant.id} ({effect.bleu.partial})" if effect.bleu.partial else effect.variant.id


def _beside(effect: Effect) -> str:
    partial = f", {effect.bleu.partial}" if effect.bleu.partial else ""
    return f"{effect.variant.id} ({signed(effect.mean, 1)} here{partial}, {signed(effect.published or 0.0, 1)} there)"
