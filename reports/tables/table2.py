"""Table 2: BLEU against training cost for all families, with the published systems on the same scales but apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from reports.formats import exponent, fixed, listed, power, scientific
from reports.records.comparable import check_runs_comparable, odd_runs
from reports.records.machines import device, kind, precision
from reports.records.paper import Paper, PaperSystem
from reports.records.study import BASE, Run, Study, Variant
from reports.statistics.measures import bleu_on_test, measure
from reports.tables.cells import Cell, Column, Group, Row, Table
from reports.tables.columns import SECONDS, Measured, flops_column, means, parameters_column
from reports.tables.marks import MACHINES, OF_MACHINES
from reports.tables.table3 import GROUPS, INCOMPLETE, ODD, OTHER_BUDGET, changes_budget, states, study_title
from repro.accounting.peaks import PAPER_SUSTAINED_FLOPS, paper_method_flops

_FAMILIES = (BASE, "big")
_BASELINES = ("baselines", "baseline")

_BLEU = Measured(
    column=Column(key="bleu", symbol="BLEU", subscript="test", unit="13a", hint="sacreBLEU, 13a, cased, test side."),
    of=lambda runs: measure(runs, bleu_on_test),
    shown=lambda value: fixed(value, 1),
    spread=True,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """The FLOP/s that a kind of device is taken to sustain, for the paper's method."""

    device: str
    flops: float
    basis: str
    """Where it comes from, in words."""


def families(study: Study) -> list[Variant]:
    """The rows that Table 2 is about: base, big and the other families."""
    return [v for v in study.variants if v.id in _FAMILIES or v.group in _BASELINES or "model.family" in v.changes]


def cost_table(studies: Sequence[Study], paper: Paper, *, mixed: bool = False) -> Table:
    """BLEU and training cost, by our count and by the paper's method, of every family in `studies`.

    Raises CheckError when scores cannot stand in one column, unless they are to stand there `mixed`, with marks.
    """
    if not mixed:
        check_runs_comparable([run for study in studies for run in study.finished], "Table 2")
    rates = sustained_rates(studies)
    columns = [parameters_column(studies), _BLEU, flops_column(studies), _method_column(studies, rates), SECONDS]
    groups = [_group(study, columns, alone=len(studies) == 1) for study in studies]
    published, scales = _published_columns()
    systems = tuple(_published_row(system, scales) for system in paper.systems)
    return Table(
        title="BLEU against training cost, in the shape of the paper's Table 2",
        caption=_caption(paper, rates),
        columns=(*(column.column for column in columns), *published),
        groups=(
            *(group for group in groups if group.rows),
            Group(label="published", title="as printed in Table 2: WMT 2014, newstest2014, full size", rows=systems),
        ),
        footnotes=_footnotes(groups),
        stub="model",
        blocks={"row": "", "model": "", "ours": "this study", "paper": "published: other data, other scale"},
    )


def sustained_rates(studies: Sequence[Study]) -> dict[str, Rate]:
    """The rate of every kind of device that finished runs were trained on.

    The paper's own figure for a GPU that it names; for any other device the highest rate that a run in `studies` kept
    up over its training, padding counted: a figure from below, and never another device's.
    """
    rates: dict[str, Rate] = {}
    for study in studies:
        for run in study.finished:
            name, known, reached = kind(run), _printed_rate(run), _reached(run)
            if known is not None:
                rates[name] = Rate(device=name, flops=known, basis="the paper's figure (footnote 5)")
            elif reached is not None and (name not in rates or reached > rates[name].flops):
                rates[name] = Rate(device=name, flops=reached, basis="the highest that a run kept up here")
    return rates


def method_flops(run: Run, rates: Mapping[str, Rate]) -> float | None:
    """Training cost by the paper's method: seconds x devices x sustained FLOP/s; None where a part is not known."""
    seconds, rate = run.number("train_seconds"), rates.get(kind(run))
    if not run.done or seconds is None or rate is None:
        return None
    return paper_method_flops(seconds, devices(run), rate.flops)


def devices(run: Run) -> int:
    """Devices that the run trained on at once."""
    found = run.number("devices")
    return int(found) if found else 1


def _printed_rate(run: Run) -> float | None:
    """The paper's figure, which is for single precision."""
    found = re.search(rf"\b({'|'.join(PAPER_SUSTAINED_FLOPS)})\b", device(run))
    return PAPER_SUSTAINED_FLOPS[found.group(1)] if found and precision(run) == "fp32" else None


def _reached(run: Run) -> float | None:
    flops, seconds = run.number("padded_flops") or run.number("train_flops"), run.number("train_seconds")
    return flops / seconds / devices(run) if flops and seconds else None


def _method_column(studies: Sequence[Study], rates: Mapping[str, Rate]) -> Measured:
    raised = exponent(means(studies, lambda run: method_flops(run, rates)))
    return Measured(
        column=Column(
            key="method",
            symbol="FLOPs",
            subscript="train",
            unit=f"paper's method, ×{power(raised)}",
            hint="Training seconds × devices × sustained FLOP/s of one device (section 6.1 of the paper); the caption "
            "says how the rate was taken.",
        ),
        of=lambda runs: measure(runs, lambda run: method_flops(run, rates)),
        shown=lambda value: fixed(value / 10.0**raised, 2),
    )


def _group(study: Study, columns: Sequence[Measured], *, alone: bool) -> Group:
    order = list(GROUPS)
    rows = sorted(families(study), key=lambda v: order.index(v.group) if v.group in GROUPS else len(order))
    title = study_title(study)
    return Group(
        label=title if alone else study.name,
        title="" if alone else title,
        rows=tuple(_row(study, variant, columns, odd_runs(study)) for variant in rows),
    )


def _row(study: Study, variant: Variant, columns: Sequence[Measured], odd: Mapping[str, str]) -> Row:
    runs = study.by_variant[variant.id]
    complete = bool(runs) and all(run.done for run in runs)
    marks = [OTHER_BUDGET] if changes_budget(variant) else []
    marks += [ODD] if any(run.id in odd for run in runs) else []
    return Row(
        id=variant.id,
        title=variant.title,
        cells={column.column.key: column.cell(runs) for column in columns},
        base=variant.id == BASE,
        complete=complete,
        extra=states(runs),
        marks=(*marks, *([] if complete else [INCOMPLETE])),
    )


_Published = tuple[Callable[[PaperSystem], float | None], Callable[[float], str]]


def _published_columns() -> tuple[list[Column], dict[str, _Published]]:
    """Columns of the published systems, and how a cell of each comes from a system."""

    def bleu(pair: str, number: Callable[[PaperSystem], float | None]) -> tuple[Column, _Published]:
        column = Column(key=f"paper.bleu.{pair}", symbol="BLEU", subscript=pair, unit="tokenised", block="paper")
        return column, (number, lambda value: f"{value:g}" if len(f"{value:g}") > 4 else fixed(value, 1))

    def flops(pair: str, number: Callable[[PaperSystem], float | None]) -> tuple[Column, _Published]:
        column = Column(key=f"paper.flops.{pair}", symbol="FLOPs", subscript=pair, unit="paper's method", block="paper")
        return column, (number, lambda value: scientific(value, 1))

    found = [
        bleu("en-de", lambda system: system.bleu_german),
        bleu("en-fr", lambda system: system.bleu_french),
        flops("en-de", lambda system: system.flops_german),
        flops("en-fr", lambda system: system.flops_french),
    ]
    hint = "As printed in Table 2 of the paper: WMT 2014, newstest2014."
    columns = [replace(column, hint=hint) for column, _ in found]
    return columns, {column.key: published for column, published in found}


def _published_row(system: PaperSystem, columns: dict[str, _Published]) -> Row:
    cells = {
        key: Cell(value=value, text=shown(value))
        for key, (number, shown) in columns.items()
        if (value := number(system)) is not None
    }
    return Row(id=system.model, title=system.model, cells=cells)


def _caption(paper: Paper, rates: Mapping[str, Rate]) -> str:
    text = (
        "BLEU on the test side (sacreBLEU 13a, cased) and the cost of training, for each family of models; means over "
        "the finished seeds, ± is half of the 95 % interval of the mean over seeds by Student's t. Cost is given twice "
        "and never mixed: our count of the operations in matrix products, and the paper's method, "
        f"{paper.cost_rule}."
    )
    if rates:
        told = [f"{scientific(rate.flops)} FLOP/s on {rate.device} ({rate.basis})" for rate in rates.values()]
        text += (
            f" Sustained rate: {listed(told)}. The rate is one for all models of a device, so a model whose operations "
            "suit the device less costs more by the paper's method than by count."
        )
    return (
        f"{text} The published systems below are those of the paper's Table 2, trained on WMT 2014 at full size, BLEU "
        f"{paper.bleu_protocol}, cost by the paper's method: other data, another scale and another protocol, so their "
        f"levels do not compare with ours. Of the published numbers: {paper.systems_note}."
    )


def _footnotes(groups: Sequence[Group]) -> dict[str, str]:
    rows = [row for group in groups for row in group.rows]
    used = {mark for row in rows for mark in row.marks}
    used |= {mark for row in rows for cell in row.cells.values() for mark in cell.marks}
    meaning = {
        OTHER_BUDGET: "trained on another budget than base.",
        INCOMPLETE: "not all planned runs finished: values are over the seeds stated, and may move.",
        ODD: "scored or trained otherwise than most runs: its values do not compare with theirs.",
        MACHINES: OF_MACHINES,
    }
    return {mark: text for mark, text in meaning.items() if mark in used}
