"""The figures of a report: BLEU against training FLOPs, and differences to base beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.drawing import (
    FONT_SIZE,
    GRID,
    INK,
    MUTED,
    SERIES,
    SURFACE,
    Drawing,
    Margins,
    drawing,
    printable,
    sheet,
    style,
)
from reports.formats import MINUS, fixed, power, signed
from reports.labels import place
from reports.measures import Measure, bleu_on_test, difference, measure, train_flops
from reports.paper import Paper
from reports.records import BASE, Study, Variant

_MOST_LABELS = 40
"""More than these on one scatter plot cannot be read; the most important points are labelled."""

OURS, PUBLISHED = SERIES[0], SERIES[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A figure with its caption; `narrow` is drawn for a telephone."""

    key: str
    title: str
    caption: str
    wide: Drawing
    narrow: Drawing


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The stretch of an axis that shows most values well; those outside are drawn at its edge."""

    low: float
    high: float

    def inside(self, value: float) -> bool:
        """Whether `value` is on the axis."""
        return self.low <= value <= self.high

    def clip(self, value: float) -> float:
        """`value`, or the nearest edge."""
        return _between(value, self.low, self.high)


def window(values: Sequence[float], least: float) -> Window:
    """The window of `values`: all of them, but for a few that lie so far out that the rest would be crushed.

    Far out: more than four times the middle half's width (at least `least`) beyond it.
    """
    low, high = np.percentile(values, [25, 75])
    reach = 4 * max(float(high - low), least)
    kept = [value for value in values if low - reach <= value <= high + reach]
    pad = 0.06 * max(max(kept) - min(kept), least)
    return Window(low=min(kept) - pad, high=max(kept) + pad)


def log_axis(axis_of: Axes) -> None:
    """A logarithmic x axis with powers of ten, and 2 and 5 between them where it is short."""
    axis_of.set_xscale("log")
    low, high = axis_of.get_xlim()
    decades = math.log10(high / low)
    axis_of.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if decades < 2.5 else (1.0,)))
    axis_of.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_tick(value)))
    axis_of.xaxis.set_minor_formatter(NullFormatter())


def _power_tick(value: float) -> str:
    exp = math.floor(math.log10(value) + 1e-9)
    mantissa = round(value / 10.0**exp)
    return power(exp) if mantissa == 1 else f"{mantissa}×{power(exp)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    variant: str
    flops: float
    bleu: Measure

    @property
    def mean(self) -> float:
        return self.bleu.mean or 0.0


def cost_picture(study: Study) -> Picture | None:
    """BLEU on the test side against training FLOPs, one point a row; None without a finished run."""
    points = []
    for variant in study.variants:
        runs = study.by_variant[variant.id]
        if all(run.same_as is not None for run in runs):
            continue  # another row's point under a second name
        flops, bleu = measure(runs, train_flops), measure(runs, bleu_on_test)
        if flops.mean and bleu.values:
            points.append(_Point(variant=variant.id, flops=flops.mean, bleu=bleu))
    if not points:
        return None
    span = window([point.mean for point in points], least=1.0)
    outside = [point.variant for point in points if not span.inside(point.mean)]
    caption = (
        "BLEU on the test side (sacreBLEU 13a) against training FLOPs (our count: forward and backward, padding left "
        "out; logarithmic axis). One point is the mean of one row over its seeds; the square is base. Hollow points "
        "have fewer seeds than planned."
    )
    if outside:
        caption += " Triangles at the edge lie outside the axis; their value stands beside them."
    label = "Scatter plot of BLEU on the test side against training FLOPs, one point a row"
    with style():
        wide = _draw_cost(points, span, "cost-wide", label, 960, 520)
        narrow = _draw_cost(points, span, "cost-narrow", label, 400, 440)
    return Picture(key="bleu-flops", title="BLEU against training FLOPs", caption=caption, wide=wide, narrow=narrow)


def _draw_cost(points: Sequence[_Point], span: Window, name: str, label: str, width: int, height: int) -> Drawing:
    figure, (axes,) = sheet(width, height, Margins(left=52, right=14, top=14, bottom=50))
    low, high = min(point.flops for point in points), max(point.flops for point in points)
    axes.set_xlim(low / 1.5, high * (1.5 if high > low else 1.6))
    axes.set_ylim(span.low, span.high)
    log_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", MINUS)))
    axes.set_xlabel("training FLOPs a run (our count)")
    axes.set_ylabel("BLEU, test")
    for point in points:
        _draw_point(axes, point, span)
    important = sorted(points, key=lambda point: (point.variant != BASE, span.inside(point.mean), -point.mean))
    places = [_pixels(axes, point.flops, span.clip(point.mean)) for point in important]
    texts = [
        printable(point.variant if span.inside(point.mean) else f"{point.variant}  {fixed(point.mean, 1)}")
        for point in important[:_MOST_LABELS]
    ]
    box = axes.get_window_extent()
    for text in place(places, texts, size=FONT_SIZE - 1, frame=(box.x0, box.y0 + 2, box.x1, box.y1)):
        if text.apart:
            half = text.height / 2
            end = (
                _between(text.point[0], text.x - 2, text.right + 2),
                _between(text.point[1], text.y - half, text.y + half),
            )
            axes.plot(*zip(*_data(axes, [text.point, end]), strict=True), color=MUTED, linewidth=0.6, zorder=1)
        (position,) = _data(axes, [(text.x, text.y)])
        weight = "bold" if text.text == BASE else "normal"
        axes.text(*position, text.text, fontsize=FONT_SIZE - 1, va="center_baseline", ha="left", fontweight=weight)
    return drawing(figure, name, label)


def _draw_point(axes: Axes, point: _Point, span: Window) -> None:
    base = point.variant == BASE
    colour = PUBLISHED if base else OURS
    full = point.bleu.complete
    if not span.inside(point.mean):
        marker = "v" if point.mean < span.low else "^"
        axes.plot(point.flops, span.clip(point.mean), marker=marker, color=colour, markersize=8, clip_on=False)
        return
    axes.plot(
        point.flops,
        point.mean,
        marker="s" if base else "o",
        markersize=9 if base else 7,
        markerfacecolor=colour if full else SURFACE,
        markeredgecolor=colour,
        markeredgewidth=1.5,
        linestyle="none",
        zorder=4 if base else 3,
    )


def _between(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _pixels(axes: Axes, x: float, y: float) -> tuple[float, float]:
    at = axes.transData.transform((x, y))
    return float(at[0]), float(at[1])


def _data(axes: Axes, pixels: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    back = axes.transData.inverted()
    return [(float(x), float(y)) for x, y in back.transform(list(pixels))]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Effect:
    """One line of the forest."""

    variant: Variant
    ours: Measure
    published: float | None


def difference_picture(study: Study, paper: Paper) -> Picture | None:
    """Differences to base in BLEU, ours and the paper's; None when there is nothing to compare."""
    base = study.by_variant.get(BASE, [])
    effects = []
    for variant in study.variants:
        ours = difference(study.by_variant[variant.id], base, bleu_on_test)
        row = paper.rows.get(variant.id)
        if variant.id != BASE and ours.values:
            effects.append(_Effect(variant=variant, ours=ours, published=row.bleu_difference if row else None))
    if not effects:
        return None
    numbers = [value for effect in effects for value in (effect.ours.mean, effect.published) if value is not None]
    span = window([*numbers, 0.0], least=0.5)
    with_paper = any(effect.published is not None for effect in effects)
    caption = (
        "Difference to base in BLEU. Circles: this study, the mean of the differences between runs of one seed; the "
        "bar runs from the lowest to the highest seed; hollow where seeds are missing."
    )
    if with_paper:
        caption += (
            f" Diamonds: the paper's Table 3 ({paper.task}, one run a row, another protocol). Compare directions and "
            "order, not sizes."
        )
    if not all(span.inside(value) for value in numbers):
        caption += " Triangles at the edge lie outside the axis; their value stands beside them."
    label = "Differences to base in BLEU, one line a row, this study beside the paper"
    with style():
        wide = _draw_effects(effects, span, "difference-wide", label, 960)
        narrow = _draw_effects(effects, span, "difference-narrow", label, 400)
    return Picture(key="difference", title="Difference to base", caption=caption, wide=wide, narrow=narrow)


def _draw_effects(effects: Sequence[_Effect], span: Window, name: str, label: str, width: int) -> Drawing:
    longest = max(len(effect.variant.id) for effect in effects)
    left = min(int(longest * 7.0) + 16, int(width * 0.45))
    figure, (axes,) = sheet(width, 22 * len(effects) + 96, Margins(left=left, right=18, top=40, bottom=50))
    places = np.arange(len(effects))
    for y, effect in enumerate(effects):
        _draw_effect(axes, y, effect, span)
    axes.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
    for line, (above, below) in enumerate(pairwise(effects)):
        if above.variant.group != below.variant.group:
            axes.axhline(line + 0.5, color=GRID, linewidth=0.8, zorder=0)
    axes.set_xlim(span.low, span.high)
    axes.set_ylim(len(effects) - 0.4, -0.6)
    axes.set_yticks(places, [printable(effect.variant.id) for effect in effects], color=INK)
    axes.tick_params(axis="y", length=0, pad=9)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(9 if width > 600 else 5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_sign(value)))
    axes.set_xlabel("BLEU, difference to base")
    axes.plot([], [], "o", color=OURS, markersize=7, label="this study")
    if any(effect.published is not None for effect in effects):
        axes.plot([], [], "D", color=PUBLISHED, markersize=6, label="the paper")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2, handletextpad=0.2)
    return drawing(figure, name, label)


def _plain_sign(value: float) -> str:
    text = signed(value, 2)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _draw_effect(axes: Axes, y: float, effect: _Effect, span: Window) -> None:
    _draw_mark(axes, effect.published, y + 0.17, "D", PUBLISHED, span, full=True)
    low, high = span.clip(min(effect.ours.values)), span.clip(max(effect.ours.values))
    if effect.ours.n > 1:
        axes.plot([low, high], [y - 0.13] * 2, color=OURS, linewidth=1.6, zorder=2)
    _draw_mark(axes, effect.ours.mean, y - 0.13, "o", OURS, span, full=effect.ours.complete)


def _draw_mark(
    axes: Axes, value: float | None, y: float, marker: str, colour: str, span: Window, *, full: bool
) -> None:
    if value is None:
        return
    inside = span.inside(value)
    axes.plot(
        span.clip(value),
        y,
        marker=marker if inside else ("<" if value < span.low else ">"),
        color=colour,
        markerfacecolor=colour if full else SURFACE,
        markeredgewidth=1.5,
        markersize=6 if marker == "D" else 7,
        clip_on=False,
        zorder=3,
    )
    if not inside:
        shift = 8 if value < span.low else -8
        axes.annotate(
            signed(value, 1),
            (span.clip(value), y),
            xytext=(shift, 0),
            textcoords="offset points",
            ha="left" if shift > 0 else "right",
            va="center",
            fontsize=FONT_SIZE - 1,
        )
