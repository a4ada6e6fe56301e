"""What a table is made of: cells that carry a value, its display text and the runs it comes from.

Pages, Markdown and every later format are written from these; none of them formats a number of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reports.statistics.intervals import Interval

Kind = Literal["plain", "same", "absent", "bad"]
"""plain; same: as in base, left blank; absent: there is no such thing; bad: a run's state in place of a value."""

Block = Literal["row", "model", "ours", "paper"]
"""What a column belongs to: the row's name, what was changed, what was measured here, what the paper printed."""


BLOCKS: Mapping[Block, str] = {
    "row": "",
    "model": "changed from base",
    "ours": "this study",
    "paper": "the paper, Table 3",
}
"""What stands above the columns of each block."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One value of a table."""

    value: float | str | None = None
    """Unrounded; None where there is none."""
    text: str = ""
    """As displayed."""
    spread: str = ""
    """Half the width of `interval` as displayed, to stand after the text: "±0.4"; empty without one."""
    marks: str = ""
    """Signs of the table's footnotes that hold for this value alone, such as those of significance."""
    note: str = ""
    """Small print that belongs to the text and is never left out: "2/5 seeds"."""
    hint: str = ""
    """Further detail for those who ask: the values of all seeds."""
    runs: tuple[str, ...] = ()
    """Ids of the runs that the value comes from; empty for published values."""
    kind: Kind = "plain"
    interval: Interval | None = None
    """Of the mean over seeds; None where there is none."""
    n: int | None = None
    """Number of seeds, or of pairs of seeds, that the value is a mean of; None for what is no mean."""

    @property
    def told(self) -> str:
        """All that is displayed, in one line of plain text: "22.5 ±1.2* (2/5 seeds)"."""
        shown = " ".join(filter(None, (self.text, self.spread))) + self.marks
        return f"{shown} ({self.note})" if self.note else shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column; the heading is a symbol with a subscript, such as d with "model"."""

    key: str
    symbol: str
    subscript: str = ""
    unit: str = ""
    block: Block = "ours"
    numeric: bool = True
    share: bool = False
    """Its values are shares of one, shown in per cent."""
    hint: str = ""
    """One sentence that defines the column."""

    @property
    def heading(self) -> str:
        """The heading in one line of plain text: d_model."""
        return f"{self.symbol}_{self.subscript}" if self.subscript else self.symbol

    @property
    def full_heading(self) -> str:
        """The heading with its unit, and whose numbers they are where they are published: "BLEU_dev (13a), paper"."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.heading}{unit}{', paper' if self.block == 'paper' else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row and the cells it has; a column without a cell is blank."""

    id: str
    title: str
    cells: Mapping[str, Cell]
    base: bool = False
    complete: bool = True
    """Whether all planned runs finished."""
    extra: str = ""
    """Changes that have no column of their own."""
    marks: tuple[str, ...] = ()
    """Keys of the table's footnotes that hold for the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Rows that belong together, such as (A)."""

    label: str
    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Groups of rows under common columns."""

    caption: str
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    footnotes: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    """A heading of a few words; the caption says the rest."""
    stub: str = "row"
    """The heading of the rows' names."""
    blocks: Mapping[Block, str] = field(default_factory=lambda: dict(BLOCKS))
    """The headings above the headings."""

    @property
    def rows(self) -> list[Row]:
        """All rows in order."""
        return [row for group in self.groups for row in group.rows]

    def spans(self) -> list[tuple[Block, int]]:
        """Neighbouring columns of one block and their number, for a heading above the headings."""
        spans: list[tuple[Block, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.block:
                spans[-1] = (column.block, spans[-1][1] + 1)
            else:
                spans.append((column.block, 1))
        return spans
