"""Learning curves: for every group of rows a small picture by steps, by training FLOPs and by training seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from reports.figures.drawing import DASHES, INK, MUTED, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.parts import log_axis, plain_ticks
from reports.formats import counted, fixed
from reports.records.study import BASE, BudgetAxis, Study
from reports.statistics.curves import Curve, curve
from reports.statistics.intervals import LEAST_SHOWN
from reports.statistics.measures import bleu_on_test, difference
from reports.tables.table3 import group_title

METRICS = ("valid/perplexity", "valid/bleu")

AXES: Mapping[BudgetAxis, str] = {
    "steps": "training steps",
    "flops": "training FLOPs (our count)",
    "seconds": "training time, s (evaluation apart)",
}
"""What a curve can be read by, with the axis's title."""

_MOST_LINES, _MOST_GROUPS = len(SERIES), 16
"""Rows of a group that are named, and groups that are drawn."""

_WIDTH, _PANEL_HEIGHT, _LEGEND_LINE = 400, 170, 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """The learning curves of one group of rows beside base's."""

    group: str
    number: int
    """Of the group, from 0."""
    title: str
    drawings: Mapping[BudgetAxis, Drawing]
    """For the page."""
    file: Callable[[], Drawing] = field(compare=False, repr=False)
    """Draws all axes beside one another, for print; a page does without."""
    note: str
    """Rows that are drawn without a name; empty when there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    variant: str
    curves: Mapping[BudgetAxis, tuple[Curve | None, ...]]
    """One a metric."""

    @property
    def known(self) -> list[Curve]:
        return [found for curves in self.curves.values() for found in curves if found is not None]

    @property
    def name(self) -> str:
        finished = all(found.finished for found in self.known)
        return printable(self.variant if finished else f"{self.variant} (unfinished)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """What one picture shows."""

    title: str
    base: _Line | None
    named: Sequence[_Line]
    others: Sequence[_Line]
    bottom: float
    top: float
    """Where the perplexity axis begins and ends."""

    def legend_height(self, columns: int) -> int:
        entries = len(self.named) + (self.base is not None)
        return -(-entries // columns) * _LEGEND_LINE + 10


def learning_panels(study: Study) -> list[Panel]:
    """A panel a group; none for groups without a curve."""
    lines = {variant.id: _line(study, variant.id) for variant in study.variants}
    bottom, top = _perplexities(list(lines.values()))
    base = lines[BASE] if BASE in lines and lines[BASE].known else None
    labels = list(dict.fromkeys(variant.group for variant in study.variants if variant.id != BASE)) or [BASE]
    panels = []
    with style():
        for number, label in enumerate(labels[:_MOST_GROUPS]):
            members = [lines[v.id] for v in study.variants if v.group == label and v.id != BASE]
            shown = [line for line in members if line.known]
            if not shown and (base is None or label != BASE):
                continue
            named = _farthest(study, shown)
            others = [line for line in shown if line not in named]
            group = _Group(title=group_title(label), base=base, named=named, others=others, bottom=bottom, top=top)
            panels.append(_panel(group, label, number))
    return panels


def bands_words(study: Study) -> str:
    """What the bands of the curves are, or why there are none: a sentence for the caption."""
    if len(study.seeds) < LEAST_SHOWN:
        seeds = counted(len(study.seeds), "seed")
        return f"No bands: {seeds} a row {'is' if len(study.seeds) == 1 else 'are'} too few for an interval."
    return (
        "Its band is the 95 % interval of that mean by Student's t over seeds, point by point (rows with fewer than "
        f"{LEAST_SHOWN} finished seeds have none; none goes beyond what a score can be)."
    )


def _farthest(study: Study, lines: Sequence[_Line]) -> list[_Line]:
    """The lines that get a colour and a name: all, or of many those that ended farthest from base."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    base = study.by_variant.get(BASE, [])
    reach = {
        line.variant: abs(difference(study.by_variant[line.variant], base, bleu_on_test).mean or 0.0) for line in lines
    }
    chosen = sorted(reach, key=lambda variant: -reach[variant])[:_MOST_LINES]
    return [line for line in lines if line.variant in chosen]


def _line(study: Study, variant: str) -> _Line:
    runs = study.by_variant[variant]
    curves = {axis: tuple(curve(runs, metric, axis) for metric in METRICS) for axis in AXES}
    return _Line(variant=variant, curves=curves)


_LEVELS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)
"""Ticks of the perplexity axis."""


def _perplexities(lines: Sequence[_Line]) -> tuple[float, float]:
    """The ends of the perplexity axis, the same in all panels.

    From the tick below the least value to twice the median of first values, or a little more.
    """
    curves = [found for line in lines if (found := line.curves["steps"][0]) is not None]
    if not curves:
        return 1.0, 4.0
    firsts = sorted(float(found.mean[0]) for found in curves)
    least = min(float(found.mean.min()) for found in curves)
    bottom = float(max(level for level in _LEVELS if level == 1 or level <= least))
    return bottom, max(2.0 * firsts[len(firsts) // 2], 4.0 * bottom)


def _panel(group: _Group, label: str, number: int) -> Panel:
    names = ", ".join(line.name for line in group.named) or "base alone"
    title = f"Validation perplexity and BLEU by training: {group.title}"
    lines = [*group.named, *([group.base] if group.base is not None else [])]
    axes = [axis for axis in AXES if any(any(line.curves[axis]) for line in lines)]
    drawings = {
        axis: _draw_one(group, axis, f"curves-{axis}-{number}", f"{title}, by {AXES[axis]}", names) for axis in axes
    }
    note = f"{counted(len(group.others), 'more row')} in thin grey." if group.others else ""
    return Panel(
        group=label,
        number=number,
        title=group.title,
        drawings=drawings,
        file=lambda: _draw_all(group, axes, f"curves-{number}", title, names),
        note=note,
    )


def _draw_one(group: _Group, axis: BudgetAxis, name: str, title: str, description: str) -> Drawing:
    legend = group.legend_height(2)
    height = legend + 2 * _PANEL_HEIGHT + 22 + 46
    figure, axes = sheet(_WIDTH, height, Margins(left=50, right=14, top=legend, bottom=46), rows=2, gap=22)
    _draw_column(axes, group, axis)
    _legend(axes[0], group, -0.13, 2)
    return drawing(figure, name, title, description)


def _draw_all(group: _Group, axes: Sequence[BudgetAxis], name: str, title: str, description: str) -> Drawing:
    with style():
        return _draw_beside(group, axes, name, title, description)


def _draw_beside(group: _Group, axes: Sequence[BudgetAxis], name: str, title: str, description: str) -> Drawing:
    legend, columns = group.legend_height(4), len(axes)
    height = legend + 2 * _PANEL_HEIGHT + 24 + 50
    margins = Margins(left=54, right=16, top=legend, bottom=50)
    figure, panels = sheet(70 + 300 * columns, height, margins, rows=2, columns=columns, gap=26)
    for number, axis in enumerate(axes):
        _draw_column([panels[number], panels[columns + number]], group, axis, first=number == 0)
    if axes:
        _legend(panels[0], group, 0.0, 4)
    return drawing(figure, name, title, description)


def _legend(axes: Axes, group: _Group, left: float, columns: int) -> None:
    handles = [Line2D([], [], label=line.name, color=c, linestyle=d, linewidth=1.7) for line, c, d in _looks(group)]
    if group.base is not None:
        handles.insert(0, Line2D([], [], label=group.base.name, **_BASE_LOOK))
    axes.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(left, 1.02),
        ncols=columns,
        borderaxespad=0.0,
        handlelength=2.2,
        columnspacing=1.2,
    )


_BASE_LOOK: Mapping[str, Any] = {"color": INK, "linewidth": 4.0, "alpha": 0.35}
"""Broad and beneath: rows that cover base stay visible."""


def _looks(group: _Group) -> list[tuple[_Line, str, Any]]:
    """Colour and dashes of every named line."""
    return [
        (line, SERIES[number % len(SERIES)], DASHES[number % len(DASHES)]) for number, line in enumerate(group.named)
    ]


def _draw_column(axes: Sequence[Axes], group: _Group, axis: BudgetAxis, *, first: bool = True) -> None:
    for number, panel in enumerate(axes):
        others = [found for line in group.others if (found := line.curves[axis][number]) is not None]
        if others:  # as one line with gaps
            x = [value for found in others for value in (*found.x, math.nan)]
            y = [value for found in others for value in (*found.mean, math.nan)]
            panel.plot(x, y, color=MUTED, linewidth=0.6, alpha=0.5)
        if group.base is not None and (found := group.base.curves[axis][number]) is not None:
            panel.plot(found.x, found.mean, marker="." if len(found.x) == 1 else None, **_BASE_LOOK)
        _draw_named(panel, group, axis, number)
    _finish(axes, axis, (group.bottom, group.top), first=first)


def _draw_named(panel: Axes, group: _Group, axis: BudgetAxis, number: int) -> None:
    """The lines of one metric with their bands."""
    known = [(*look, found) for look in _looks(group) if (found := look[0].curves[axis][number]) is not None]
    if not known:
        return
    names = [line.name for line, _, _, found in known for _ in found.x]
    panel.set(xlabel=" ", ylabel=" ")  # seaborn would look at every tick to see whether it may name the axes
    sns.lineplot(
        x=np.concatenate([found.x for *_, found in known]),
        y=np.concatenate([found.mean for *_, found in known]),
        hue=names,
        style=names,
        palette=[colour for _, colour, _, _ in known],
        dashes=["" if dashes == "-" else dashes[1] for _, _, dashes, _ in known],
        estimator=None,
        errorbar=None,
        linewidth=1.7,
        legend=False,
        ax=panel,
    )
    panel.set(xlabel="", ylabel="")
    floor, ceiling = (1.0, math.inf) if number == 0 else (0.0, 100.0)
    for _, colour, _, found in known:
        if found.low is not None and found.high is not None:
            low, high = found.low.clip(floor, ceiling), found.high.clip(floor, ceiling)
            panel.fill_between(found.x, low, high, color=colour, alpha=0.16, linewidth=0)
        if len(found.x) == 1:  # a line of one point has no length
            panel.plot(found.x, found.mean, ".", color=colour)


def _finish(axes: Sequence[Axes], axis: BudgetAxis, ends: tuple[float, float], *, first: bool) -> None:
    perplexity, bleu = axes
    perplexity.set_yscale("log")
    perplexity.set_ylim(*ends)
    perplexity.yaxis.set_major_locator(FixedLocator(_LEVELS))
    perplexity.yaxis.set_minor_locator(NullLocator())
    perplexity.yaxis.set_major_formatter(FuncFormatter(lambda value, _: fixed(value, 0)))
    perplexity.yaxis.set_minor_formatter(NullFormatter())
    perplexity.tick_params(labelbottom=False, labelleft=first)
    bleu.set_ylim(bottom=0.0)
    plain_ticks(bleu, "y", 5)
    bleu.tick_params(labelleft=first)
    if first:
        perplexity.set_ylabel("perplexity, valid")
        bleu.set_ylabel("BLEU, valid")
    if axis == "flops":
        log_axis(bleu)
        perplexity.tick_params(axis="x", which="minor", length=0)
    else:
        bleu.set_xlim(left=0.0)
        plain_ticks(bleu, "x", 5, whole=axis == "steps")
    bleu.set_xlabel(AXES[axis])
