"""How fast the rows trained: target tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import seaborn as sns

from reports.figures.drawing import FONT_SIZE, GRID, INK, SURFACE, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.parts import OURS, PUBLISHED, Picture, plain_ticks
from reports.formats import counted, fixed
from reports.records.machines import machine
from reports.records.study import BASE, Study
from reports.statistics.measures import Measure, measure

_MOST = 60
"""Lines of one picture: more cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Speed:
    variant: str
    tokens: Measure

    @property
    def mean(self) -> float:
        return self.tokens.mean or 0.0


def speed_picture(study: Study) -> Picture | None:
    """Target tokens trained on a second, a bar a row; None without a finished run."""
    speeds = []
    for variant in study.variants:
        runs = study.by_variant[variant.id]
        tokens = measure(runs, lambda run: run.number("target_tokens_per_second"))
        if tokens.values and not study.repeats(variant.id):
            speeds.append(_Speed(variant=variant.id, tokens=tokens))
    if not speeds:
        return None
    shown = speeds[:_MOST]
    title = "Training speed in target tokens a second, one bar a row"
    description = "; ".join(f"{speed.variant} {fixed(speed.mean, 0)}" for speed in shown)
    caption = (
        "Target tokens trained on a second, padding left out, evaluation and checkpoints apart: the mean over finished "
        "runs, the line from the slowest to the fastest. Base stands out by its colour and hatching."
    )
    if (number := len({machine(run) for run in study.finished})) > 1:
        caption += f" The runs were made on {counted(number, 'machine')}: part of the differences is the machines'."
    else:
        caption += " All runs were made on one machine; what else ran on it shows in the scatter."
    if len(shown) < len(speeds):
        caption += f" The first {len(shown)} rows of {len(speeds)}."
    with style():
        wide = _draw(shown, "speed-wide", (title, description), 960)
        narrow = _draw(shown, "speed-narrow", (title, description), 400)
    return Picture(key="speed", title="Throughput", caption=caption, wide=wide, narrow=narrow)


def _draw(speeds: Sequence[_Speed], name: str, words: tuple[str, str], width: int) -> Drawing:
    broad = width > 600
    longest = max(len(speed.variant) for speed in speeds)
    left = min(int(longest * 7.0) + 16, int(width * 0.45))
    figure, (axes,) = sheet(width, 20 * len(speeds) + 70, Margins(left=left, right=64, top=10, bottom=50))
    lines = [(y, value) for y, speed in enumerate(speeds) for value in speed.tokens.values]
    sns.barplot(
        x=[value for _, value in lines],
        y=[y for y, _ in lines],
        ax=axes,
        orient="y",
        width=0.62,
        color=OURS,
        saturation=1.0,
        errorbar=("pi", 100),
        err_kws={"color": INK, "linewidth": 1.4},
    )
    for y, (speed, bar) in enumerate(zip(speeds, axes.patches, strict=True)):
        if speed.variant == BASE:
            bar.set(facecolor=PUBLISHED, hatch="////", edgecolor=SURFACE, linewidth=0.0)
        axes.annotate(
            fixed(speed.mean, 0),
            (max(speed.tokens.values), y),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=FONT_SIZE - 1,
            color=INK,
        )
    axes.set_ylim(len(speeds) - 0.4, -0.6)
    axes.set_xlim(left=0.0)
    axes.set_yticks(np.arange(len(speeds)), [printable(speed.variant) for speed in speeds], color=INK)
    axes.tick_params(axis="y", length=0, pad=6)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=GRID)
    plain_ticks(axes, "x", 8 if broad else 4)
    axes.set_xlabel("target tokens a second")
    return drawing(figure, name, *words)
