"""What a report shows, gathered before anything is written: a section a study, and what all studies share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.claims.verdicts import Verdict, gap_in_scale, standing, verdicts
from reports.exports.files import file_suffixes, named_tables
from reports.figures.learning import Panel, bands_words, learning_panels
from reports.figures.parts import Picture
from reports.figures.pictures import pictures
from reports.figures.systems import systems_picture
from reports.formats import counted, listed
from reports.pages import provenance
from reports.pages.examples import Example, examples
from reports.pages.summary import Figure, Statement, headline, summary
from reports.probes.pages import pages_of
from reports.probes.parts import Page
from reports.records.paper import Paper
from reports.records.study import Run, Study
from reports.statistics.budgets import budgets
from reports.tables.cells import Cell, Row, Table
from reports.tables.smoke import smoke_table
from reports.tables.table3 import study_title


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetTable:
    """The main table at one budget, and how the switch calls it."""

    name: str
    table: Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """All that is shown of one study."""

    prefix: str
    """Before every id of this study in the page; empty where it is the only one."""
    suffix: str
    """After every file name of this study; empty where it is the only one."""
    study: Study
    title: str
    headline: Sequence[Figure]
    summary: Sequence[Statement]
    verdicts: Sequence[Verdict]
    standing: str
    """At what level the verdicts stand, in words."""
    gap: str
    """How far the study is from the paper, in words."""
    tables: Sequence[BudgetTable]
    """The main table first, then the same at equal budgets."""
    unfinished: Sequence[Run]
    cost: Table | None
    """Table 2; None where no family of it was planned."""
    systems: Picture | None
    """Table 2 as a figure; None without a finished run."""
    pictures: Sequence[Picture]
    panels: Sequence[Panel]
    bands: str
    """What the bands of the learning curves are."""
    smoke: Table | None
    examples: Sequence[Example]
    probes: Sequence[Page]
    """What was measured of mechanisms, where it was."""
    shared: provenance.Shared
    rows: Sequence[provenance.RowDetails]

    @property
    def broken_off(self) -> list[Run]:
        """The runs that were begun and did not finish."""
        return [run for run in self.unfinished if run.state != "missing"]

    @property
    def not_begun(self) -> Mapping[str, str]:
        """Rows with runs that nobody began, and the seeds of these: "2 and 3"."""
        missing: dict[str, list[str]] = {}
        for run in self.unfinished:
            if run.state == "missing":
                missing.setdefault(run.variant, []).append(str(run.seed))
        return {variant: f"seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}" for variant, seeds in missing.items()}

    @property
    def signature(self) -> str:
        """The signature of BLEU; empty before a run has finished."""
        return self.shared.facts.get("BLEU signature", "")

    def anchor(self, variant: str) -> str:
        """The id of a row's runs in the page."""
        return self.prefix + provenance.anchor(variant)

    def file(self, key: str) -> str:
        """The file name of a figure, without its ending."""
        return f"{key}{self.suffix}"

    def curves_file(self, panel: Panel) -> str:
        """The file name of the learning curves of one group, without its ending."""
        safe = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in panel.group)
        return self.file(f"curves-{panel.number}-{safe}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """The way from a cell to a run."""

    number: int
    """Of the run, over all studies of the report."""
    variant: str
    anchor: str
    """The id in the page of its row's runs."""
    run: provenance.RunDetails


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that a page or a text shows."""

    paper: Paper
    title: str
    sections: Sequence[Section]
    complexity: Table
    """Table 1."""
    named: Mapping[str, Table]
    """All tables by the names of their files."""
    trails: Mapping[str, Trail]
    """Where each run is, by its id."""
    archive: str = ""
    """Where the run directories are packed, for a report that is read without them; see `reports.pages.published`."""

    @property
    def alone(self) -> bool:
        """Whether it is about one study."""
        return len(self.sections) == 1

    def link_of(self, row: Row) -> str:
        """The id of the runs of a table's row; empty for a row that has none here, such as a published one."""
        runs = (run for cell in row.cells.values() for run in cell.runs)
        found = next((self.trails[run].anchor for run in runs if run in self.trails), "")
        if found or not self.alone:
            return found
        planned = any(variant.id == row.id for variant in self.sections[0].study.variants)
        return self.sections[0].anchor(row.id) if planned else ""

    def trail_of(self, cell: Cell) -> str:
        """The numbers in `trails_document` of the runs that a cell comes from; empty for a published value."""
        found = {self.trails[run].number for run in cell.runs if run in self.trails}
        return " ".join(map(str, sorted(found)))

    def trails_document(self) -> str:
        """Every run with its row, seed, directory, link, place in the page and MLflow run, as JSON for a page."""
        rows = [
            [trail.variant, trail.run.seed, trail.run.id, trail.run.link, trail.anchor, trail.run.mlflow]
            for trail in self.trails.values()
        ]
        return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def build(
    studies: Sequence[Study],
    paper: Paper,
    out: Path,
    *,
    bench: Mapping[str, Any] | None = None,
    mixed: bool = False,
    archive: str = "",
) -> Report:
    """Everything that the report of `studies` shows; links start from the directory `out`.

    `archive`: where runs are to be found by readers who have no run directories; empty: in these.
    """
    alone = len(studies) == 1
    tables = named_tables(studies, bench=bench, mixed=mixed)
    sections = [
        _section(
            study, paper, "" if alone else f"s{number}-", suffix, tables, provenance.rows(study, out, archive=archive)
        )
        for number, (study, suffix) in enumerate(zip(studies, file_suffixes(studies), strict=True), 1)
    ]
    title = (
        sections[0].title
        if alone
        else f"{counted(len(studies), 'study', 'studies')}: " + listed([study.name for study in studies])
    )
    return Report(
        paper=paper,
        title=title,
        sections=sections,
        complexity=tables["table1"],
        named=tables,
        trails=_trails(sections),
        archive=archive,
    )


def _trails(sections: Sequence[Section]) -> dict[str, Trail]:
    found = [(section.anchor(row.id), row.id, run) for section in sections for row in section.rows for run in row.runs]
    return {
        run.key: Trail(number=number, variant=variant, anchor=anchor, run=run)
        for number, (anchor, variant, run) in enumerate(found)
    }


def _section(
    study: Study,
    paper: Paper,
    prefix: str,
    suffix: str,
    tables: Mapping[str, Table],
    rows: Sequence[provenance.RowDetails],
) -> Section:
    found, probes = verdicts(study, paper), pages_of(study.path)
    return Section(
        prefix=prefix,
        suffix=suffix,
        study=study,
        title=study_title(study),
        headline=headline(study, found),
        summary=summary(study, paper, found, probes),
        verdicts=found,
        standing=standing(found),
        gap=gap_in_scale(study, paper),
        tables=_budget_tables(study, suffix, tables),
        unfinished=[run for run in study.trained if not run.done],
        cost=tables.get(f"table2{suffix}"),
        systems=systems_picture(study, paper),
        pictures=pictures(study, paper),
        panels=learning_panels(study),
        bands=bands_words(study),
        smoke=smoke_table(study),
        examples=examples(study),
        probes=probes,
        shared=provenance.shared(study),
        rows=rows,
    )


def _budget_tables(study: Study, suffix: str, tables: Mapping[str, Table]) -> list[BudgetTable]:
    """The main table, and the same at each equal budget."""
    name = f"table3{suffix}"
    found = [BudgetTable(name="whole budget", table=tables[name])]
    at = [(budget.label, f"{name}-at-equal-{budget.axis}") for budget in budgets(study)]
    return found + [BudgetTable(name=label, table=tables[key]) for label, key in at if key in tables]
