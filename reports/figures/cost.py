"""BLEU against training FLOPs: the rows of a study with their Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import seaborn as sns
from matplotlib.axes import Axes

from reports.figures.drawing import FONT_SIZE, SERIES, SURFACE, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.labels import Box
from reports.figures.parts import (
    OURS,
    PUBLISHED,
    Picture,
    Window,
    log_axis,
    pixels,
    plain_ticks,
    window,
    write_labels,
)
from reports.formats import fixed, listed, scientific
from reports.records.study import BASE, Study
from reports.statistics.measures import Measure, bleu_on_test, measure, train_flops

_MOST_LABELS, _FEW_LABELS = 40, 15
"""More than the first on one scatter plot cannot be read; of more, the second number, the most important, are named."""

FRONT = SERIES[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One row: what it cost and what came out."""

    variant: str
    flops: float
    bleu: Measure

    @property
    def mean(self) -> float:
        """Mean BLEU."""
        return self.bleu.mean or 0.0


def points_of(study: Study) -> list[Point]:
    """A point for every row that has a BLEU and a count of FLOPs, the same runs under a second name left out."""
    points = []
    for variant in study.variants:
        runs = study.by_variant[variant.id]
        if study.repeats(variant.id):
            continue
        flops, bleu = measure(runs, train_flops), measure(runs, bleu_on_test)
        if flops.mean and bleu.values:
            points.append(Point(variant=variant.id, flops=flops.mean, bleu=bleu))
    return points


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in both: cheaper or as cheap, and better or as good. By rising cost."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.flops, -point.mean)):
        if not best or point.mean > best[-1].mean:
            best.append(point)
    return best


def cost_picture(study: Study) -> Picture | None:
    """BLEU on the test side against training FLOPs, one point a row; None without a finished run."""
    points = points_of(study)
    if not points:
        return None
    span = window([point.mean for point in points], least=1.0)
    best = front(points)
    caption = (
        "BLEU on the test side (sacreBLEU 13a) against training FLOPs (our count: forward and backward, padding left "
        "out; logarithmic axis). One point is the mean of one row over its seeds; the square is base. Hollow points "
        "have fewer seeds than planned. "
    )
    if len(points) > len(best) == 1:
        caption += f"No row is as cheap or as good as {best[0].variant}, which is the whole Pareto front. "
    elif len(best) > 1:
        caption += (
            "The stepped line is the Pareto front: no row was both cheaper and better than those on it. It is drawn "
            "through means, so neighbours may change places by chance. "
        )
    caption += "Intervals stand in the figure of differences to base."
    if any(not span.inside(point.mean) for point in points):
        caption += " Triangles at the edge lie outside the axis; their value stands beside them."
    if len(points) > _MOST_LABELS:
        caption += f" {len(points) - _FEW_LABELS} points without a name: the table has them."
    title = "BLEU on the test side against training FLOPs, one point a row"
    told = [f"{point.variant} {fixed(point.mean, 1)} at {scientific(point.flops)}" for point in best]
    description = f"{len(points)} rows. On the Pareto front, by rising cost: {listed(told)}."
    with style():
        wide = _draw(points, best, span, "cost-wide", (title, description), 960, 520)
        narrow = _draw(points, best, span, "cost-narrow", (title, description), 400, 440)
    return Picture(key="bleu-flops", title="BLEU against training FLOPs", caption=caption, wide=wide, narrow=narrow)


def _draw(
    points: Sequence[Point],
    best: Sequence[Point],
    span: Window,
    name: str,
    words: tuple[str, str],
    width: int,
    height: int,
) -> Drawing:
    figure, (axes,) = sheet(width, height, Margins(left=52, right=14, top=14, bottom=50))
    low, high = min(point.flops for point in points), max(point.flops for point in points)
    axes.set_ylim(span.low, span.high)
    log_axis(axes, (low / 1.5, high * (1.5 if high > low else 1.6)))
    plain_ticks(axes, "y", 7)
    axes.set_xlabel("training FLOPs a run (our count)")
    axes.set_ylabel("BLEU, test")
    _draw_front(axes, best, high * 1.5, span)
    for base in (False, True):
        for complete in (False, True):
            alike = [p for p in points if (p.variant == BASE) == base and p.bleu.complete == complete]
            _draw_points(axes, alike, span, base=base, complete=complete)
    _label(axes, points, best, _stretches(axes, best, high * 1.5, span), span)
    return drawing(figure, name, *words)


def _draw_front(axes: Axes, best: Sequence[Point], right: float, span: Window) -> None:
    if len(best) < 2:
        return
    x = [*(point.flops for point in best), right]
    y = [span.clip(point.mean) for point in best]
    axes.step(x, [*y, y[-1]], where="post", color=FRONT, linewidth=1.4, linestyle=(0, (6, 2)), zorder=2)
    look: dict[str, Any] = {"ha": "right", "va": "top", "fontsize": FONT_SIZE - 1, "color": FRONT}
    axes.annotate("Pareto front", (right, y[-1]), xytext=(-2, -4), textcoords="offset points", **look)


def _stretches(axes: Axes, best: Sequence[Point], right: float, span: Window) -> list[Box]:
    """The stretches of the front, in pixels: labels keep off them."""
    if len(best) < 2:
        return []
    corners = [pixels(axes, point.flops, span.clip(point.mean)) for point in best]
    corners.append((pixels(axes, right, span.low)[0], corners[-1][1]))
    level = [(x, y - 1.5, after, y + 1.5) for (x, y), (after, _) in pairwise(corners)]
    return level + [(x - 1.5, y, x + 1.5, above) for (_, y), (x, above) in pairwise(corners)]


def _label(axes: Axes, points: Sequence[Point], best: Sequence[Point], obstacles: Sequence[Box], span: Window) -> None:
    important = sorted(
        points,
        key=lambda point: (point.variant != BASE, span.inside(point.mean), point not in best, -point.mean),
    )
    most = _MOST_LABELS if len(points) <= _MOST_LABELS else _FEW_LABELS
    texts = [
        printable(point.variant if span.inside(point.mean) else f"{point.variant}  {fixed(point.mean, 1)}")
        for point in important[:most]
    ]
    places = [pixels(axes, point.flops, span.clip(point.mean)) for point in important]
    write_labels(axes, places, texts, size=FONT_SIZE - 1, obstacles=obstacles, bold=BASE)


def _draw_points(axes: Axes, points: Sequence[Point], span: Window, *, base: bool, complete: bool) -> None:
    colour = PUBLISHED if base else OURS
    inside = [point for point in points if span.inside(point.mean)]
    sns.scatterplot(
        x=[point.flops for point in inside],
        y=[point.mean for point in inside],
        ax=axes,
        marker="s" if base else "o",
        s=81 if base else 49,
        color=colour if complete else SURFACE,
        edgecolor=colour,
        linewidth=1.5,
        zorder=4 if base else 3,
    )
    for point in points:
        if not span.inside(point.mean):
            marker = "v" if point.mean < span.low else "^"
            axes.plot(point.flops, span.clip(point.mean), marker, color=colour, markersize=8, clip_on=False)
