"""The report of a study: one page that needs nothing else, its Markdown twin, and the figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from reports import provenance
from reports.cells import Table
from reports.drawing import SERIES
from reports.examples import Example, examples
from reports.figures import Picture, cost_picture, difference_picture
from reports.formats import moment
from reports.learning import Panel, learning_panels
from reports.markdown import escape
from reports.paper import Paper, load_paper
from reports.records import Run, Study, load_study
from reports.smoke import smoke_table
from reports.summary import Figure, Statement, headline, summary
from reports.tables import main_table, study_title
from repro.files import write_text

PAGE, TEXT, FIGURES = "index.html", "report.md", "figures"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a page or a text shows, in the order in which it is shown."""

    study: Study
    paper: Paper
    title: str
    headline: Sequence[Figure]
    summary: Sequence[Statement]
    table: Table
    unfinished: Sequence[Run]
    pictures: Sequence[Picture]
    panels: Sequence[Panel]
    smoke: Table | None
    examples: Sequence[Example]
    shared: provenance.Shared
    rows: Sequence[provenance.RowDetails]


def write_report(study_directory: Path, out: Path | None = None) -> Path:
    """Write the report of the study in `study_directory` into `out` (by default its `report/`); return the page's path.

    `index.html` holds everything; `report.md` and `figures/*.svg` are the same in parts. The same study gives the same
    bytes. Raises CheckError when there is no study, or when its scores cannot stand in one table.
    """
    out = out or study_directory / "report"
    report = build(study_directory, out)
    for name, content in sorted(figure_files(report).items()):
        write_text(out / FIGURES / name, content)
    write_text(out / TEXT, render_text(report))
    page = out / PAGE
    write_text(page, render_page(report))
    return page


def build(study_directory: Path, out: Path) -> Report:
    """Everything the report of a study in `study_directory` shows; links start from `out`."""
    study, paper = load_study(study_directory), load_paper()
    table = main_table(study, paper)
    pictures = (cost_picture(study), difference_picture(study, paper))
    return Report(
        study=study,
        paper=paper,
        title=study_title(study),
        headline=headline(study, paper),
        summary=summary(study, paper),
        table=table,
        unfinished=[run for run in study.trained if not run.done],
        pictures=[picture for picture in pictures if picture is not None],
        panels=learning_panels(study),
        smoke=smoke_table(study),
        examples=examples(study),
        shared=provenance.shared(study),
        rows=provenance.rows(study, out),
    )


def figure_files(report: Report) -> dict[str, str]:
    """The figures by file name, as SVG that stands alone."""
    return {f"{picture.key}.svg": picture.wide.file for picture in report.pictures} | {
        panel_file(panel): panel.drawing.file for panel in report.panels
    }


def panel_file(panel: Panel) -> str:
    """The file name of one panel of learning curves."""
    safe = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in panel.group)
    return f"curves-{panel.axis}-{panel.number}-{safe}.svg"


def render_page(report: Report) -> str:
    """The page. Everything in it is escaped, but for our own style sheet and drawings."""
    environment = _environment(autoescape=True)
    environment.filters["drawn"] = Markup
    return environment.from_string(_template("page.html.j2")).render(
        report=report,
        style=Markup(_template("page.css")),
        anchor=provenance.anchor,
        series=range(1, len(SERIES) + 1),
        axes=_axes(report),
    )


def render_text(report: Report) -> str:
    """The Markdown twin; figures are links to their files."""
    environment = _environment(autoescape=False)
    environment.filters["md"] = escape
    return environment.from_string(_template("report.md.j2")).render(
        report=report, figures=FIGURES, panel_file=panel_file, axes=_axes(report)
    )


def _axes(report: Report) -> Mapping[str, Sequence[Panel]]:
    """The panels of learning curves by what their x axis shows."""
    names = {"steps": "by steps", "flops": "by training FLOPs"}
    found = {name: [panel for panel in report.panels if panel.axis == axis] for axis, name in names.items()}
    return {name: panels for name, panels in found.items() if panels}


def _environment(*, autoescape: bool) -> Environment:
    environment = Environment(
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["moment"] = moment
    environment.globals["states_of"] = _states
    return environment


def _states(run: Run) -> str:
    """A run's state with its reason."""
    return f"{run.state}: {run.reason}" if run.reason else run.state


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
