"""Plots of probes: panels of lines side by side, over numbers or over names, wide and for a telephone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from reports.figures.drawing import DASHES, INK, MARKERS, SERIES, Drawing, Margins, drawing, printable, sheet, style
from reports.figures.parts import Picture, log_axis, plain_ticks
from reports.formats import plain, significant

X = float | str

_FEW = 2.0
"""Up to so many decades a logarithmic axis has ticks between powers of ten."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What one line shows; `x` are numbers, or names for a panel of names."""

    name: str
    x: Sequence[X]
    y: Sequence[float]
    joined: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log_x: bool = False
    log_y: bool = False


def picture(key: str, title: str, caption: str, panels: Sequence[Panel]) -> Picture:
    """`panels` as a figure, beside one another where there is room."""
    words = (title, ". ".join(_told(panel) for panel in panels))
    with style():
        wide = _draw(panels, f"{key}-wide", words, 960, columns=len(panels))
        narrow = _draw(panels, f"{key}-narrow", words, 400, columns=1)
    return Picture(key=key, title=title, caption=caption, wide=wide, narrow=narrow)


def _told(panel: Panel) -> str:
    lines = [f"{line.name} from {significant(line.y[0])} to {significant(line.y[-1])}" for line in panel.lines]
    return f"{panel.title}: {', '.join(lines)}"


def _names(panels: Sequence[Panel]) -> list[str]:
    return list(dict.fromkeys(line.name for panel in panels for line in panel.lines))


def _draw(panels: Sequence[Panel], name: str, words: tuple[str, str], width: int, *, columns: int) -> Drawing:
    names, broad = _names(panels), columns > 1 or width > 600
    per_row = max(1, (width - 40) // (8 * max(map(len, names)) + 50))
    legend = 19 * -(-len(names) // per_row) + 12
    rows = -(-len(panels) // columns)
    gap = 70 if columns > 1 else 92
    margins = Margins(left=62, right=16, top=legend + 28, bottom=52)
    height = margins.top + margins.bottom + rows * (270 if broad else 220) + gap * (rows - 1)
    figure, grid = sheet(width, height, margins, rows=rows, columns=columns, gap=gap, share_x=False, share_y=False)
    for panel, axes in zip(panels, grid, strict=False):
        _panel(axes, panel, names)
    handles = {text: handle for axes in grid for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        [handles[printable(text)] for text in names],
        [printable(text) for text in names],
        loc="upper left",
        bbox_to_anchor=(0.02, 1.0),
        ncols=per_row,
        borderaxespad=0.2,
        columnspacing=1.4,
    )
    return drawing(figure, name, *words)


def _panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    marks = list(dict.fromkeys(x for line in panel.lines for x in line.x if isinstance(x, str)))
    for line in panel.lines:
        number = names.index(line.name)
        sns.lineplot(
            x=[marks.index(x) if isinstance(x, str) else x for x in line.x],
            y=list(line.y),
            ax=axes,
            errorbar=None,
            estimator=None,
            color=INK if number == 0 else SERIES[(number - 1) % len(SERIES)],
            linestyle=DASHES[number % len(DASHES)] if line.joined else "none",
            marker=MARKERS[number % len(MARKERS)],
            markersize=6 if line.joined else 7,
            markeredgewidth=0,
            linewidth=1.8,
            label=printable(line.name),
            legend=False,
        )
    _scales(axes, panel, marks)
    axes.set_title(panel.title, fontsize=12, loc="left")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)


def _scales(axes: Axes, panel: Panel, marks: Sequence[str]) -> None:
    values = [x for line in panel.lines for x in line.x if not isinstance(x, str)]
    if marks:
        axes.set_xticks(range(len(marks)), list(marks))
        axes.tick_params(axis="x", labelsize=10)
        axes.set_xlim(-0.4, len(marks) - 0.6)
    elif panel.log_x and min(values) > 0:
        low, high = min(values), max(values)
        log_axis(axes, (low / 1.2, high * 1.2))
        axes.set_xticks(sorted(set(values))[:: 2 if len(set(values)) > 7 else 1])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    else:
        plain_ticks(axes, "x", 6)
    heights = [y for line in panel.lines for y in line.y]
    if panel.log_y and min(heights) > 0:
        axes.set_yscale("log")
        decades = math.log10(max(heights) / min(heights))
        axes.yaxis.set_major_locator(LogLocator(base=10.0, subs=(1.0, 2.0, 5.0) if decades < _FEW else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value).removeprefix("1×")))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        pad = 0.06 * (max(*heights, 0.0) - min(*heights, 0.0)) or 0.5
        axes.set_ylim(min(heights) - pad if min(heights) < 0 else 0.0, max(*heights, 0.0) + pad)
        plain_ticks(axes, "y", 6)
