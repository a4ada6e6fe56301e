"""The forest of differences to base: ours with their intervals, the paper's beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes

from reports.figures.drawing import (
    FONT_SIZE,
    GRID,
    INK,
    MUTED,
    SURFACE,
    Drawing,
    Margins,
    drawing,
    printable,
    sheet,
    style,
)
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
from reports.formats import signed
from reports.records.paper import Paper
from reports.records.study import Study
from reports.statistics.effects import Effect, effects

_MOST = 60
"""Lines of one forest: more cannot be read."""


def _told(effect: Effect) -> str:
    """The difference in figures: −2.1 [−3.0, −1.2]."""
    text = signed(effect.mean, 1)
    if found := ends(effect.bleu):
        text += f"  [{signed(found[0], 1)}, {signed(found[1], 1)}]"
    return text


def difference_picture(study: Study, paper: Paper) -> Picture | None:
    """Differences to base in BLEU, ours and the paper's; None when there is nothing to compare."""
    every = effects(study, paper)
    if not every:
        return None
    farthest = sorted(every, key=lambda effect: -abs(effect.mean))[:_MOST]
    shown = [effect for effect in every if effect in farthest]
    numbers = [effect.mean for effect in shown]
    numbers += [effect.published for effect in shown if effect.published is not None]
    numbers += [end for effect in shown for end in ends(effect.bleu) or ()]
    span = window([*numbers, 0.0], least=1.0)
    with_paper = any(effect.published is not None for effect in shown)
    title = "Differences to base in BLEU, one line a row" + (", this study beside the paper" if with_paper else "")
    description = "; ".join(f"{effect.variant.id} {_told(effect)}" for effect in shown)
    with style():
        wide = _draw(shown, span, "difference-wide", (title, description), 960)
        narrow = _draw(shown, span, "difference-narrow", (title, description), 400)
    return Picture(
        key="difference",
        title="Difference to base",
        caption=_caption(every, shown, span, paper, with_paper=with_paper),
        wide=wide,
        narrow=narrow,
    )


def _caption(every: Sequence[Effect], shown: Sequence[Effect], span: Window, paper: Paper, *, with_paper: bool) -> str:
    words = [
        "Difference to base in BLEU on the test side. Circles: this study, the mean of the differences between runs of "
        "one seed; small dots are the seeds; hollow where seeds are missing.",
        interval_words([effect.bleu for effect in shown]),
    ]
    if any(ends(effect.bleu) for effect in shown):
        words.append("They are for each row alone, not corrected for the number of rows.")
    if with_paper:
        words.append(
            f"Diamonds: the paper's Table 3 ({paper.task}, one run a row, another protocol). Compare directions and "
            "order, not sizes."
        )
    values = [value for effect in shown for value in (effect.mean, effect.published) if value is not None]
    if not all(span.inside(value) for value in values):
        words.append("Triangles at the edge lie outside the axis; their value stands beside them.")
    if len(shown) < len(every):
        words.append(f"The {len(shown)} rows farthest from base of {len(every)}; the table has all.")
    return " ".join(words)


def _draw(shown: Sequence[Effect], span: Window, name: str, words: tuple[str, str], width: int) -> Drawing:
    broad = width > 600
    longest = max(len(effect.variant.id) for effect in shown)
    left = min(int(longest * 7.0) + 16, int(width * 0.45))
    margins = Margins(left=left, right=170 if broad else 18, top=40, bottom=50)
    figure, (axes,) = sheet(width, 22 * len(shown) + 96, margins)
    for y, effect in enumerate(shown):
        _draw_effect(axes, y, effect, span)
        if broad:
            place = (1.02, y)
            axes.text(*place, _told(effect), transform=axes.get_yaxis_transform(), va="center", fontsize=FONT_SIZE - 1)
    _draw_seeds(axes, shown, span)
    axes.axvline(0.0, color=INK, linewidth=1.0, zorder=1)
    for line, (above, below) in enumerate(pairwise(shown)):
        if above.variant.group != below.variant.group:
            axes.axhline(line + 0.5, color=GRID, linewidth=0.8, zorder=0)
    axes.set_xlim(span.low, span.high)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_yticks(np.arange(len(shown)), [printable(effect.variant.id) for effect in shown], color=INK)
    axes.tick_params(axis="y", length=0, pad=9)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    plain_ticks(axes, "x", 9 if broad else 5, sign=True)
    axes.set_xlabel("BLEU, difference to base")
    if broad:
        interval = any(ends(effect.bleu) for effect in shown)
        head = "mean  [95 % interval]" if interval else "mean"
        axes.text(1.02, 1.0, head, transform=axes.transAxes, va="bottom", fontsize=FONT_SIZE - 1, color=MUTED)
    axes.plot([], [], "o", color=OURS, markersize=7, label="this study")
    if any(effect.published is not None for effect in shown):
        axes.plot([], [], "D", color=PUBLISHED, markersize=6, label="the paper")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, borderaxespad=0.2, handletextpad=0.2)
    return drawing(figure, name, *words)


_RAISED = 0.13
"""By how much of a line ours stands above the middle, to leave room for the paper's."""


def _draw_seeds(axes: Axes, shown: Sequence[Effect], span: Window) -> None:
    seeds = [(x, y - _RAISED) for y, e in enumerate(shown) if e.bleu.n > 1 for x in e.bleu.values if span.inside(x)]
    if seeds:
        x, y = zip(*seeds, strict=True)
        sns.scatterplot(x=x, y=y, ax=axes, color=OURS, s=9, alpha=0.7, linewidth=0, zorder=2)


def _draw_effect(axes: Axes, y: float, effect: Effect, span: Window) -> None:
    _draw_mark(axes, effect.published, y + 0.2, "D", PUBLISHED, span, full=True)
    line = y - _RAISED
    if found := ends(effect.bleu):
        axes.plot([span.clip(end) for end in found], [line] * 2, color=OURS, linewidth=1.6, zorder=2)
    _draw_mark(axes, effect.bleu.mean, line, "o", OURS, span, full=effect.bleu.complete)


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
        markersize=5.5 if marker == "D" else 7,
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
            # Its interval may reach into the picture, under the number.
            bbox={"facecolor": SURFACE, "edgecolor": "none", "pad": 1.0},
            zorder=4,
        )
