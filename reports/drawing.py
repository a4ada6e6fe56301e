"""How figures look and how they become SVG: the same bytes every time, colours that follow the page's theme."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

DPI = 72
"""One unit of the SVG is then one pixel of the page."""

FONT_SIZE = 12.0

INK, MUTED, GRID, SURFACE = "#16181d", "#5f6673", "#dfe2e8", "#fffffe"

SERIES = ("#0067a8", "#c74e00", "#00805c", "#a4508b", "#8f6400", "#2f8fc4", "#6b6f78")
"""Okabe and Ito's colour-blind-safe hues, darkened until they read as thin lines on white."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
"""A second sign besides colour."""

_THEMED = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    SURFACE: "--surface",
    **{colour: f"--series-{number}" for number, colour in enumerate(SERIES, 1)},
}
"""Colour in a file of its own, and the page's variable that takes its place inside the page."""

_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "attention-ablations",
    "text.parse_math": False,
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 11.0,
    "ytick.labelsize": 11.0,
    "xtick.minor.visible": False,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 11.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": SURFACE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """One picture in two forms."""

    inline: str
    """For a page: no background, colours from the page's variables, ids that no other drawing has."""
    file: str
    """A file of its own: white background, fixed colours."""
    width: int
    """Pixels at natural size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Margins:
    """Pixels between the axes and the edge of the picture."""

    left: int
    right: int
    top: int
    bottom: int


@contextmanager
def style() -> Iterator[None]:
    """Our style and nothing of the user's; every figure is made and drawn inside."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        with warnings.catch_warnings():
            # Text stays text in our SVG: a letter that this font lacks is drawn by the reader's.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            yield


def sheet(width: int, height: int, margins: Margins, rows: int = 1, gap: int = 0) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `width` x `height` pixels with `rows` axes above one another, `gap` pixels apart, sharing x."""
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    FigureCanvasSVG(figure)
    inner = (height - margins.top - margins.bottom - gap * (rows - 1)) / rows
    axes: list[Axes] = []
    for row in range(rows):
        bottom = margins.bottom + (rows - 1 - row) * (inner + gap)
        box = (
            margins.left / width,
            bottom / height,
            (width - margins.left - margins.right) / width,
            inner / height,
        )
        axes.append(figure.add_axes(box, sharex=axes[0] if axes else None))
    return figure, axes


def drawing(figure: Figure, name: str, label: str) -> Drawing:
    """`figure` as SVG. `name` makes its ids unique in a page, `label` says to a screen reader what it shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]
    text = _unique_ids(text, name)
    width, height = (round(float(size) * DPI) for size in figure.get_size_inches())
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{_attribute(label)}">'
    )
    body = text[text.index(">") + 1 :]
    return Drawing(inline=head + _themed(body), file=head + body, width=width)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _unique_ids(text: str, name: str) -> str:
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return re.sub(r'xlink:href="#', f'xlink:href="#{name}-', text)


def _themed(body: str) -> str:
    """Without the background, and with variables for colours."""
    body = re.sub(r'<g id="[^"]*-patch_1">.*?</g>\s*', "", body, count=1, flags=re.DOTALL)
    return re.sub(r'style="[^"]*"', _with_variables, body)


def _with_variables(style_attribute: re.Match[str]) -> str:
    text = style_attribute.group()
    for colour, variable in _THEMED.items():
        text = text.replace(colour, f"var({variable})")
    return text


def printable(text: str) -> str:
    """`text` without the control characters that XML does not allow."""
    return "".join(letter if letter >= " " else "\ufffd" for letter in text)
