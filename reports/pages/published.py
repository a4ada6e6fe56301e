"""A study's report as it is published: the pages, figures as SVG and data as CSV, without the study beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from reports.exports.files import published_files
from reports.pages.markdown import table as in_markdown
from reports.pages.page import FIGURES, PAGE, TEXT, bench_of, drawings, render_page, render_text
from reports.pages.sections import Report, build
from reports.records.collection import load_studies
from reports.records.paper import load_paper
from reports.tables.cells import Table

REPORT = "report"
"""The folder of the pages."""
_SHOWN = ("seeds", "bleu", "difference", "perplexity", "parameters", "flops", "seconds")
"""Columns of the main table that the short one has."""


def published_report(study: Path, archive: str) -> Report:
    """The report of the study in this directory for readers who find its runs in the file `archive` beside `report/`.

    Raises CheckError when there is no study or its scores cannot stand in one table; UsageError for a search.
    """
    loaded = load_studies([study])
    return build(loaded, load_paper(), study / REPORT, bench=bench_of([study]), archive=f"../{archive}")


def published_pages(report: Report) -> Iterator[tuple[str, bytes]]:
    """The files of one study's published report by their names beside the archive. The same study, the same bytes."""
    section = report.sections[0]
    yield from published_files(section.study, report.named).items()
    yield f"{REPORT}/{PAGE}", render_page(report).encode()
    yield f"{REPORT}/{TEXT}", render_text(report).encode()
    for name, drawn in drawings(report):
        yield f"{REPORT}/{FIGURES}/{name}.svg", drawn.file.encode()


def short_table(report: Report) -> str:
    """The main table in Markdown with what was measured alone; every cell stands in `cells.csv` as it stands here."""
    whole = report.sections[0].tables[0].table
    columns = tuple(column for column in whole.columns if column.key in _SHOWN)
    short = Table(caption=whole.caption, columns=columns, groups=whole.groups, stub=whole.stub)
    signs = {mark for row in whole.rows for cell in row.cells.values() for mark in cell.marks}
    signs |= {mark for row in whole.rows for mark in row.marks}
    notes = [f"{mark} {text}" for mark, text in whole.footnotes.items() if mark in signs]
    return in_markdown(short) + "".join(f"\n{note}\n" for note in notes)
