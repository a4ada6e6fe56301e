"""What a study has to say on one part of a claim: the contrast seed by seed, of rows that spent the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from reports.claims.catalogue import Claim, Part
from reports.formats import fixed, listed, scientific, share
from reports.records.study import STATES, Run, Study
from reports.statistics.budgets import common_budget, value_at
from reports.statistics.lengths import fall_of, measured_by
from reports.statistics.measures import (
    Measure,
    Quantity,
    bleu_on_test,
    contrast,
    log_log,
    log_loss,
    measure,
)

_BUDGET = ("train.budget", "train.budget_unit", "train.batch_tokens")
"""The settings that say what a run may spend."""

CLOSE = 0.05
"""Share by which rows may differ in FLOPs or parameters and still pass for equal, as rows are sized to within it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The contrast of one part, and what must be known of the rows behind it."""

    effect: Measure
    budget: str = ""
    """What the rows had spent when they were compared, and where the scores are from."""
    refusal: str = ""
    """Why rows that are there cannot be compared, or that they are not there; empty when they can be."""
    missing: str = ""
    """Why there is no value, by the states of the runs."""
    named: Mapping[str, str]
    """The claim's rows to those of the study."""
    levels: Mapping[str, float]
    """Mean BLEU of the study's rows, as compared."""
    diverged: Mapping[str, int]
    """The study's rows to their diverged runs, where there are any."""
    lost: bool = False
    """Whether every row has been tried: it has a finished run, or all its runs diverged."""


def evidence(claim: Claim, part: Part, study: Study) -> Evidence:
    """What `study` has for `part` of `claim`."""
    named = {row: _named(row, claim, study) for row in part.contrast}
    absent = [row for row, name in named.items() if not name]
    if absent:
        return _refused(named, f"the study lacks {listed(absent)}")
    rows = {name: study.by_variant[name] for name in named.values()}
    if reason := _one_and_the_same(rows) or (_unequal_size(rows) if claim.match == "parameters" else ""):
        return _refused(named, reason)
    quantity, level, budget = _at_equal_budgets(claim, part, rows)
    if quantity is None:
        return _refused(named, budget)
    weights = {named[row]: weight for row, weight in part.contrast.items()}
    return Evidence(
        effect=contrast(rows, weights, quantity),
        budget=budget,
        missing=_states(rows),
        named=named,
        levels={name: mean for name, runs in rows.items() if (mean := measure(runs, level).mean) is not None},
        diverged={name: count for name, runs in rows.items() if (count := sum(r.state == "diverged" for r in runs))},
        lost=all(any(r.done for r in runs) or all(r.state == "diverged" for r in runs) for runs in rows.values()),
    )


def _refused(named: Mapping[str, str], reason: str) -> Evidence:
    nothing = Measure(values=(), runs=(), planned=0)
    return Evidence(effect=nothing, refusal=reason, named=named, levels={}, diverged={})


def _named(row: str, claim: Claim, study: Study) -> str:
    """The study's name of `row`: its own, or that of the same configuration in another table; "" without either."""
    return next((name for name in (row, claim.same.get(row, "")) if name in study.by_variant), "")


def _one_and_the_same(rows: Mapping[str, Sequence[Run]]) -> str:
    for (first, mine), (second, theirs) in combinations(rows.items(), 2):
        if {run.path for run in mine} & {run.path for run in theirs}:
            return f"{first} and {second} come to the same configuration at this scale"
    return ""


def _unequal_size(rows: Mapping[str, Sequence[Run]]) -> str:
    sizes = {name: measure(runs, lambda run: run.number("parameters")).mean for name, runs in rows.items()}
    known = {name: size for name, size in sizes.items() if size}
    if len(known) > 1 and max(known.values()) > (1 + CLOSE) * min(known.values()):
        told = [f"{name} {fixed(size / 1e6, 2)} million" for name, size in known.items()]
        return f"the rows are not equally large ({listed(told)} parameters)"
    return ""


def _states(rows: Mapping[str, Sequence[Run]]) -> str:
    """Why no seed has a value in all rows."""
    told = []
    for name, runs in rows.items():
        counts = Counter(run.state for run in runs if not run.done)
        if counts:
            told.append(f"{name} {', '.join(f'{counts[state]} {state}' for state in STATES if counts[state])}")
    return (
        f"no seed is finished with a score in all rows ({'; '.join(told)})" if told else "the runs have no such score"
    )


# Equal budgets.


def _at_equal_budgets(
    claim: Claim, part: Part, rows: Mapping[str, Sequence[Run]]
) -> tuple[Quantity | None, Quantity, str]:
    """What to measure, BLEU there, and the budget in words; or nothing, and why not."""
    quantity, scored = _at_the_end(part, rows)
    if told := _alike(claim, rows):
        return quantity, bleu_on_test, f"{told}, scored at the end on {scored}"
    if part.metric == "length":
        return None, bleu_on_test, "the rows spent unequal budgets, and BLEU by length is known at the end only"
    shared = common_budget(list(rows.values()), claim.budget)
    if shared is None:
        if not all(any(run.done for run in runs) for runs in rows.values()):
            return quantity, bleu_on_test, ""  # no value either: the runs' states will tell
        return None, bleu_on_test, f"the rows spent unequal budgets, and no curves meet at equal {_unit(claim.budget)}"
    bleu = partial(value_at, metric="valid/bleu", budget=shared)
    perplexity = partial(value_at, metric="valid/perplexity", budget=shared)

    def loss(run: Run) -> float | None:
        return log_log(perplexity(run))

    words = f"{shared.label}, read off the validation curves (greedy decoding)"
    return (loss if part.metric == "perplexity" else bleu), bleu, words


def _at_the_end(part: Part, rows: Mapping[str, Sequence[Run]]) -> tuple[Quantity, str]:
    """The part's metric of a trained model, and what it is taken on, in words."""
    if part.metric == "length":
        by = measured_by(run for runs in rows.values() for run in runs)
        return fall_of(by), f"the test side by the length of its {by or 'source'}s"
    return (log_loss, "the validation side") if part.metric == "perplexity" else (bleu_on_test, "the test side")


def _alike(claim: Claim, rows: Mapping[str, Sequence[Run]]) -> str:
    """The budget in words when the whole trainings are comparable; empty when they are not."""
    if claim.budget == "steps":
        settings = [next((run.settings for run in runs if run.settings), {}) for runs in rows.values()]
        budgets = {tuple(found.get(key) for key in _BUDGET) for found in settings}
        amount, unit, _ = next(iter(budgets))
        if len(budgets) > 1 or amount is None:
            return ""
        return f"{fixed(amount, 0) if amount < 1e7 else scientific(amount)} {_unit(str(unit))} each"
    totals = [measure(runs, lambda run: run.total(claim.budget)).mean for runs in rows.values()]
    known = [total for total in totals if total]
    if len(known) < len(totals) or max(known) > (1 + CLOSE) * min(known):
        return ""
    apart = max(known) / min(known) - 1
    return f"{scientific(sum(known) / len(known))} {_unit(claim.budget)} each (within {share(apart)})"


def _unit(axis: str) -> str:
    return {"flops": "FLOPs", "tokens": "target tokens", "seconds": "seconds"}.get(axis, axis)
