"""Difference to base against one size at a time: heads, d_k, depth, width, d_ff; the paper's curve beside ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from reports.figures.drawing import DASHES, INK, SURFACE, Drawing, Margins, drawing, sheet, style
from reports.figures.parts import (
    OURS,
    PUBLISHED,
    Picture,
    Window,
    ends,
    interval_words,
    plain_ticks,
    window,
)
from reports.formats import plain, signed
from reports.records.paper import Paper
from reports.records.study import BASE, Study
from reports.statistics.measures import Measure, bleu_on_test, difference
from reports.tables.table3 import base_settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """One quantity that rows vary; `follows` are the keys that change with it and are no change of their own."""

    name: str
    key: str
    paper_key: str
    follows: frozenset[str] = frozenset()


SIZES = (
    Size(name="heads", key="model.n_heads", paper_key="heads", follows=frozenset({"model.d_k", "model.d_v"})),
    Size(name="d_k", key="model.d_k", paper_key="d_k"),
    Size(name="layers", key="model.n_layers", paper_key="layers"),
    Size(name="d_model", key="model.d_model", paper_key="d_model", follows=frozenset({"model.d_k", "model.d_v"})),
    Size(name="d_ff", key="model.d_ff", paper_key="d_ff"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """What is known of one size: at each ratio to base's value, the difference to base in BLEU."""

    size: Size
    ours: Mapping[float, Measure]
    published: Mapping[float, float]
    base: float
    published_base: float


def tracks(study: Study, paper: Paper) -> list[Track]:
    """The sizes that some finished row of the study varies alone."""
    found = [_track(size, study, paper) for size in SIZES]
    return [track for track in found if track is not None and track.ours]


def _track(size: Size, study: Study, paper: Paper) -> Track | None:
    settings, base = base_settings(study), study.by_variant.get(BASE, [])
    value = settings.get(size.key)
    if not isinstance(value, int | float) or not value:
        return None
    ours: dict[float, Measure] = {}
    for variant in study.variants:
        changed = {key for key, new in variant.changes.items() if settings.get(key) != new}
        if size.key not in changed or not changed <= {size.key} | size.follows:
            continue
        effect = difference(study.by_variant[variant.id], base, bleu_on_test)
        new = variant.changes[size.key]
        if effect.values and isinstance(new, int | float):
            ours.setdefault(new / value, effect)  # the same row may stand in two tables
    theirs = float(paper.base.changes[size.paper_key])
    return Track(size=size, ours=ours, published=_published(size, paper, theirs), base=value, published_base=theirs)


def _published(size: Size, paper: Paper, base: float) -> dict[float, float]:
    follows = {key.removeprefix("model.") for key in size.follows}
    return {
        row.changes[size.paper_key] / base: row.bleu_difference
        for row in paper.rows.values()
        if row is not paper.base and size.paper_key in row.changes and row.changes.keys() <= {size.paper_key} | follows
    }


def sizes_picture(study: Study, paper: Paper) -> Picture | None:
    """One small picture a size; None when no row varies a size alone."""
    found = tracks(study, paper)
    if not found:
        return None
    effects = [effect for track in found for effect in track.ours.values()]
    numbers = [effect.mean or 0.0 for effect in effects]
    numbers += [value for track in found for value in track.published.values()]
    numbers += [end for effect in effects for end in ends(effect) or ()]
    span = window([*numbers, 0.0], least=1.0)
    title = f"Difference to base in BLEU against {', '.join(track.size.name for track in found)}"
    description = "; ".join(_told(track) for track in found)
    caption = (
        "Difference to base in BLEU when one size alone changes, on a logarithmic axis of its ratio to base's value "
        "(which stands below each axis). Blue circles: this study, mean over seeds; orange diamonds, dashed: the "
        f"paper's Table 3 ({paper.task}, one run a row, another protocol). Heads change at equal work (d_k and d_v "
        f"follow); width takes d_k and d_v with it. {interval_words(effects)} Compare shapes, not sizes."
    )
    if not all(span.inside(value) for value in numbers):
        caption += " Triangles and bars at the edge lead outside the axis."
    with style():
        wide = _draw_wide(found, span, (title, description))
        narrow = _draw_narrow(found, span, (title, description))
    return Picture(key="sizes", title="One size at a time", caption=caption, wide=wide, narrow=narrow)


def _told(track: Track) -> str:
    points = [f"{signed(effect.mean or 0.0, 1)} at {_ratio(ratio)}" for ratio, effect in sorted(track.ours.items())]
    return f"{track.size.name}: {', '.join(points)}"


def _draw_wide(found: Sequence[Track], span: Window, words: tuple[str, str]) -> Drawing:
    margins = Margins(left=56, right=12, top=54, bottom=62)
    figure, axes = sheet(960, 320, margins, columns=len(found), gap=22)
    for number, (panel, track) in enumerate(zip(axes, found, strict=True)):
        _draw_track(panel, track, span)
        panel.tick_params(labelleft=number == 0)
    axes[0].set_ylabel("BLEU, difference to base")
    _legend(axes[0])
    return drawing(figure, "sizes-wide", *words)


def _draw_narrow(found: Sequence[Track], span: Window, words: tuple[str, str]) -> Drawing:
    rows = (len(found) + 1) // 2
    margins = Margins(left=52, right=10, top=52, bottom=62)
    figure, axes = sheet(400, 114 + 240 * rows, margins, rows=rows, columns=2, gap=82, share_x=False)
    for number, panel in enumerate(axes):
        if number >= len(found):
            panel.set_axis_off()
            continue
        box = panel.get_position()
        shift = 0.07 if number % 2 else 0.0  # the gap between columns need not be as wide as that between rows
        panel.set_position((box.x0 - shift, box.y0, box.width + 0.07, box.height))
        _draw_track(panel, found[number], span)
        panel.tick_params(labelleft=number % 2 == 0)
        if number % 2 == 0:
            panel.set_ylabel("Δ BLEU to base")
    _legend(axes[0])
    return drawing(figure, "sizes-narrow", *words)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.12), ncols=2, borderaxespad=0.0, handlelength=2.2)


def _draw_track(axes: Axes, track: Track, span: Window) -> None:
    theirs = sorted({1.0: 0.0, **track.published}.items())
    axes.axhline(0.0, color=INK, linewidth=0.9, zorder=1)
    _draw_curve(axes, theirs, span, "the paper", PUBLISHED, {"linestyle": DASHES[1], "marker": "D", "markersize": 5})
    ours = sorted({1.0: 0.0, **{ratio: effect.mean or 0.0 for ratio, effect in track.ours.items()}}.items())
    _draw_curve(axes, ours, span, "this study", OURS, {"marker": "o", "markersize": 6})
    for ratio, effect in track.ours.items():
        _draw_bar(axes, ratio, effect, span)
    every = sorted({1.0, *track.ours, *track.published})
    axes.set_xscale("log", base=2)
    axes.set_xlim(every[0] / 1.35, every[-1] * 1.35)
    axes.xaxis.set_major_locator(FixedLocator(_ticks(every)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _ratio(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(span.low, span.high)
    plain_ticks(axes, "y", 6, sign=True)
    axes.set_title(track.size.name, fontsize=12.0, fontweight="bold", loc="left", pad=6)
    axes.set_xlabel(f"× base\n({plain(track.base)} here, {plain(track.published_base)} there)", fontsize=11.0)


def _draw_curve(
    axes: Axes, points: Sequence[tuple[float, float]], span: Window, label: str, colour: str, look: Mapping[str, Any]
) -> None:
    x, y = [ratio for ratio, _ in points], [span.clip(value) for _, value in points]
    look = {"color": colour, "linewidth": 1.5, "markeredgewidth": 0, **look}
    named = {"xlabel": axes.get_xlabel(), "ylabel": axes.get_ylabel()}
    axes.set(xlabel=" ", ylabel=" ")  # seaborn would look at every tick to see whether it may name the axes
    sns.lineplot(x=x, y=y, ax=axes, errorbar=None, label=label, legend=False, **look)
    axes.set(**named)


def _draw_bar(axes: Axes, ratio: float, effect: Measure, span: Window) -> None:
    mean = effect.mean or 0.0
    if found := ends(effect):
        axes.plot([ratio] * 2, [span.clip(end) for end in found], color=OURS, linewidth=1.2, alpha=0.6, zorder=3)
    if not span.inside(mean):
        marker = "v" if mean < span.low else "^"
        axes.plot(ratio, span.clip(mean), marker=marker, color=OURS, markersize=8, zorder=4, clip_on=False)
    elif not effect.complete:
        axes.plot(ratio, mean, marker="o", color=OURS, markerfacecolor=SURFACE, markersize=6, zorder=4)


def _ticks(ratios: Sequence[float]) -> list[float]:
    """A tick at each ratio, but for those so near to the one before that their texts would touch."""
    ticks: list[float] = []
    reach = math.log2(ratios[-1] / ratios[0]) if len(ratios) > 1 else 1.0
    for ratio in sorted(ratios, key=lambda ratio: (ratio != 1.0, ratio)):
        if all(abs(math.log2(ratio / tick)) > 0.16 * reach for tick in ticks):
            ticks.append(ratio)
    return sorted(ticks)


def _ratio(value: float) -> str:
    exact = Fraction(value).limit_denominator(16)
    if exact.numerator == 1 and exact.denominator > 1:
        return f"1/{exact.denominator}"
    return f"{value:.2g}" if exact.denominator != 3 else f"{exact.numerator}/3"
