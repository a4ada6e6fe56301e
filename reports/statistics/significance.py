"""Whether a row's difference to base could be chance: over seeds, and on the test set; corrected over the table.

The two tests answer two questions. Over seeds (Student's t on differences paired by seed): would the *variant* differ
from base if it were trained again? On the test set (sacreBLEU's paired approximate randomisation): do *these trained
models* differ on sentences such as these? The second knows nothing of the luck of training, so the word "significant"
is kept for the first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from reports.formats import counted, signed
from reports.records.study import BASE, Run, Study
from reports.records.texts import reference_of
from reports.statistics.intervals import quantile, t_test
from reports.statistics.measures import bleu_on_test, difference
from reports.statistics.randomisation import Comparison, Counts, References, compare, signature
from repro.data.text import read_lines
from repro.files import digest_of_file
from repro.runs.directory import RunDirectory

SEEDS_TEST = "Student's t over seeds, paired"
SET_TEST = "sacreBLEU's paired approximate randomisation"

ALPHA = 0.05
"""Chance of a false alarm anywhere in a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Test:
    """One test of one row against base, two-sided, on BLEU of the test side."""

    name: str
    p: float | None
    """None when it could not be made; `detail` says why."""
    n: int
    """Pairs of runs, equal in seed, that it is made of."""
    detail: str
    """What it says, or why there is no p, in words."""
    signature: str = ""
    """sacreBLEU's, with seed and trials."""
    pairs: tuple[float, ...] = ()
    """p of every pair of runs, in the plan's order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTests:
    """The tests of one row, plain and corrected by Holm over the rows of the table."""

    variant: str
    test_set: Test | None
    test_set_corrected: float | None
    seeds: Test | None
    seeds_corrected: float | None

    @property
    def significant(self) -> bool:
        """Whether the row differs from base over seeds, corrected, at a level of 5 %."""
        return self.seeds_corrected is not None and self.seeds_corrected < ALPHA


def holm(p_values: Sequence[float]) -> list[float]:
    """`p_values` corrected step-down (Holm 1979), in the order given.

    Below `ALPHA` in at most a share `ALPHA` of tables in which nothing differs, however the tests depend on each other.
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def what_seeds_allow(n: int) -> str:
    """What `n` pairs of runs can show at all, in words; below six, also what six would allow."""
    if n < 2:
        return (
            "One run a row shows no scatter, so no test over seeds can be made; two seeds are the least, six let even "
            f"a test on signs alone reach p = {_least(6):.3f}."
        )
    text = (
        f"With {n} seeds Student's t, which takes seeds to scatter about normally, tells a difference from 0 "
        f"(p < 0.05, uncorrected) when its mean is at least {_needed(n):.2f} times its standard deviation over seeds. "
    )
    if n >= 6:
        return text + f"A test on signs alone, which assumes nothing of the kind, can reach p = {_told(_least(n))}."
    return text + (
        f"A test on signs alone, which assumes nothing of the kind, cannot go below p = {_least(n):g} with {n} seeds, "
        f"whatever the data; six seeds would allow {_least(6):.3f}, and let t tell a mean of {_needed(6):.2f} times "
        "the standard deviation from 0."
    )


def table_tests(study: Study) -> Mapping[str, RowTests]:
    """The tests of every row but base, by variant, Holm-corrected over the rows of `study`.

    Rows that share all their runs (one configuration under two names) count once in the correction. The test on the
    test set is made for every pair of runs with one seed. A row's p is the largest of its pairs, 1 when they differ in
    sign: small only when *each* pair of models differs, all the same way. Largest, because the pairs share the test
    set and so are no independent evidence that could be pooled.
    """
    base = study.by_variant.get(BASE, [])
    rows = [variant.id for variant in study.variants if variant.id != BASE]
    seeds = {row: _over_seeds(study.by_variant[row], base) for row in rows}
    on_set = _on_test_set(study, rows, base)
    same = {row: _identity(study, row) for row in rows}
    seeds_corrected, set_corrected = _corrected(seeds, same), _corrected(on_set, same)
    return {
        row: RowTests(
            variant=row,
            test_set=on_set[row],
            test_set_corrected=set_corrected.get(row),
            seeds=seeds[row],
            seeds_corrected=seeds_corrected.get(row),
        )
        for row in rows
    }


def _least(n: int) -> float:
    """The least two-sided p of an exact sign-flip test: one of 2^n equally likely signings, or its mirror image."""
    return float(2.0 ** (1 - n))


def _needed(n: int) -> float:
    return quantile(1 - ALPHA / 2, n - 1) / math.sqrt(n)


def _told(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _identity(study: Study, row: str) -> tuple[str, ...]:
    return tuple(sorted(str(run.path) for run in study.by_variant[row]))


def _corrected(tests: Mapping[str, Test | None], same: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    first: dict[tuple[str, ...], float] = {}
    for row, test in tests.items():
        if test is not None and test.p is not None:
            first.setdefault(same[row], test.p)
    by_runs = dict(zip(first, holm(list(first.values())), strict=True))
    return {row: by_runs[same[row]] for row, test in tests.items() if test is not None and test.p is not None}


def _over_seeds(runs: Sequence[Run], base: Sequence[Run]) -> Test | None:
    found = difference(runs, base, bleu_on_test)
    if not found.n:
        return None
    p = t_test(found.values)
    if found.n == 1:
        detail = "one pair of runs shows no scatter: no test over seeds"
    elif p is None:
        detail = f"the {found.n} pairs differ by exactly the same: no scatter to test against"
    else:
        detail = f"{counted(found.n - 1, 'degree')} of freedom; {found.n} pairs of runs with equal seeds"
    return Test(name=SEEDS_TEST, p=p, n=found.n, detail=detail)


# On the test set.


def _on_test_set(study: Study, rows: Sequence[str], base: Sequence[Run]) -> dict[str, Test | None]:
    bases = {run.seed: run for run in base if run.done}
    pairs = {
        row: [(bases[run.seed], run) for run in study.by_variant[row] if run.done and run.seed in bases] for row in rows
    }
    if not any(pairs.values()):
        return dict.fromkeys(rows)
    reference = reference_of(study)
    if reference is None:
        detail = "the corpus's test reference is not at hand (or not the one that was scored on): no test was made"
        return {row: _no_set_test(len(found), detail) if found else None for row, found in pairs.items()}
    wanted = {row: tuple(filter(None, (_files(*pair) for pair in found))) for row, found in pairs.items()}
    compared = _compared(_File.of(reference), tuple(pair for found in wanted.values() for pair in found))
    return {
        row: _set_test([compared[pair] for pair in wanted[row]], len(found)) if found else None
        for row, found in pairs.items()
    }


class _File(NamedTuple):
    """A file as a key of what was made of it: with other content it is another file."""

    path: Path
    digest: str

    @staticmethod
    def of(path: Path) -> _File:
        """The file at `path` as it is now."""
        return _File(path, digest_of_file(path))


_Pair = tuple[_File, _File]
"""Two files of translations, baseline first."""


@lru_cache(maxsize=16)
def _compared(reference: _File, pairs: tuple[_Pair, ...]) -> Mapping[_Pair, Comparison | None]:
    """The comparison of each pair; None where a file does not have a line for every reference."""
    references = References(read_lines(reference.path))
    statistics: dict[str, Counts | None] = {}
    for file in {file.digest: file for pair in pairs for file in pair}.values():
        lines = _lines(file.path)
        statistics[file.digest] = references.statistics(lines) if len(lines) == len(references) else None
    usable, bases, systems = [], [], []
    for first, second in pairs:
        base, system = statistics[first.digest], statistics[second.digest]
        if base is not None and system is not None:
            usable.append((first, second))
            bases.append(base)
            systems.append(system)
    found = compare(bases, systems)
    return dict.fromkeys(pairs) | dict(zip(usable, found, strict=True))


def _files(base: Run, run: Run) -> _Pair | None:
    """The translations of both; None when a file is missing."""
    paths = [RunDirectory(path).hypotheses_path("test") for path in (base.path, run.path)]
    if not all(path.is_file() for path in paths):
        return None
    return _File.of(paths[0]), _File.of(paths[1])


def _lines(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8", errors="replace").split("\n")[:-1]


def _no_set_test(n: int, detail: str) -> Test:
    return Test(name=SET_TEST, p=None, n=n, detail=detail)


def _set_test(compared: Sequence[Comparison | None], planned: int) -> Test:
    found = [comparison for comparison in compared if comparison is not None]
    if len(found) < planned:
        return _no_set_test(planned, "translations of the test side are missing or not one a line: no test was made")
    signs = {comparison.difference > 0 for comparison in found if comparison.difference}
    p = 1.0 if len(signs) > 1 else max(comparison.p_with_ties for comparison in found)
    shown = ", ".join(signed(comparison.difference, 1) for comparison in found)
    text = f"{counted(len(found), 'pair')} of trained models, BLEU differs by {shown}"
    if len(signs) > 1:
        text += "; the pairs disagree, so p is 1"
    elif len(found) > 1:
        text += "; p is the largest of the pairs"
    if any(comparison.p_with_ties > comparison.p for comparison in found):
        text += (
            "; shuffles that change nothing count as ties here, where sacreBLEU leaves them out and prints "
            f"{max(comparison.p for comparison in found):.4f}"
        )
    text += ". It says whether these models differ on such sentences, nothing of training them again."
    return Test(name=SET_TEST, p=p, n=len(found), detail=text, signature=signature(), pairs=tuple(c.p for c in found))
