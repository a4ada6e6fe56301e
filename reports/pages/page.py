"""The report of studies: one page that needs nothing else, its Markdown twin, and tables, data and figures as files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from reports.claims.verdicts import in_words
from reports.exports.files import write_exports
from reports.figures.drawing import SERIES, Drawing, in_print
from reports.figures.learning import AXES
from reports.pages import markdown, templating
from reports.pages.sections import Report, build
from reports.pages.templates import TEMPLATES
from reports.pages.written import Written
from reports.records.collection import load_studies
from reports.records.paper import load_paper
from reports.records.study import Run
from repro.errors import UsageError
from repro.files import read_json

PAGE, TEXT, FIGURES = "index.html", "report.md", "figures"

LAYERS = "bench-layers.json"
"""The document of `ablate bench layers` in a study's directory, for Table 1."""


def write_report(studies: Path | Sequence[Path], out: Path | None = None, *, mixed: bool = False) -> Path:
    """Write the report of the studies in these directories into `out`; return the page's path.

    One study's report goes into its `report/` unless `out` is given; several need an `out`. Studies of one experiment
    are shown as one. `index.html` holds everything; `report.md` is its twin in text; `figures/` has every figure as
    SVG, PDF and PNG, `tables/` the tables, `data/` the numbers. The same studies give the same bytes. What an earlier
    report left in `out` and this one does not write is removed. Raises CheckError when there is no study, or when its
    scores cannot stand in one table and are not to stand there `mixed`; UsageError without an `out` for several.
    """
    paths = [studies] if isinstance(studies, Path) else list(studies)
    if not paths:
        raise UsageError("no study is named", where="report", fix="name the directory of a study")
    loaded = load_studies(paths)
    if out is None:
        if len(paths) > 1:
            raise UsageError("several studies and no place for their report", where="report", fix="name one with --out")
        out = paths[0] / "report"
    report = build(loaded, load_paper(), out, bench=bench_of(paths), mixed=mixed)
    written = Written(out)
    for name, content in figure_files(report):
        written.write(f"{FIGURES}/{name}", content)
    written.note(write_exports(loaded, out, tables=report.named, mixed=mixed))
    written.write(TEXT, render_text(report))
    written.write(PAGE, render_page(report))
    written.finish()
    return out / PAGE


def bench_of(paths: Sequence[Path]) -> Mapping[str, Any] | None:
    """What was measured of layers, from the first study that holds it."""
    found = next((path / LAYERS for path in paths if (path / LAYERS).is_file()), None)
    return read_json(found) if found is not None else None


def figure_files(report: Report) -> Iterator[tuple[str, bytes | str]]:
    """The figures by file name: as SVG that stands alone, as PDF and as PNG."""
    for name, drawn in drawings(report):
        pdf, png = in_print(drawn)
        yield from ((f"{name}.svg", drawn.file), (f"{name}.pdf", pdf), (f"{name}.png", png))


def drawings(report: Report) -> Iterator[tuple[str, Drawing]]:
    """The figures by file name without its ending."""
    for section in report.sections:
        pictures = [*section.pictures, *([section.systems] if section.systems is not None else [])]
        pictures += [page.picture for page in section.probes]
        for picture in pictures:
            yield section.file(picture.key), picture.wide
        for panel in section.panels:
            yield section.curves_file(panel), panel.file()


def render_page(report: Report) -> str:
    """The page. Everything in it is escaped, but for our own style sheet, script and drawings."""
    environment = _environment(autoescape=True)
    environment.globals |= {"link_of": report.link_of, "trail_of": report.trail_of, "in_words": in_words}
    return environment.get_template("page.html.j2").render(
        report=report,
        style=Markup(_text("page.css")),
        script=Markup(_text("page.js")),
        trails=Markup(report.trails_document()),
        series=range(1, len(SERIES) + 1),
        axes=AXES,
    )


def render_text(report: Report) -> str:
    """The Markdown twin; figures are links to their files."""
    environment = _environment(autoescape=False)
    environment.filters |= {"md": markdown.escape, "md_table": markdown.table}
    return environment.get_template("report.md.j2").render(report=report, figures=FIGURES)


def _environment(*, autoescape: bool) -> Environment:
    environment = templating.environment(autoescape=autoescape)
    environment.globals["states_of"] = _states
    return environment


def _states(run: Run) -> str:
    """A run's state with its reason."""
    return f"{run.state}: {run.reason}" if run.reason else run.state


def _text(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
