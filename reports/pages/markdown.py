"""Text that means itself in Markdown, and tables of it."""

from __future__ import annotations

import re

from reports.tables.cells import Cell, Row, Table

_SPECIAL = re.compile(r"([\\`*_\[\]~|$])")
_FIRST = re.compile(r"^(?:[-+=#]+(?=\s|$)|\d+(?=[.)](?:\s|$)))")


def escape(text: object) -> str:
    """`text` on one line with every sign that Markdown or HTML would read as its own made harmless."""
    plain = re.sub(r"[\r\n]+", " ", str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _FIRST.sub(_harmless_start, _SPECIAL.sub(r"\\\1", plain))


def table(of: Table) -> str:
    """`of` as lines of a Markdown table, without its caption and footnotes."""
    lines = [
        _line([of.stub, *(column.full_heading for column in of.columns)]),
        "| " + " | ".join([":---", *("---:" if column.numeric else ":---" for column in of.columns)]) + " |",
    ]
    for row in of.rows:
        cells = [row.cells.get(column.key, Cell()).told for column in of.columns]
        lines.append(_line(cells, first=_name(row)))
    return "\n".join(lines) + "\n"


def _name(row: Row) -> str:
    name = escape(row.id) + "".join(escape(mark) for mark in row.marks)
    extra = f" ({escape(row.extra)})" if row.extra else ""
    return (f"**{name}**" if row.base else name) + extra


def _line(texts: list[str], first: str | None = None) -> str:
    cells = [*([] if first is None else [first]), *(escape(text) for text in texts)]
    return "| " + " | ".join(cells) + " |"


def _harmless_start(found: re.Match[str]) -> str:
    """A backslash before a sign; after a number it goes before the point that would make a list of it."""
    return found.group() + "\\" if found.group()[0].isdigit() else "\\" + found.group()
