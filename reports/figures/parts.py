"""What the figures of a report share: the window of an axis, its ticks, and labels at the ends of lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.figures.drawing import FONT_SIZE, MUTED, SERIES, Drawing
from reports.figures.labels import Box, place
from reports.formats import MINUS, fixed, power, signed
from reports.statistics.intervals import LEAST_SHOWN
from reports.statistics.measures import Measure

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
        return between(value, self.low, self.high)


def window(values: Sequence[float], least: float) -> Window:
    """The window of `values`: all of them, but for a few that lie so far out that the rest would be crushed.

    Far out: more than four times the middle half's width (at least `least`) beyond it.
    """
    low, high = np.percentile(values, [25, 75])
    reach = 4 * max(float(high - low), least)
    kept = [value for value in values if low - reach <= value <= high + reach]
    pad = 0.06 * max(max(kept) - min(kept), least)
    return Window(low=min(kept) - pad, high=max(kept) + pad)


def between(value: float, low: float, high: float) -> float:
    """`value`, or the nearest of the two ends."""
    return min(max(value, low), high)


def ends(measure: Measure) -> tuple[float, float] | None:
    """The ends of the interval that a figure draws for `measure`; None where there are too few seeds for one."""
    interval = measure.interval
    return None if interval is None or measure.n < LEAST_SHOWN else (interval.low, interval.high)


def interval_words(measures: Sequence[Measure]) -> str:
    """What the bars of a figure are, or why there are none: a sentence for its caption."""
    counts = sorted({measure.n for measure in measures if measure.n})
    if not counts or counts[-1] < LEAST_SHOWN:
        seeds = "one seed" if counts in ([], [1]) else "two seeds"
        return f"No intervals: {seeds} a row are too few for one."
    words = "Bars are 95 % intervals of the mean by Student's t over seeds"
    many = [count for count in counts if count >= LEAST_SHOWN]
    words += f" (n = {many[0]})" if len(many) == 1 else f" (n = {many[0]} to {many[-1]})"
    return words + ("; rows with fewer than three seeds have none." if counts[0] < LEAST_SHOWN else ".")


_TICKS = (
    (0.6, (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)),
    (1.5, (1.0, 2.0, 5.0)),
    (2.5, (1.0, 3.0)),
    (math.inf, (1.0,)),
)
"""Up to how many decades a logarithmic axis has which ticks in each."""


def log_axis(axis_of: Axes, bounds: tuple[float, float] | None = None) -> None:
    """A logarithmic x axis with powers of ten, and more ticks between them the shorter it is."""
    axis_of.set_xscale("log")
    low, high = bounds or axis_of.get_xlim()
    axis_of.set_xlim(low, high)
    decades = math.log10(high / low)
    each = 1 if decades < 8 else 2
    subs = next(subs for most, subs in _TICKS if decades < most)
    axis_of.xaxis.set_major_locator(LogLocator(base=10.0**each, subs=subs))
    axis_of.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_tick(value)))
    axis_of.xaxis.set_minor_formatter(NullFormatter())
    axis_of.tick_params(axis="x", which="minor", length=0)


def _power_tick(value: float) -> str:
    exp = math.floor(math.log10(value) + 1e-9)
    mantissa = f"{value / 10.0**exp:.2g}"
    return power(exp) if mantissa == "1" else f"{mantissa}×{power(exp)}"


def plain_ticks(axis: Axes, which: str, most: int, *, sign: bool = False, whole: bool = False) -> None:
    """Linear ticks, at most `most`, with a real minus sign; `sign`: values above zero have a plus."""
    target = axis.xaxis if which == "x" else axis.yaxis
    target.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole))
    target.set_major_formatter(FuncFormatter(lambda value, _: (_with_sign if sign else _plain)(value)))


def _with_sign(value: float) -> str:
    text = signed(value, 2)
    return text.rstrip("0").rstrip(".") if "." in text else text


def _plain(value: float) -> str:
    return fixed(value, 0) if abs(value) >= 1000 else f"{value:g}".replace("-", MINUS)


def spread(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """`heights` moved apart as little as a simple rule can, until neighbours are `gap` apart, inside low and high."""
    order = sorted(range(len(heights)), key=lambda number: (heights[number], number))
    placed = [0.0] * len(heights)
    previous = low - gap
    for number in order:
        placed[number] = previous = max(heights[number], previous + gap)
    limit = high + gap
    for number in reversed(order):
        placed[number] = limit = min(placed[number], limit - gap)
    return placed


def label_ends(axes: Axes, ends_of: Sequence[tuple[float, float, str, str]]) -> None:
    """Name lines at their right ends, each (x, y, text, colour) in data units, so that no two names touch.

    A thin line leads from each end to its name, as neighbours may stand at one another's height.
    """
    points = axes.transData.transform([(x, y) for x, y, _, _ in ends_of])
    box = axes.get_window_extent()
    heights = spread([float(y) for _, y in points], 1.15 * FONT_SIZE, box.y0, box.y1)
    right = max(float(x) for x, _ in points) + 22
    for (start, level, text, colour), height in zip(ends_of, heights, strict=True):
        x, y = axes.transData.inverted().transform((right, height))
        lead, _ = axes.transData.inverted().transform((right - 4, height))
        axes.plot([start, lead], [level, y], color=colour, linewidth=0.7, alpha=0.7, clip_on=False)
        axes.text(x, y, text, color=colour, fontsize=FONT_SIZE - 1, va="center", ha="left", clip_on=False)


def pixels(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point of the data stands in the picture."""
    at = axes.transData.transform((x, y))
    return float(at[0]), float(at[1])


def write_labels(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    size: float,
    obstacles: Sequence[Box] = (),
    bold: str = "",
) -> None:
    """Name the first of `points` (pixels), most important first, where there is room; the text `bold` in bold."""
    box, back = axes.get_window_extent(), axes.transData.inverted()
    frame = (box.x0, box.y0 + 2, box.x1, box.y1)
    for label in place(points, texts, size=size, frame=frame, obstacles=obstacles):
        if label.apart:
            half = label.height / 2
            x, y = label.point
            end = (between(x, label.x - 2, label.right + 2), between(y, label.y - half, label.y + half))
            axes.plot(*back.transform([label.point, end]).T, color=MUTED, linewidth=0.6, zorder=1)
        x, y = back.transform((label.x, label.y))
        weight = "bold" if label.text == bold else "normal"
        axes.text(x, y, label.text, fontsize=size, va="center_baseline", ha="left", fontweight=weight)
