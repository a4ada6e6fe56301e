"""The section on the smoke language: exact translations, agreement by distance, particles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.formats import DASH, fixed
from reports.records.study import BASE, Run, Study, Variant, at
from reports.statistics.measures import measure
from reports.tables.cells import Cell, Column, Group, Row, Table

_WHERE = ("test", "smoke")
_AGREEMENT = "agreement_by_distance"
_TITLES = {"exact_match": "exact", "particle_accuracy": "particles"}
_HINTS = {
    "exact_match": "Share of test sentences translated without any fault; every source has one right translation.",
    "particle_accuracy": "Share of separable particles that stand in the right place.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """One column: a share of one, at a path in the analysis."""

    path: tuple[str, ...]
    column: Column

    def of(self, run: Run) -> float | None:
        """The share of one run."""
        return run.number(*_WHERE, *self.path)


def smoke_table(study: Study) -> Table | None:
    """Shares of right translations by row, in per cent; None when the study is not about the smoke language."""
    shares = _shares([run for run in study.finished if isinstance(run.value(*_WHERE), Mapping)])
    if not shares:
        return None
    rows = [_row(study, variant, shares) for variant in study.variants]
    return Table(
        caption="The smoke language has one right translation for every source. Shares of the test side in per "
        "cent, means over the finished seeds. Agreement: verbs that agree with their subject, by the number of words "
        "between the two.",
        columns=tuple(share.column for share in shares),
        groups=(Group(label="", title="", rows=tuple(row for row in rows if row is not None)),),
    )


def _shares(runs: Sequence[Run]) -> list[_Share]:
    """A column for every share that some run reports, agreement by rising distance last."""
    names = dict.fromkeys(name for run in runs for name, value in run.value(*_WHERE).items() if _is_share(value))
    distances = {
        str(distance)
        for run in runs
        for distance in (at(run.result, *_WHERE, _AGREEMENT) or {})
        if distance is not None
    }
    shares = [
        _Share(
            path=(name,),
            column=Column(
                key=name, symbol=_TITLES.get(name, name.replace("_", " ")), share=True, hint=_HINTS.get(name, "")
            ),
        )
        for name in sorted(names, key=lambda name: (name != "exact_match", name))
    ]
    agreement = [
        _Share(
            path=(_AGREEMENT, distance),
            column=Column(
                key=f"{_AGREEMENT}.{distance}",
                symbol=distance.replace("-", DASH),
                unit="words apart",
                share=True,
                hint=f"Agreement of verbs with subjects {distance} words away.",
            ),
        )
        for distance in sorted(distances, key=_first_number)
    ]
    return [*shares, *agreement]


def _is_share(value: object) -> bool:
    return isinstance(value, float) and 0.0 <= value <= 1.0


def _first_number(text: str) -> tuple[int, str]:
    found = re.search(r"\d+", text)
    return (int(found.group()) if found else 1_000_000, text)


def _row(study: Study, variant: Variant, shares: Sequence[_Share]) -> Row | None:
    runs = study.by_variant[variant.id]
    cells = {}
    for share in shares:
        values = measure(runs, share.of)
        if values.mean is not None:
            cells[share.column.key] = Cell(
                value=values.mean, text=fixed(100 * values.mean, 1), note=values.partial, runs=values.runs
            )
        else:
            cells[share.column.key] = Cell(text=DASH, kind="absent")
    if all(cell.value is None for cell in cells.values()):
        return None
    return Row(id=variant.id, title=variant.title, cells=cells, base=variant.id == BASE)
