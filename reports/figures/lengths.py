"""BLEU by sentence length: the families of models beside one another, or base beside the rows farthest from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import seaborn as sns
from matplotlib.axes import Axes

from reports.figures.drawing import DASHES, INK, MARKERS, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.parts import Picture, ends, interval_words, label_ends, plain_ticks
from reports.formats import counted, fixed, listed
from reports.records.study import BASE, Study
from reports.statistics.lengths import By, Span, bleu_of, length_groups, measured_by
from reports.statistics.measures import Measure, bleu_on_test, difference, measure

_MOST = 8
"""Lines that one picture can tell apart."""

_LEAST_SENTENCES = 10
"""A length with fewer test sentences is left out: its BLEU would be that of these few."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    variant: str
    values: Mapping[Span, Measure]


def lengths_picture(study: Study) -> Picture | None:
    """BLEU of the test sentences of each length, a line a row; None unless two lengths were told apart."""
    by = measured_by(study.finished)
    spans = _spans(study, by)
    names, families = _rows(study)
    lines = [line for name in names if len((line := _line(study, name, spans, by)).values) > 1]
    if by is None or not lines:
        return None
    what = "families of models" if families else "rows"
    title = f"BLEU on the test side by the length of the {by}, {what}"
    caption = (
        f"BLEU on the test side (sacreBLEU 13a) of the sentences of each length, in words of the {by}; the number "
        "of sentences stands below. Each group is scored by itself, so levels of groups differ by their texts too: "
        f"compare lines, not groups; lengths with fewer than {_LEAST_SENTENCES} sentences are left out. "
        f"{'' if families else 'Base and the rows farthest from it. '}"
        f"{_left_out(study, by)}"
        f"{interval_words([value for line in lines for value in line.values.values()])}"
    )
    description = ". ".join(_told(line) for line in lines)
    with style():
        wide = _draw(lines, spans, by, "lengths-wide", (title, description), 960)
        narrow = _draw(lines, spans, by, "lengths-narrow", (title, description), 400)
    return Picture(key="lengths", title="BLEU by sentence length", caption=caption, wide=wide, narrow=narrow)


def _spans(study: Study, by: By | None) -> dict[Span, int]:
    """The lengths told apart and their sentences, the shortest first."""
    found = {
        group.span: group.sentences
        for run in study.finished
        for group in length_groups(run, by)
        if group.sentences >= _LEAST_SENTENCES
    }
    return dict(sorted(found.items(), key=lambda item: item[0].low))


def _rows(study: Study) -> tuple[list[str], bool]:
    """The rows to draw, base first, and whether they are families of models."""
    families = [v.id for v in study.variants if "model.family" in v.changes]
    if families:
        return [BASE, *families][:_MOST] if study.base else families[:_MOST], True
    base = study.by_variant.get(BASE, [])
    means = {v.id: difference(study.by_variant[v.id], base, bleu_on_test).mean for v in study.variants if v.id != BASE}
    known = {variant: mean for variant, mean in means.items() if mean is not None}
    farthest = sorted(known, key=lambda variant: -abs(known[variant]))[:4]
    return [v.id for v in study.variants if v.id == BASE or v.id in farthest], False


def _line(study: Study, variant: str, spans: Iterable[Span], by: By | None) -> _Line:
    values = {span: measure(study.by_variant[variant], bleu_of(span, by)) for span in spans}
    return _Line(variant=variant, values={span: found for span, found in values.items() if found.values})


def _left_out(study: Study, by: By) -> str:
    """How many runs cannot stand here, in words; empty when none."""
    others = sum(measured_by([run]) not in (by, None) for run in study.finished)
    return f"{counted(others, 'run')} of an earlier version, grouped by reference, left out. " if others else ""


def _told(line: _Line) -> str:
    points = [f"{fixed(value.mean or 0.0, 1)} at {span.words} words" for span, value in line.values.items()]
    return f"{line.variant}: {listed(points)}"


def _draw(
    lines: Sequence[_Line], spans: Mapping[Span, int], by: By, name: str, words: tuple[str, str], width: int
) -> Drawing:
    broad = width > 600
    longest = max(len(line.variant) for line in lines)
    legend = 0 if broad else 17 * ((len(lines) + 1) // 2) + 8
    margins = Margins(left=52, right=int(7 * longest) + 24 if broad else 14, top=14 + legend, bottom=66)
    figure, (axes,) = sheet(width, (400 if broad else 380) + legend, margins)
    last = [_draw_line(axes, line, list(spans), number, len(lines)) for number, line in enumerate(lines)]
    _finish(axes, spans, by, broad=broad)
    if broad:
        label_ends(axes, last)
    else:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.01), ncols=2, borderaxespad=0.0, columnspacing=1.0)
    return drawing(figure, name, *words)


def _draw_line(axes: Axes, line: _Line, spans: Sequence[Span], number: int, of: int) -> tuple[float, float, str, str]:
    """Draw one row, a little beside the others; return where it ends, its name and its colour."""
    base, name = line.variant == BASE, printable(line.variant)
    colour = INK if base else SERIES[(number - 1) % len(SERIES)]
    x = [spans.index(span) + (number - (of - 1) / 2) * 0.035 for span in line.values]
    y = [value.mean or 0.0 for value in line.values.values()]
    sns.lineplot(
        x=x,
        y=y,
        ax=axes,
        errorbar=None,
        color=colour,
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=6,
        markeredgewidth=0,
        linewidth=2.4 if base else 1.7,
        label=name,
        legend=False,
    )
    for at, value in zip(x, line.values.values(), strict=True):
        if found := ends(value):
            axes.plot([at, at], [max(found[0], 0.0), min(found[1], 100.0)], color=colour, linewidth=1.0, alpha=0.5)
    return x[-1], y[-1], name, colour


def _finish(axes: Axes, spans: Mapping[Span, int], by: By, *, broad: bool) -> None:
    word = "sentences" if broad else "sent."
    axes.set_xticks(range(len(spans)), [f"{span.words}\n{fixed(count, 0)} {word}" for span, count in spans.items()])
    axes.tick_params(axis="x", labelsize=11 if broad else 10)
    axes.set_xlim(-0.3, len(spans) - (0.85 if broad else 0.7))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0 if high > 100 else high))
    plain_ticks(axes, "y", 7)
    axes.set_xlabel(f"length of the {by}, words")
    axes.set_ylabel("BLEU, test")
