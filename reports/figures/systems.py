"""Table 2 as a figure: BLEU against training cost of every family here, and of the published systems, clearly apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import seaborn as sns
from matplotlib.axes import Axes

from reports.figures.drawing import FONT_SIZE, GRID, MUTED, SURFACE, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.parts import OURS, PUBLISHED, Picture, log_axis, pixels, plain_ticks, write_labels
from reports.formats import fixed, scientific
from reports.records.paper import Paper
from reports.records.study import BASE, Study
from reports.statistics.measures import bleu_on_test, measure, train_flops
from reports.tables.table2 import families, method_flops, sustained_rates


@dataclass(frozen=True, kw_only=True, slots=True)
class _System:
    """One point: by the paper's method, and by our count where it was counted."""

    name: str
    bleu: float
    counted: float | None
    method: float | None
    published: bool

    @property
    def cost(self) -> float:
        return self.counted or self.method or 1.0


def systems_picture(study: Study, paper: Paper) -> Picture | None:
    """BLEU against training cost of the families in `study` beside the published systems; None without a run."""
    ours = _ours(study)
    if not ours:
        return None
    published = [
        _System(name=system.model, bleu=system.bleu_german, counted=None, method=system.flops_german, published=True)
        for system in paper.systems
        if system.bleu_german is not None and system.flops_german is not None
    ]
    title = "BLEU against training cost: the families of this study and the published systems"
    description = "; ".join(f"{s.name} {fixed(s.bleu, 1)} at {scientific(s.cost)}" for s in [*ours, *published])
    caption = (
        "BLEU against training cost on one logarithmic axis, shaded where the numbers are published. Circles: the "
        "families trained here, by our count of FLOPs; hollow squares: the same by the paper's method, seconds × "
        "devices × sustained FLOP/s, joined to their circle. Diamonds: English-German systems of the paper's Table 2, "
        "cost by the paper's method. They were trained on other data at another scale, and their BLEU is of another "
        "test set and protocol: the two halves show how far apart the costs are, not which is better."
    )
    with style():
        wide = _draw(ours, published, "systems-wide", (title, description), 960, 440)
        narrow = _draw(ours, published, "systems-narrow", (title, description), 400, 420)
    return Picture(key="systems", title="BLEU against training cost", caption=caption, wide=wide, narrow=narrow)


def _ours(study: Study) -> list[_System]:
    rates = sustained_rates([study])
    found = []
    for variant in families(study):
        runs = study.by_variant[variant.id]
        bleu, cost = measure(runs, bleu_on_test).mean, measure(runs, train_flops).mean
        method = measure(runs, lambda run: method_flops(run, rates)).mean
        if bleu is not None and cost:
            name = variant.id.removeprefix("baseline.")
            found.append(_System(name=name, bleu=bleu, counted=cost, method=method, published=False))
    return found


def _draw(
    ours: Sequence[_System], published: Sequence[_System], name: str, words: tuple[str, str], width: int, height: int
) -> Drawing:
    broad = width > 600
    figure, (axes,) = sheet(width, height, Margins(left=52, right=14, top=34, bottom=50))
    costs = [cost for system in ours for cost in (system.counted, system.method) if cost]
    theirs = [system.cost for system in published]
    low, high = min(costs + theirs), max(costs + theirs)
    pad = (high / low) ** 0.06
    levels = [system.bleu for system in (*ours, *published)]
    room = max(0.09 * (max(levels) - min(levels)), 1.0)
    axes.set_ylim(max(min(levels) - room, 0.0), max(levels) + 1.8 * room)
    log_axis(axes, (low / pad, high * pad))
    plain_ticks(axes, "y", 7)
    _shade(axes, max(costs), min(theirs), high * pad)
    _draw_ours(axes, ours)
    _scatter(axes, theirs, [system.bleu for system in published], "D", PUBLISHED)
    _label(axes, [*sorted(ours, key=lambda system: system.name != BASE), *published], broad=broad)
    _legend(axes)
    axes.set_xlabel("training cost, FLOPs")
    axes.set_ylabel("BLEU (test sets differ)" if broad else "BLEU (tests differ)")
    return drawing(figure, name, *words)


def _shade(axes: Axes, ours: float, theirs: float, right: float) -> None:
    """The published half on its own ground, with a heading over each half."""
    edge = (ours * theirs) ** 0.5 if ours < theirs else theirs / 1.3
    axes.axvspan(edge, right, color=GRID, alpha=0.45, linewidth=0, zorder=0)
    left = axes.get_xlim()[0]
    for start, end, text, colour in ((left, edge, "this study", OURS), (edge, right, "published", PUBLISHED)):
        axes.annotate(
            text,
            ((start * end) ** 0.5, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -4),
            textcoords="offset points",
            ha="center",
            va="top",
            color=colour,
            fontweight="bold",
        )


def _legend(axes: Axes) -> None:
    axes.plot([], [], "o", color=OURS, markersize=7, label="our count")
    axes.plot([], [], "s", markerfacecolor=SURFACE, markeredgecolor=OURS, markersize=6, label="the paper's method")
    axes.plot([], [], "D", color=PUBLISHED, markersize=6, label="as printed")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.01),
        ncols=3,
        borderaxespad=0.0,
        handletextpad=0.2,
        columnspacing=1.0,
    )


def _draw_ours(axes: Axes, ours: Sequence[_System]) -> None:
    twice = [(s.counted, s.method, s.bleu) for s in ours if s.counted and s.method]
    for ours_count, method, bleu in twice:
        axes.plot([ours_count, method], [bleu] * 2, color=MUTED, linewidth=0.8, zorder=2)
    _scatter(axes, [method for _, method, _ in twice], [bleu for _, _, bleu in twice], "s", OURS, fill=SURFACE)
    _scatter(axes, [system.cost for system in ours], [system.bleu for system in ours], "o", OURS)


def _scatter(
    axes: Axes, x: Sequence[float], y: Sequence[float], marker: str, colour: str, *, fill: str | None = None
) -> None:
    look = {"color": fill or colour, "edgecolor": colour, "linewidth": 1.4, "s": 42, "zorder": 3}
    sns.scatterplot(x=x, y=y, ax=axes, marker=marker, **look)


def _label(axes: Axes, systems: Sequence[_System], *, broad: bool) -> None:
    squares = [pixels(axes, s.method, s.bleu) for s in systems if s.method and s.counted]
    write_labels(
        axes,
        [pixels(axes, system.cost, system.bleu) for system in systems],
        [printable(system.name) for system in systems],
        size=FONT_SIZE - (1 if broad else 3),
        obstacles=[(x - 6, y - 6, x + 6, y + 6) for x, y in squares],
    )
