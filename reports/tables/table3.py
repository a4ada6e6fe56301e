"""The table of a study in the shape of the paper's Table 3: changed cells, what was measured, what was published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from reports.formats import DASH, counted, fixed, listed, plain, signed
from reports.records.comparable import agreed, check_comparable, odd_runs
from reports.records.paper import Paper, PaperRow, load_paper
from reports.records.study import BASE, STATES, Run, Study, Variant
from reports.statistics.budgets import Budget
from reports.statistics.measures import Measure, direction
from reports.statistics.significance import table_tests
from reports.tables.cells import Cell, Column, Group, Row, Table
from reports.tables.columns import (
    BUDGET,
    DIRECTION,
    Published,
    Setting,
    cost_columns,
    final_scores,
    mean_cell,
    paper_columns,
    parameters_column,
    scores_at,
    settings_columns,
)
from reports.tables.marks import MACHINES, OF_MACHINES, marked, meaning

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

OTHER_BUDGET, INCOMPLETE, ODD = "†", "‡", "§"

_SEEDS = Column(key="seeds", symbol="seeds", hint="Finished runs; with the planned number where some did not finish.")


def main_table(study: Study, paper: Paper | None = None, budget: Budget | None = None, *, mixed: bool = False) -> Table:
    """The table of `study`: scores of the trained models, or, with a `budget`, of the models when it was spent.

    Raises CheckError when its scores cannot stand in one column, unless they are to stand there `mixed`, with marks.
    """
    check_comparable(study, mixed=mixed)
    builder = _Builder(study, paper or load_paper(), budget)
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
    rows = [row for group in groups for row in group.rows]
    used = {mark for row in rows for mark in row.marks} | {
        mark for row in rows for cell in row.cells.values() for mark in cell.marks
    }
    return Table(
        caption=builder.caption(),
        columns=tuple(builder.columns()),
        groups=tuple(groups),
        footnotes={mark: text for mark, text in builder.footnotes().items() if mark in used},
        title=study_title(study) + (f", {budget.label}" if budget else ""),
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

    def __init__(self, study: Study, paper: Paper, budget: Budget | None) -> None:
        self.study, self.paper, self.at = study, paper, budget
        self.base = base_settings(study)
        self.settings = settings_columns(study)
        self.scores = final_scores() if budget is None else scores_at(budget)
        self.costs = cost_columns(study) if budget is None else [parameters_column([study])]
        self.published = paper_columns() if any(v.id in paper.rows for v in study.variants) else []
        self.unit = str(self.base.get("train.budget_unit", "steps"))
        self.budget = Column(key=BUDGET.key, symbol=self.unit, block="model", hint=BUDGET.column.hint)
        self.odd = odd_runs(study)
        # The tests are of the trained models on the test side; what stands at a budget was measured on the other side.
        self.tests = table_tests(study) if budget is None else {}

    def columns(self) -> list[Column]:
        """All columns in order."""
        paper = [*(column.column for column in self.published), DIRECTION] if self.published else []
        settings = [setting.column for setting in self.settings]
        scores, costs = [column.column for column in self.scores.columns], [column.column for column in self.costs]
        return [*settings, self.budget, _SEEDS, *scores, self.scores.difference, *costs, *paper]

    def caption(self) -> str:
        """What the table shows, in words that stand alone."""
        sentences = [
            f"{study_title(self.study)}, in the shape of the paper's Table 3. A blank cell is as in base.",
            self._protocol(),
            "Values are means over the finished seeds of a row (column seeds); ± is half of the 95 % interval of the "
            "mean over seeds by Student's t, which needs two seeds. Δ BLEU is paired by seed.",
        ]
        if self.published:
            sentences.append(
                f"The columns on the right are the paper's own ({self.paper.task}, {self.paper.test}; BLEU "
                f"{self.paper.bleu_protocol}): another corpus, size and protocol, so compare differences to base, "
                "never levels."
            )
        return " ".join(sentences)

    def _protocol(self) -> str:
        """On what and how it was scored."""
        corpus = str(self.study.data.get("corpus", "unknown"))
        if self.at is not None:
            way = {"greedy": "greedy translations", "beam": "the beam search of the final scores"}
            decoded = way.get(str(self.base.get("train.valid_decode")), "translations made during training")
            return (
                f"Read off the learning curves {self.at.label}, interpolated between evaluations and never beyond the "
                f"last: perplexity and BLEU (sacreBLEU 13a, cased, {decoded}) on the validation side of {corpus}. A "
                "dash: not trained that far, or not evaluated."
            )
        beam, alpha = self.base.get("decode.beam"), self.base.get("decode.alpha")
        search = "" if beam is None or alpha is None else f", beam {plain(beam)}, length penalty {plain(alpha)}"
        count = agreed(self.study, "test", "sentences")
        return (
            f"Perplexity is taken on the validation side of {corpus}, BLEU (sacreBLEU 13a, cased{search}) on its test "
            f"side{f' ({fixed(int(count), 0)} sentences)' if count.isdigit() else ''}. Time is of training alone; "
            "speed counts target tokens without padding; FLOPs are our own count of matrix products."
        )

    def footnotes(self) -> dict[str, str]:
        """The meaning of the marks."""
        return meaning(self.tests.values()) | {
            OTHER_BUDGET: "trained on another budget than base: its difference to base is not at equal cost.",
            INCOMPLETE: "not all planned runs finished: values are over the seeds stated, and may move.",
            ODD: "scored or trained otherwise than most runs of the table "
            f"({', '.join(dict.fromkeys(self.odd.values()))}): its values do not compare with theirs.",
            MACHINES: OF_MACHINES,
        }

    def row(self, variant: Variant) -> Row:
        """One row."""
        runs = self.study.by_variant[variant.id]
        done = sum(run.done for run in runs)
        complete = bool(runs) and done == len(runs)
        marks = [OTHER_BUDGET] if self.at is None and self._other_budget(variant, runs) else []
        marks += [] if complete else [INCOMPLETE]
        marks += [ODD] if any(run.id in self.odd for run in runs) else []
        cells = {setting.column.key: self._setting_cell(setting, variant) for setting in self.settings}
        cells[self.budget.key] = self._budget_cell(variant)
        cells[_SEEDS.key] = _seeds_cell(runs, done)
        for column in (*self.scores.columns, *self.costs):
            cells[column.column.key] = column.cell(runs)
        cells |= self._comparison(variant, runs)
        return Row(
            id=variant.id,
            title=variant.title,
            cells=cells,
            base=variant.id == BASE,
            complete=complete,
            extra=self._extra(variant),
            marks=tuple(marks),
        )

    def _other_budget(self, variant: Variant, runs: Sequence[Run]) -> bool:
        """Whether the row was to spend, or did spend, another budget than base."""
        spent = {str(run.value("budget")) for run in runs if run.done}
        bases = {str(run.value("budget")) for run in self.study.by_variant.get(BASE, []) if run.done}
        return changes_budget(variant) or bool(spent and bases and spent != bases)

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
        """Difference to base with what the tests say of it, and what the paper printed."""
        cells: dict[str, Cell] = {}
        ours = Measure(values=(), runs=(), planned=len(runs))
        if variant.id != BASE and self.study.base is not None:
            ours = self.scores.difference_of(runs, self.study.by_variant[BASE])
            cell = mean_cell(ours, lambda value: signed(value, 1), spread=lambda half: fixed(half, 1))
            cells[self.scores.difference.key] = marked(cell, self.tests.get(variant.id))
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


def changes_budget(variant: Variant) -> bool:
    """Whether a row may spend another budget than base."""
    return bool({"train.budget", "train.budget_unit"} & variant.changes.keys())
