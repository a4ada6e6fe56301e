"""Tables as LaTeX (booktabs): a document that compiles alone, and a bare tabular to `\\input`.

What is written comes out of a template in which every value is escaped. pdfLaTeX, XeLaTeX and LuaLaTeX set it; a table
with letters beyond Latin, such as Devanagari, needs LuaLaTeX and a font that has them, and its file says so.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from reports.formats import DASH, MINUS, NARROW_BLANK
from reports.tables.cells import Cell, Column, Table

_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "^": r"\textasciicircum{}",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "%": r"\%",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "-": "-{}",  # two of them would become one dash
    "*": r"\textasteriskcentered{}",
    "\u00a0": "~",
    NARROW_BLANK: r"\,",
    MINUS: r"\ensuremath{-}",
    DASH: r"\textendash{}",
    "—": r"\textemdash{}",
    "×": r"\ensuremath{\times}",
    "±": r"\ensuremath{\pm}",
    "√": r"\ensuremath{\surd}",
    "Δ": r"\ensuremath{\Delta}",
    "ε": r"\ensuremath{\varepsilon}",
    "°": r"\textdegree{}",
    "§": r"\S{}",
    "¶": r"\P{}",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "“": r"\textquotedblleft{}",
    "”": r"\textquotedblright{}",
    "‘": r"\textquoteleft{}",
    "’": r"\textquoteright{}",
    "…": r"\textellipsis{}",
    "ₖ": r"\ensuremath{_k}",
}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")

_PDFLATEX_LAST = 0x17F
"""The last letter of Latin Extended-A: up to it the T1 fonts of pdfLaTeX have them all."""


def escape(text: object) -> str:
    """`text` on one line with every sign that LaTeX would read as its own, or lacks, written as a command."""
    line = "".join(" " if sign in "\r\n\t" else sign for sign in str(text))
    found = "".join(_SIGNS.get(sign, sign) for sign in line if unicodedata.category(sign) not in ("Cc", "Cs"))
    return _RAISED_RUN.sub(lambda raised: rf"\ensuremath{{^{{{raised.group().translate(_RAISED)}}}}}", found)


def latex(table: Table, label: str) -> str:
    """`table` as a document that compiles on its own; `label` is what `\\ref` calls it."""
    return _render(table, label, document=True)


def tabular(table: Table, label: str) -> str:
    """`table` as a tabular alone, for `\\input` in a document that loads booktabs; caption and notes are comments."""
    return _render(table, label, document=False)


def beyond_latin(text: str) -> list[str]:
    """The letters in `text` that no font of pdfLaTeX has."""
    return sorted({sign for sign in text if ord(sign) > _PDFLATEX_LAST})


def _render(table: Table, label: str, *, document: bool) -> str:
    shown = {"table": table, "label": label, "alignment": _alignment(table), "rules": _rules(table)}
    # The document without a line about its engine holds all that is set, and no comments.
    plain = _template().render(**shown, document=True, engine=False)
    return _template().render(**shown, document=document, engine=bool(beyond_latin(plain)))


@cache
def _template() -> Template:
    environment = Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
        autoescape=False,
    )
    environment.filters |= {"heading": _heading, "cell": _cell, "comment": _comment, "reference": _reference}
    text = Path(__file__).with_name("table.tex.j2").read_text(encoding="utf-8")
    return environment.from_string(text)


class _Source(str):
    """LaTeX that our own code made."""

    __slots__ = ()


def _finalize(value: object) -> str:
    """Whatever a template puts out: escaped, unless it is LaTeX already."""
    return value if isinstance(value, _Source) else escape(value)


def _heading(column: Column) -> _Source:
    """The symbol with its subscript: $d_{\\mathrm{model}}$ for a letter, BLEU\\textsubscript{test} for a word."""
    return _Source(
        escape(column.symbol) + (rf"\textsubscript{{{escape(column.subscript)}}}" if column.subscript else "")
    )


def _cell(cell: Cell | None) -> _Source:
    """All that a cell displays; a note is small print."""
    if cell is None or cell.kind == "same":
        return _Source("")
    parts = [escape(cell.text) + (rf"\textsuperscript{{{escape(cell.marks)}}}" if cell.marks else "")]
    if cell.spread:
        parts.append(rf"{{\scriptsize {escape(cell.spread)}}}")
    if cell.note:
        parts.append(rf"{{\scriptsize ({escape(cell.note)})}}")
    return _Source(r"\,".join(parts))


def _comment(text: str) -> _Source:
    """`text` as comments; what is in it is never set."""
    return _Source("".join(" " if sign in "\r\n" else sign for sign in text))


def _reference(label: str) -> _Source:
    """A label that LaTeX can take: no sign of its own in it."""
    return _Source(re.sub(r"[^A-Za-z0-9:.-]+", "-", label))


def _alignment(table: Table) -> _Source:
    return _Source("l" + "".join("r" if column.numeric else "l" for column in table.columns))


def _rules(table: Table) -> _Source:
    """Rules under the headings of the blocks."""
    rules, first = "", 2
    for block, width in table.spans():
        if table.blocks.get(block):
            rules += rf"\cmidrule(lr){{{first}-{first + width - 1}}}"
        first += width
    return _Source(rules)
