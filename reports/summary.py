"""The opening of a report in plain words: what was run, what came out, and what it does not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from reports.formats import counted, duration, fixed, listed, signed, times
from reports.measures import Measure, bleu_on_test, difference, direction, measure, valid_perplexity
from reports.paper import Paper
from reports.records import BASE, STATES, Study, Variant
from reports.tables import base_settings, changes_budget, study_title

_TRANSLATES = 10.0
"""BLEU below which a translation is of little use, and a difference of little meaning."""

_NAMED = 3
"""Rows that the summary names at either end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """One heading of the summary with its sentences, and its points if they make a list."""

    title: str
    text: str = ""
    points: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number that stands at the top of the page."""

    value: str
    name: str
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Effect:
    variant: Variant
    bleu: Measure
    published: float | None

    @property
    def mean(self) -> float:
        return self.bleu.mean or 0.0

    def told(self) -> str:
        """The row and its difference, with what the reader must know of it: "big (+1.4, another budget)"."""
        told = [signed(self.mean, 1)]
        if not self.bleu.complete:
            told.append(self.bleu.partial)
        if changes_budget(self.variant):
            told.append("another budget")
        return f"{self.variant.id} ({', '.join(told)})"


def summary(study: Study, paper: Paper) -> list[Statement]:
    """All statements, in order."""
    effects = _effects(study, paper)
    statements = [_what_was_run(study), _what_came_out(study, effects)]
    if compared := _beside_the_paper(effects):
        statements.append(compared)
    return [*statements, _limits(study, paper)]


def headline(study: Study, paper: Paper) -> list[Figure]:
    """The numbers at the top of the page."""
    figures = [
        Figure(value=f"{len(study.finished)}/{len(study.trained)}", name="runs finished", note=_unfinished(study))
    ]
    base = study.by_variant.get(BASE, [])
    bleu, perplexity = measure(base, bleu_on_test), measure(base, valid_perplexity)
    for name, values, digits in (("BLEU of base, test", bleu, 1), ("perplexity of base, valid", perplexity, 2)):
        if values.mean is not None:
            note = values.partial or counted(values.n, "seed")
            figures.append(Figure(value=fixed(values.mean, digits), name=name, note=note))
    words = _directions(_effects(study, paper))
    if words:
        figures.append(
            Figure(
                value=f"{sum(word == 'same' for _, word in words)}/{len(words)}",
                name="rows moved as in the paper",
                note=f"no test of chance; {counted(len(study.seeds), 'seed')}",
            )
        )
    seconds = sum(run.number("train_seconds") or 0.0 for run in study.finished)
    if seconds:
        figures.append(
            Figure(value=duration(seconds), name="of training in all", note="finished runs, evaluation apart")
        )
    return figures


def _effects(study: Study, paper: Paper) -> list[_Effect]:
    base = study.by_variant.get(BASE, [])
    effects = []
    for variant in study.variants:
        if all(run.same_as is not None for run in study.by_variant[variant.id]):
            continue  # another row under a second name would count twice
        bleu = difference(study.by_variant[variant.id], base, bleu_on_test)
        if variant.id != BASE and bleu.values:
            row = paper.rows.get(variant.id)
            effects.append(_Effect(variant=variant, bleu=bleu, published=row.bleu_difference if row else None))
    return effects


def _what_was_run(study: Study) -> Statement:
    base = base_settings(study)
    sentences = [
        f"{study_title(study)}: {counted(len(study.variants), 'row')}"
        f" with {'seed' if len(study.seeds) == 1 else 'seeds'} {_seeds(study.seeds)}"
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


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > 4 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return listed([str(seed) for seed in seeds])


def _unfinished(study: Study) -> str:
    counts = Counter(run.state for run in study.trained)
    return listed([f"{counts[state]} {state}" for state in STATES if counts[state] and state != "done"])


def _what_came_out(study: Study, effects: Sequence[_Effect]) -> Statement:
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
    ordered = sorted(effects, key=lambda effect: effect.mean)
    below = [effect.told() for effect in ordered if signed(effect.mean, 1).startswith("\u2212")][:_NAMED]
    above = [effect.told() for effect in reversed(ordered) if signed(effect.mean, 1).startswith("+")][:_NAMED]
    if below:
        sentences.append(f"Farthest below base: {listed(below)}.")
    if above:
        sentences.append(f"Farthest above: {listed(above)}.")
    elif effects:
        sentences.append("No row is above base.")
    return Statement(title=title, text=" ".join(sentences))


def _directions(effects: Sequence[_Effect]) -> list[tuple[_Effect, str]]:
    found = [(effect, direction(effect.bleu, effect.published)) for effect in effects]
    return [(effect, word) for effect, word in found if word]


def _beside_the_paper(effects: Sequence[_Effect]) -> Statement | None:
    words = _directions(effects)
    if not words:
        return None
    kinds = {
        "same": f"Moved in the paper's direction{_every_seed(words)}",
        "opposite": f"Moved the other way{_every_seed(words)}",
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
        text="Difference to base in BLEU, here and in the paper. This compares directions; it is no test of whether "
        "they could be chance.",
        points=tuple(points),
    )


def _every_seed(words: Sequence[tuple[_Effect, str]]) -> str:
    return " with every seed" if any(effect.bleu.n > 1 for effect, _ in words) else ""


def _named(effect: _Effect) -> str:
    return f"{effect.variant.id} ({effect.bleu.partial})" if effect.bleu.partial else effect.variant.id


def _beside(effect: _Effect) -> str:
    partial = f", {effect.bleu.partial}" if effect.bleu.partial else ""
    return f"{effect.variant.id} ({signed(effect.mean, 1)} here{partial}, {signed(effect.published or 0.0, 1)} there)"


def _limits(study: Study, paper: Paper) -> Statement:
    points = [*_gap(study, paper), _noise(study)]
    base = measure(study.by_variant.get(BASE, []), bleu_on_test).mean
    if base is not None and base < _TRANSLATES:
        points.insert(0, f"Base itself hardly translates ({fixed(base, 1)} BLEU): differences between rows say little.")
    if any(changes_budget(variant) for variant in study.variants):
        points.append("Rows with another budget than base are not compared at equal cost; the table marks them.")
    if len(study.finished) < len(study.trained):
        points.append(
            "Rows with fewer finished seeds than planned may move when the rest is there; the table marks them."
        )
    if skipped := [run.id for run in study.finished if run.number("skipped_steps")]:
        points.append(f"{counted(len(skipped), 'run')} skipped updates with a non-finite loss; the details say which.")
    if any(run.value("test", "warnings") for run in study.finished):
        points.append(
            "Some translations still hold segmentation marks, so their BLEU is too low; the details say which."
        )
    return Statement(title="What this does not show", points=tuple(point for point in points if point))


def _gap(study: Study, paper: Paper) -> list[str]:
    """How far the study is from the paper in size, training and measurement."""
    base = study.by_variant.get(BASE, [])
    parameters = measure(base, lambda run: run.number("parameters")).mean
    tokens = measure(base, lambda run: run.number("target_tokens")).mean
    gaps = []
    if parameters and paper.base.parameters:
        gaps.append(
            f"{fixed(parameters / 1e6, 2)} million parameters against {fixed(paper.base.parameters, 0)} million"
            f" ({_ratio(paper.base.parameters * 1e6 / parameters)})"
        )
    if tokens:
        gaps.append(
            f"{_large(tokens)} target tokens of training against about {_large(paper.base_target_tokens)}"
            f" ({_ratio(paper.base_target_tokens / tokens)})"
        )
    gap = f"Base is not the paper's base: {' and '.join(gaps)}, on {study.data.get('corpus')} instead of {paper.task}."
    levels = (
        f"Levels of BLEU and perplexity do not compare: in the paper {paper.test}, BLEU {paper.bleu_protocol};"
        " here another text, sacreBLEU 13a and another vocabulary. Only differences to base may be set side by side."
    )
    return [*([gap] if gaps else []), levels]


def _ratio(ratio: float) -> str:
    if ratio >= 1.05:
        return f"{times(ratio)} times fewer"
    return "as many" if ratio > 0.95 else f"{times(1 / ratio)} times more"


def _large(number: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{fixed(number / size, 1)} {word}"
    return fixed(number, 0)


def _noise(study: Study) -> str:
    if not study.finished:
        return ""
    spread = measure(study.by_variant.get(BASE, []), bleu_on_test)
    if len(study.seeds) == 1:
        return "There is one seed a row: a difference may be no more than the luck of that seed."
    text = f"{len(study.seeds)} seeds a row show some of the scatter, not all of it, and no significance test was made."
    if spread.n > 1:
        apart = fixed(spread.spread, 1)
        text += f" The seeds of base alone lie {apart} BLEU apart; a difference of that size means little."
    return text
