"""Learning curves: for every group of rows a small picture by steps, by training FLOPs and by training seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from reports.curves import LEAST_FOR_BAND, Axis, Curve, curve
from reports.drawing import DASHES, INK, MUTED, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figure_parts import log_axis, plain_ticks
from reports.formats import counted, fixed
from reports.measures import bleu_on_test, difference
from reports.records import BASE, Study
from reports.tables import group_title

METRICS = ("valid/perplexity", "valid/bleu")

AXES: Mapping[Axis, str] = {
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
    drawings: Mapping[Axis, Drawing]
    """For the page."""
    file: Callable[[], Drawing] = field(compare=False, repr=False)
    """Draws all axes beside one another, for print; a page does without."""
    note: str
    """Rows that are drawn without a name; empty when there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    variant: str
    curves: Mapping[Axis, tuple[Curve | None, ...]]
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
    top: float
    """Where the perplexity axis ends."""

    def legend_height(self, columns: int) -> int:
        entries = len(self.named) + (self.base is not None)
        return -(-entries // columns) * _LEGEND_LINE + 10


def learning_panels(study: Study) -> list[Panel]:
    """A panel a group; none for groups without a curve."""
    lines = {variant.id: _line(study, variant.id) for variant in study.variants}
    top = _highest_perplexity(list(lines.values()))
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
            group = _Group(title=group_title(label), base=base, named=named, others=others, top=top)
            panels.append(_panel(group, label, number))
    return panels


def bands_words(study: Study) -> str:
    """What the bands of the curves are, or why there are none: a sentence for the caption."""
    if len(study.seeds) < LEAST_FOR_BAND:
        seeds = counted(len(study.seeds), "seed")
        return f"No bands: {seeds} a row {'is' if len(study.seeds) == 1 else 'are'} too few for an interval."
    return (
        "Its band is the 95 % interval of that mean by Student's t over seeds, point by point (rows with fewer than "
        f"{LEAST_FOR_BAND} finished seeds have none)."
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


def _highest_perplexity(lines: Sequence[_Line]) -> float:
    """Where the perplexity axis ends, the same in all panels: twice the median of first values, or a little more."""
    firsts = sorted(float(found.mean[0]) for line in lines if (found := line.curves["steps"][0]) is not None)
    return max(2.0 * firsts[len(firsts) // 2], 4.0) if firsts else 4.0


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


def _draw_one(group: _Group, axis: Axis, name: str, title: str, description: str) -> Drawing:
    legend = group.legend_height(2)
    height = legend + 2 * _PANEL_HEIGHT + 22 + 46
    figure, axes = sheet(_WIDTH, height, Margins(left=50, right=14, top=legend, bottom=46), rows=2, gap=22)
    _draw_column(axes, group, axis)
    _legend(axes[0], -0.13, 2)
    return drawing(figure, name, title, description)


def _draw_all(group: _Group, axes: Sequence[Axis], name: str, title: str, description: str) -> Drawing:
    with style():
        return _draw_beside(group, axes, name, title, description)


def _draw_beside(group: _Group, axes: Sequence[Axis], name: str, title: str, description: str) -> Drawing:
    legend, columns = group.legend_height(4), len(axes)
    height = legend + 2 * _PANEL_HEIGHT + 24 + 50
    margins = Margins(left=54, right=16, top=legend, bottom=50)
    figure, panels = sheet(70 + 300 * columns, height, margins, rows=2, columns=columns, gap=26)
    for number, axis in enumerate(axes):
        _draw_column([panels[number], panels[columns + number]], group, axis, first=number == 0)
    if axes:
        _legend(panels[0], 0.0, 4)
    return drawing(figure, name, title, description)


def _legend(axes: Axes, left: float, columns: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(left, 1.02),
        ncols=columns,
        borderaxespad=0.0,
        handlelength=2.2,
        columnspacing=1.2,
    )


def _draw_column(axes: Sequence[Axes], group: _Group, axis: Axis, *, first: bool = True) -> None:
    for line in group.others:
        _draw_line(axes, line, axis, {"color": MUTED, "linewidth": 0.6, "alpha": 0.5}, plain=True)
    if group.base is not None:  # broad and beneath: rows that cover it stay visible
        look = {"color": INK, "linewidth": 4.0, "alpha": 0.35}
        _draw_line(axes, group.base, axis, look | {"label": group.base.name}, plain=True)
    for number, line in enumerate(group.named):
        finished = all(found.finished for found in line.known)
        look = {
            "color": SERIES[number % len(SERIES)],
            "linestyle": DASHES[number % len(DASHES)],
            "linewidth": 1.7,
            "alpha": 1.0 if finished else 0.65,
            "label": line.name,
        }
        _draw_line(axes, line, axis, look)
    _finish(axes, axis, group.top, first=first)


def _draw_line(axes: Sequence[Axes], line: _Line, axis: Axis, look: dict[str, Any], *, plain: bool = False) -> None:
    curves = line.curves[axis]
    for number, (panel, found) in enumerate(zip(axes, curves, strict=True)):
        if found is None:
            continue
        named = number == 0 or curves[0] is None
        look = look if named else {key: value for key, value in look.items() if key != "label"}
        panel.plot(found.x, found.mean, marker="." if len(found.x) == 1 else None, **look)
        if found.low is not None and found.high is not None and not plain:
            floor = 1.0 if number == 0 else 0.0
            low, high = found.low.clip(min=floor), found.high.clip(min=floor)
            panel.fill_between(found.x, low, high, color=look["color"], alpha=0.16, linewidth=0)


def _finish(axes: Sequence[Axes], axis: Axis, top: float, *, first: bool) -> None:
    perplexity, bleu = axes
    perplexity.set_yscale("log")
    perplexity.set_ylim(1.0, top)
    perplexity.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000]))
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
    else:
        bleu.set_xlim(left=0.0)
        plain_ticks(bleu, "x", 5, whole=axis == "steps")
    bleu.set_xlabel(AXES[axis])
