"""BLEU by sentence length: the families of models beside one another, or base beside the rows farthest from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from reports.drawing import DASHES, INK, MARKERS, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figure_parts import Picture, ends, interval_words, label_ends, plain_ticks
from reports.formats import DASH, fixed, listed
from reports.measures import Measure, bleu_on_test, difference, measure
from reports.records import BASE, Run, Study

_MOST = 8
"""Lines that one picture can tell apart."""

_LEAST_SENTENCES = 10
"""A length with fewer test sentences is left out: its BLEU would be that of these few."""

Group = tuple[int, int | None]
"""Words of the reference, from and to, both inside; None: no upper end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    variant: str
    values: Mapping[Group, Measure]


def lengths_picture(study: Study) -> Picture | None:
    """BLEU of the test sentences of each length, a line a row; None unless two lengths were told apart."""
    groups = _groups(study)
    names, families = _rows(study)
    lines = [_Line(variant=name, values=_values(study.by_variant[name], groups)) for name in names]
    lines = [line for line in lines if len(line.values) > 1]
    if len(groups) < 2 or not lines:
        return None
    what = "families of models" if families else "rows"
    title = f"BLEU on the test side by the length of the reference, {what}"
    caption = (
        "BLEU on the test side (sacreBLEU 13a) of the sentences of each length, in words of the reference; the number "
        "of sentences stands below. Each group is scored by itself, so levels of groups differ by their texts too: "
        f"compare lines, not groups; lengths with fewer than {_LEAST_SENTENCES} sentences are left out. "
        f"{'' if families else 'Base and the rows farthest from it. '}"
        f"{interval_words([value for line in lines for value in line.values.values()])}"
    )
    description = ". ".join(_told(line) for line in lines)
    with style():
        wide = _draw(lines, groups, "lengths-wide", (title, description), 960)
        narrow = _draw(lines, groups, "lengths-narrow", (title, description), 400)
    return Picture(key="lengths", title="BLEU by sentence length", caption=caption, wide=wide, narrow=narrow)


def _groups(study: Study) -> dict[Group, int]:
    """The lengths told apart and their sentences, the shortest first."""
    found: dict[Group, int] = {}
    for run in study.finished:
        for entry in _entries(run):
            if entry["sentences"] >= _LEAST_SENTENCES:
                found.setdefault((entry["from"], entry["to"]), entry["sentences"])
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def _entries(run: Run) -> list[Mapping[str, Any]]:
    entries = run.value("test", "bleu_by_length")
    keys = {"from", "to", "sentences", "bleu"}
    return [e for e in entries if isinstance(e, Mapping) and keys <= e.keys()] if isinstance(entries, list) else []


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


def _values(runs: Sequence[Run], groups: Mapping[Group, int]) -> dict[Group, Measure]:
    values = {}
    for group in groups:
        found = measure(runs, lambda run, group=group: _bleu(run, group))  # type: ignore[misc]
        if found.values:
            values[group] = found
    return values


def _bleu(run: Run, group: Group) -> float | None:
    return next((float(entry["bleu"]) for entry in _entries(run) if (entry["from"], entry["to"]) == group), None)


def _words(group: Group) -> str:
    low, high = group
    if high is None:
        return f"over {low - 1}"
    return f"up to {high}" if low <= 1 else f"{low}{DASH}{high}"


def _told(line: _Line) -> str:
    return (
        f"{line.variant}: {listed([f'{fixed(v.mean or 0.0, 1)} at {_words(g)} words' for g, v in line.values.items()])}"
    )


def _draw(
    lines: Sequence[_Line], groups: Mapping[Group, int], name: str, words: tuple[str, str], width: int
) -> Drawing:
    broad = width > 600
    longest = max(len(line.variant) for line in lines)
    legend = 0 if broad else 17 * ((len(lines) + 1) // 2) + 8
    margins = Margins(left=52, right=int(7 * longest) + 24 if broad else 14, top=14 + legend, bottom=66)
    figure, (axes,) = sheet(width, (400 if broad else 380) + legend, margins)
    order = list(groups)
    last: list[tuple[float, float, str, str]] = []
    for number, line in enumerate(lines):
        base = line.variant == BASE
        colour = INK if base else SERIES[(number - 1) % len(SERIES)]
        shift = (number - (len(lines) - 1) / 2) * 0.035
        x = [order.index(group) + shift for group in line.values]
        y = [value.mean or 0.0 for value in line.values.values()]
        axes.plot(
            x,
            y,
            color=colour,
            linestyle=DASHES[number % len(DASHES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            linewidth=2.4 if base else 1.7,
            label=printable(line.variant),
        )
        for at, value in zip(x, line.values.values(), strict=True):
            if found := ends(value):
                axes.plot([at, at], [max(found[0], 0.0), min(found[1], 100.0)], color=colour, linewidth=1.0, alpha=0.5)
        last.append((x[-1], y[-1], printable(line.variant), colour))
    _finish(axes, groups, broad=broad)
    if broad:
        label_ends(axes, last)
    else:
        axes.legend(loc="lower left", bbox_to_anchor=(-0.12, 1.01), ncols=2, borderaxespad=0.0, columnspacing=1.0)
    return drawing(figure, name, *words)


def _finish(axes: Axes, groups: Mapping[Group, int], *, broad: bool) -> None:
    word = "sentences" if broad else "sent."
    axes.set_xticks(
        range(len(groups)), [f"{_words(group)}\n{fixed(count, 0)} {word}" for group, count in groups.items()]
    )
    axes.tick_params(axis="x", labelsize=11 if broad else 9)
    axes.set_xlim(-0.4, len(groups) - 0.6)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), min(high, 100.0 if high > 100 else high))
    plain_ticks(axes, "y", 7)
    axes.set_xlabel("length of the reference, words")
    axes.set_ylabel("BLEU, test")
