"""What a page on a mechanism is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from reports.claims.mechanisms import Judged
from reports.figures.parts import Picture
from reports.formats import DASH, fixed, significant


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """A small table of texts; `heat` shades cells by a share of one."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """Columns at the left that hold words; the others hold numbers."""
    heat: Sequence[Sequence[float | None]] | None = None
    """[row][column after the words], 0 to 1."""
    folded: str = ""
    """If given, the table is behind this line until it is asked for, with its neighbours behind the same line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One probe's part of a page."""

    name: str
    title: str
    words: Sequence[str]
    """What was found, in sentences made from the numbers."""
    picture: Picture
    grids: Sequence[Grid]
    verdicts: Sequence[Judged]
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """Tables behind one line, or in sight where the line is empty."""

    line: str
    grids: Sequence[Grid]


def folds(grids: Sequence[Grid]) -> list[Fold]:
    """`grids` in their order, neighbours behind the same line together."""
    return [Fold(line=line, grids=list(found)) for line, found in groupby(grids, lambda grid: grid.folded)]


def number(value: float | None, digits: int = 3) -> str:
    """`value` with so many significant digits; a dash for none."""
    return DASH if value is None else significant(value, digits)


def decimals(value: float | None, digits: int) -> str:
    """`value` with so many decimals; a dash for none."""
    return DASH if value is None else fixed(value, digits)


def compared(a: float, b: float, *, close: float = 0.05) -> str:
    """How `a` stands to `b`: "lower than", "about as high as" (within a share `close` of the larger), "higher than"."""
    if abs(a - b) <= close * max(abs(a), abs(b)):
        return "about as high as"
    return "lower than" if a < b else "higher than"
