"""How figures look and become SVG, PDF and PNG: the same bytes every time; in the page, its theme's colours."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import matplotlib as mpl
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import get_font_names

from reports.figures.compact import compacted

DPI = 72
"""One unit of the SVG is then one pixel of the page."""

PRINT_DPI = 200
"""Of the PNG: sharp at the width of a printed page."""

FONT_SIZE = 12.0

INK, MUTED, GRID, SURFACE = "#16181d", "#5f6673", "#dfe2e8", "#fffffe"

SERIES = ("#0067a8", "#c74e00", "#00805c", "#a4508b", "#8f6400", "#2f8fc4", "#6b6f78")
"""Okabe and Ito's colour-blind-safe hues, darkened until they read as thin lines on white."""

DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""A second and a third sign besides colour."""

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
    "pdf.fonttype": 42,
    "text.parse_math": False,
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
    "xtick.direction": "out",
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "xtick.major.size": 3.5,
    "ytick.major.size": 3.5,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 11.0,
    "lines.solid_capstyle": "round",
    "figure.facecolor": SURFACE,
}


_OTHER_SCRIPTS = ("Noto Sans Devanagari", "Noto Sans CJK SC", "Noto Sans Arabic", "Noto Sans Hebrew")
"""Fonts for letters that DejaVu lacks, where the machine has them. Text in SVG stays text for the reader's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """One picture in its forms."""

    title: str
    inline: str
    """For a page: no background, colours from the page's variables, ids that no other drawing has."""
    file: str
    """A file of its own: white background, fixed colours."""
    width: int
    """Pixels at natural size."""
    figure: Figure = field(compare=False, repr=False)
    """What it was drawn from, for `in_print`."""


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
        sns.set_theme(style="ticks", palette=SERIES, rc=_SETTINGS | {"font.family": _fonts()})
        with warnings.catch_warnings():
            # Text stays text in our SVG: a letter that no font here has is drawn by the reader's.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            yield


@cache
def _fonts() -> list[str]:
    """DejaVu Sans, which comes with matplotlib, and what this machine has for other scripts."""
    known = set(get_font_names())
    return ["DejaVu Sans", *(name for name in _OTHER_SCRIPTS if name in known)]


def sheet(
    width: int,
    height: int,
    margins: Margins,
    *,
    rows: int = 1,
    columns: int = 1,
    gap: int = 0,
    share_x: bool = True,
    share_y: bool = True,
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of `width` x `height` pixels with `rows` x `columns` axes, `gap` pixels apart, row by row.

    Axes of one column share x and those of one row share y, unless told not to.
    """
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    FigureCanvasSVG(figure)
    inner_width = (width - margins.left - margins.right - gap * (columns - 1)) / columns
    inner_height = (height - margins.top - margins.bottom - gap * (rows - 1)) / rows
    axes: list[Axes] = []
    for row in range(rows):
        for column in range(columns):
            left = margins.left + column * (inner_width + gap)
            bottom = margins.bottom + (rows - 1 - row) * (inner_height + gap)
            box = (left / width, bottom / height, inner_width / width, inner_height / height)
            above = axes[column] if share_x and row else None
            axes.append(figure.add_axes(box, sharex=above, sharey=axes[row * columns] if column and share_y else None))
    return figure, axes


def drawing(figure: Figure, name: str, title: str, description: str = "") -> Drawing:
    """`figure` as SVG. `name` makes its ids unique in a page; title and description are what a screen reader says."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :]
    text = _unique_ids(text, name)
    width, height = (round(float(size) * DPI) for size in figure.get_size_inches())
    words = f'<title id="{name}-title">{_escaped(title)}</title>'
    words += f'<desc id="{name}-desc">{_escaped(description)}</desc>' if description else ""
    spoken = f"{name}-title {name}-desc" if description else f"{name}-title"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="{spoken}">{words}'
    )
    body = text[text.index(">") + 1 :]
    inline, file = compacted(head + _themed(body)), compacted(head + body)
    return Drawing(title=title, inline=inline, file=file, width=width, figure=figure)


def in_print(drawn: Drawing) -> tuple[bytes, bytes]:
    """The same picture as PDF and as PNG, without the moment of drawing and the maker in them."""
    pdf, png = io.BytesIO(), io.BytesIO()
    with style():
        metadata = {"Title": printable(drawn.title), **dict.fromkeys(_UNTOLD)}
        drawn.figure.savefig(pdf, format="pdf", metadata=metadata)
        metadata = {"Title": _latin(drawn.title), "Software": None}
        drawn.figure.savefig(png, format="png", dpi=PRINT_DPI, metadata=metadata, pil_kwargs=_PACKED)
    return pdf.getvalue(), png.getvalue()


_PACKED = {"compress_level": 3}
"""A third of the time of PNG's usual level, for files that are a few per cent larger."""

_UNTOLD = ("CreationDate", "ModDate", "Creator", "Producer")


def _latin(text: str) -> str:
    """What a text chunk of a PNG can hold."""
    return text.encode("latin-1", "replace").decode("latin-1")


def _escaped(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _unique_ids(text: str, name: str) -> str:
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    return re.sub(r'xlink:href="#', f'xlink:href="#{name}-', text)


def renamed(inline: str, prefix: str) -> str:
    """A drawing for a page with `prefix` before its ids, where the page shows two of one name."""
    if not prefix:
        return inline
    spoken = re.sub(r'aria-labelledby="([^"]+)"', lambda found: f'aria-labelledby="{_each(found[1], prefix)}"', inline)
    return _unique_ids(spoken, prefix.rstrip("-"))


def _each(names: str, prefix: str) -> str:
    return " ".join(prefix + name for name in names.split(" "))


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
