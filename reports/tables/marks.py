"""The signs at a cell of a table: which test each one stands for, what the tests can say at all, whose time it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from reports.statistics.significance import ALPHA, SEEDS_TEST, SET_TEST, RowTests, what_seeds_allow
from reports.tables.cells import Cell

SEEDS, TEST_SET = "*", "°"
MACHINES = "¶"
OF_MACHINES = "a mean over runs on different machines, or with different threads or precision: it is no machine's time."
"""What MACHINES means."""


def marked(cell: Cell, tests: RowTests | None) -> Cell:
    """`cell`, a difference to base, with the signs that `tests` allow and their p values in its hint."""
    if tests is None:
        return cell
    signs, hints = "", [cell.hint] if cell.hint else []
    for sign, test, corrected in (
        (SEEDS, tests.seeds, tests.seeds_corrected),
        (TEST_SET, tests.test_set, tests.test_set_corrected),
    ):
        if test is None:
            continue
        if test.p is None or corrected is None:
            hints.append(f"{test.name}: {test.detail}")
            continue
        signs += sign if corrected < ALPHA else ""
        hints.append(f"{test.name}: p = {_p(test.p)}, corrected {_p(corrected)}")
    return replace(cell, marks=signs, hint="; ".join(hints))


def meaning(tests: Iterable[RowTests]) -> dict[str, str]:
    """What the signs mean, for the footnotes of a table with these `tests`."""
    found = list(tests)
    pairs = {test.seeds.n for test in found if test.seeds is not None}
    allowed = f" {what_seeds_allow(max(pairs))}" if pairs else ""
    count = "corrected by Holm over the rows of the table" if len(found) > 1 else "for the one row"
    return {
        SEEDS: f"differs from base over seeds: {SEEDS_TEST}, p < {ALPHA:g}, {count}.{allowed}",
        TEST_SET: f"these trained models differ from base's on the test set: {SET_TEST}, p < {ALPHA:g}, {count}. It "
        "knows nothing of the luck of training.",
    }


def _p(value: float) -> str:
    """A p value with two significant digits."""
    return f"{value:.2g}"
