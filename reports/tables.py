"""The table of a study in the shape of the paper's Table 3: changed cells, what was measured, what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reports.cells import Cell, Column, Group, Row, Table
from reports.columns import (
    BUDGET,
    DIFFERENCE,
    DIRECTION,
    Measured,
    Published,
    Setting,
    cost_columns,
    paper_columns,
    quality_columns,
    settings_columns,
)
from reports.comparable import check_comparable
from reports.formats import DASH, counted, listed, plain, signed
from reports.measures import Measure, bleu_on_test, difference, direction, measure
from reports.paper import Paper, PaperRow, load_paper
from reports.records import BASE, STATES, Run, Study, Variant

GROUPS: Mapping[str, str] = {
    "base": "",
    "A": "number of heads, equal work",
    "B": "size of the keys",
    "C": "size of the model",
    "D": "dropout and label smoothing",
    "E": "learned positions",
    "big": "",
    "scaling": "attention scores divided by √d_k, or not",
    "positions": "sinusoidal, learned or no positions",
    "baselines": "other families of models",
    "baseline": "other families of models",
}
"""The order and the titles of the groups; others follow, under their own names."""

OTHER_BUDGET, INCOMPLETE = "†", "‡"

_SEEDS = Column(key="seeds", symbol="seeds", hint="Finished runs; with the planned number where some did not finish.")


def main_table(study: Study, paper: Paper | None = None) -> Table:
    """The table of `study`. Raises CheckError when its scores cannot stand in one column."""
    check_comparable(study)
    builder = _Builder(study, paper or load_paper())
    order = list(GROUPS)
    labels = sorted(
        {variant.group for variant in study.variants},
        key=lambda label: (order.index(label) if label in GROUPS else len(order), label),
    )
    groups = [
        Group(
            label=group_label(label),
            title=GROUPS.get(label, ""),
            rows=tuple(builder.row(variant) for variant in study.variants if variant.group == label),
        )
        for label in labels
    ]
    used = {mark for group in groups for row in group.rows for mark in row.marks}
    return Table(
        caption=builder.caption(),
        columns=tuple(builder.columns()),
        groups=tuple(groups),
        footnotes={mark: text for mark, text in builder.footnotes().items() if mark in used},
    )


def base_settings(study: Study) -> Mapping[str, Any]:
    """Base's configuration by dotted key: of its runs, or as planned."""
    return (study.settings(BASE) if study.base is not None else {}) or study.planned_base


def states(runs: Sequence[Run]) -> str:
    """How many of `runs` are in which state, finished ones left out: "1 failed, 2 missing"."""
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state] and state != "done")


def study_title(study: Study) -> str:
    """What the study is, in one line: "Table 3 and scaling at scale smoke"."""
    names = ["Table 3" if part == "table3" else part for part in study.table.split("+")]
    title = f"{listed(names)} at scale {study.scale}"
    return title[:1].upper() + title[1:]


def group_title(group: str) -> str:
    """What a group is about, in one line."""
    label, title = group_label(group), GROUPS.get(group, "")
    return f"{label}{'' if label != group else ':'} {title}" if title else label


def group_label(group: str) -> str:
    """How a group is called: the paper's letters in brackets."""
    return f"({group})" if len(group) == 1 else group


class _Builder:
    """Makes the rows of one study's table."""

    def __init__(self, study: Study, paper: Paper) -> None:
        self.study, self.paper = study, paper
        self.base = base_settings(study)
        self.settings = settings_columns(study)
        self.quality = quality_columns()
        self.costs = cost_columns(study)
        self.published = paper_columns() if any(v.id in paper.rows for v in study.variants) else []
        self.unit = str(self.base.get("train.budget_unit", "steps"))
        self.budget = Column(key=BUDGET.key, symbol=self.unit, block="model", hint=BUDGET.column.hint)

    def columns(self) -> list[Column]:
        """All columns in order."""
        paper = [*(column.column for column in self.published), DIRECTION] if self.published else []
        settings = [setting.column for setting in self.settings]
        measured = [column.column for column in self.quality], [column.column for column in self.costs]
        return [*settings, self.budget, _SEEDS, *measured[0], DIFFERENCE, *measured[1], *paper]

    def caption(self) -> str:
        """What the table shows, in words that stand alone."""
        text = (
            f"{study_title(self.study)}, in the shape of the paper's Table 3. A blank "
            "cell is as in base. Measured values are means over the finished seeds of a row. Perplexity is taken on "
            "the validation side, BLEU (sacreBLEU 13a, cased) on the test side."
        )
        if self.published:
            text += (
                f" The columns on the right are the paper's own ({self.paper.task}, {self.paper.test}; BLEU "
                f"{self.paper.bleu_protocol}): another corpus, size and protocol, so compare differences to base, "
                "never levels."
            )
        return text

    def footnotes(self) -> dict[str, str]:
        """The meaning of the marks."""
        return {
            OTHER_BUDGET: "trained on another budget than base: its difference to base is not at equal cost.",
            INCOMPLETE: "not all planned runs finished: values are over the seeds stated, and may move.",
        }

    def row(self, variant: Variant) -> Row:
        """One row."""
        runs = self.study.by_variant[variant.id]
        done = sum(run.done for run in runs)
        complete = bool(runs) and done == len(runs)
        marks = [OTHER_BUDGET] if changes_budget(variant) else []
        cells = {setting.column.key: self._setting_cell(setting, variant) for setting in self.settings}
        cells[self.budget.key] = self._budget_cell(variant)
        cells[_SEEDS.key] = _seeds_cell(runs, done)
        for column in (*self.quality, *self.costs):
            cells[column.column.key] = _measured_cell(column, runs)
        cells |= self._comparison(variant, runs)
        return Row(
            id=variant.id,
            title=variant.title,
            cells=cells,
            base=variant.id == BASE,
            complete=complete,
            extra=self._extra(variant),
            marks=(*marks, *([] if complete else [INCOMPLETE])),
        )

    def _setting_cell(self, setting: Setting, variant: Variant) -> Cell:
        if variant.id == BASE:
            value = self.base.get(setting.key)
        elif setting.key in variant.changes:
            value = variant.changes[setting.key]
        else:
            settings = self.study.settings(variant.id)
            if settings and setting.key not in settings:  # another family of models
                return Cell(text=DASH, kind="absent", hint="this family has none")
            return Cell(kind="same")
        return Cell(kind="same") if value is None else Cell(value=value, text=setting.shown(value))

    def _budget_cell(self, variant: Variant) -> Cell:
        if variant.id != BASE and not changes_budget(variant):
            return Cell(kind="same")
        amount = variant.changes.get("train.budget", self.base.get("train.budget"))
        unit = str(variant.changes.get("train.budget_unit", self.unit))
        if amount is None:
            return Cell(kind="same")
        return Cell(value=amount, text=plain(amount), note="" if unit == self.unit else unit)

    def _extra(self, variant: Variant) -> str:
        """Changes without a column of their own: "norm pre, max_positions 512"."""
        shown = {setting.key for setting in self.settings} | {"train.budget", "train.budget_unit", "model.family"}
        others = [(key, value) for key, value in variant.changes.items() if key not in shown and value is not None]
        if "model.family" in variant.changes:  # its sizes have other names: they stand with its runs
            others = [(key, value) for key, value in others if not key.startswith("model.")]
        texts = [f"{key.rsplit('.', 1)[-1]} {plain(value)}" for key, value in others]
        twins = {run.same_as for run in self.study.by_variant[variant.id]} - {None}
        if twins:
            names = dict.fromkeys(run.variant for run in self.study.runs if run.id in twins)
            texts.append(f"the same runs as {listed(list(names))}")
        return ", ".join(texts)

    def _comparison(self, variant: Variant, runs: Sequence[Run]) -> dict[str, Cell]:
        """Difference to base, and what the paper printed."""
        cells: dict[str, Cell] = {}
        ours = Measure(values=(), runs=(), planned=len(runs))
        if variant.id != BASE and self.study.base is not None:
            ours = difference(runs, self.study.by_variant[BASE], bleu_on_test)
            cells[DIFFERENCE.key] = _cell(ours, lambda value: signed(value, 1))
        if (row := self.paper.rows.get(variant.id)) is None:
            return cells
        for column in self.published:
            cells[column.column.key] = _published_cell(column, row, variant)
        if word := direction(ours, row.bleu_difference):
            cells[DIRECTION.key] = Cell(value=word, text=word, note=ours.partial, runs=ours.runs)
        return cells


def _published_cell(column: Published, row: PaperRow, variant: Variant) -> Cell:
    number = column.number(row)
    if number is None or (variant.id == BASE and column.column.key == "paper.difference"):
        return Cell(kind="same")
    return Cell(value=number, text=column.shown(number))


def _seeds_cell(runs: Sequence[Run], done: int) -> Cell:
    names = tuple(run.id for run in runs)
    if runs and done == len(runs):
        return Cell(value=done, text=str(done), runs=names)
    return Cell(value=done, text=f"{done}/{counted(len(runs), 'seed')}", note=states(runs), runs=names, kind="bad")


def _measured_cell(column: Measured, runs: Sequence[Run]) -> Cell:
    cell = _cell(measure(runs, column.quantity), column.shown)
    return replace(cell, note="", hint="") if column.same_for_all_seeds else cell


def _cell(values: Measure, shown: Callable[[float], str]) -> Cell:
    """The mean, never bare when a planned run is missing from it."""
    if values.mean is None:
        return Cell(text=DASH, kind="absent")
    each = ", ".join(shown(value) for value in values.values)
    return Cell(
        value=values.mean,
        text=shown(values.mean),
        note=values.partial,
        hint=f"seeds: {each}" if values.n > 1 else "",
        runs=values.runs,
    )


def changes_budget(variant: Variant) -> bool:
    """Whether a row may spend another budget than base."""
    return bool({"train.budget", "train.budget_unit"} & variant.changes.keys())
