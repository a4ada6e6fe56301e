import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from reports_study import full_study

from reports.records.study import load_study
from reports.statistics.budgets import Budget, budget, budgets, common_budget, difference_at, measure_at, value_at
from repro.files import write_bytes


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    rows = ["base", "A.h1", "C.width-half", "C.width-double", "big"]
    states = {("A.h1", 2): ("failed", "out of memory")}
    path = tmp_path_factory.mktemp("budgets") / "s"
    full_study(path, table="table3", seeds=(1, 2, 3), only=rows, states=states)
    return load_study(path)


def runs_of(study, row):
    return study.by_variant[row]


LOGGED = {"tokens": "train/target_tokens", "flops": "train/flops", "seconds": "time/train_seconds"}


def by_hand(run, metric: str, axis: str, amount: float) -> float:
    """Between the two evaluations around `amount`, each placed where training was logged at the same step."""
    values = dict(run.points[metric])
    places = {step: step for step in values} if axis == "steps" else dict(run.points[LOGGED[axis]])
    points = [(places[step], value) for step, value in sorted(values.items())]
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= amount <= x1:
            return y0 + (y1 - y0) * (amount - x0) / (x1 - x0)
    raise AssertionError("outside the curve")


@pytest.mark.parametrize("axis", ["steps", "tokens", "flops", "seconds"])
@pytest.mark.parametrize("metric", ["valid/bleu", "valid/perplexity"])
def test_a_value_at_a_budget_lies_on_the_line_between_two_evaluations(study, axis, metric):
    for run in runs_of(study, "C.width-half"):
        evaluated = run.points[metric]
        steps, places = [step for step, _ in evaluated], run.points[LOGGED[axis]] if axis != "steps" else None
        along = steps if places is None else [dict(places)[step] for step in steps]
        for share in (0.0, 0.31, 0.77):
            # The last evaluation is placed at the run's total, which may lie off the logged amount: stay before it.
            amount = along[0] + share * (along[-2] - along[0])
            expected = by_hand(run, metric, axis, amount)
            assert value_at(run, metric, budget(axis, amount)) == pytest.approx(expected)


def test_an_evaluation_between_two_logged_steps_is_placed_between_their_amounts(study):
    run = runs_of(study, "base")[0]
    run = dataclasses.replace(run, result={})
    run.__dict__["points"] = {
        "train/flops": [(100, 1e9), (200, 3e9), (300, 4e9)],
        "valid/bleu": [(150, 10.0), (250, 20.0), (350, 30.0)],
    }
    # Step 150 lies at 2e9, step 250 at 3.5e9; step 350 was never logged, so its FLOPs are not known.
    assert value_at(run, "valid/bleu", budget("flops", 2e9)) == pytest.approx(10.0)
    assert value_at(run, "valid/bleu", budget("flops", 2.75e9)) == pytest.approx(15.0)
    assert value_at(run, "valid/bleu", budget("flops", 3.5e9)) == pytest.approx(20.0)
    assert value_at(run, "valid/bleu", budget("flops", 3.6e9)) is None
    assert value_at(run, "valid/bleu", budget("steps", 350)) == pytest.approx(30.0)


@pytest.mark.parametrize("axis", ["steps", "tokens", "flops", "seconds"])
def test_nothing_is_read_before_the_first_or_beyond_the_last_point(study, axis):
    run = runs_of(study, "base")[0]
    steps = [step for step, _ in run.points["valid/bleu"]]
    first = steps[0] if axis == "steps" else dict(run.points[LOGGED[axis]])[steps[0]]
    total = {"steps": "steps", "tokens": "target_tokens", "flops": "train_flops", "seconds": "train_seconds"}[axis]
    last = run.result[total]
    assert value_at(run, "valid/bleu", budget(axis, first)) == run.points["valid/bleu"][0][1]
    assert value_at(run, "valid/bleu", budget(axis, last)) == run.points["valid/bleu"][-1][1]
    assert value_at(run, "valid/bleu", budget(axis, first * 0.999)) is None
    assert value_at(run, "valid/bleu", budget(axis, last * 1.001)) is None
    assert value_at(run, "valid/chrf", budget(axis, last)) is None


def test_differences_at_a_budget_are_paired_by_seed_and_leave_out_what_did_not_finish(study):
    at = budget("steps", 1000)
    base, row = runs_of(study, "base"), runs_of(study, "A.h1")
    expected = [
        by_hand(mine, "valid/bleu", "steps", 1000) - by_hand(theirs, "valid/bleu", "steps", 1000)
        for mine, theirs in zip(row, base, strict=True)
        if mine.seed != 2
    ]
    found = difference_at(row, base, "valid/bleu", at)
    assert found.values == pytest.approx(expected)
    assert found.partial == "2/3 seeds"
    assert measure_at(base, "valid/bleu", at).n == 3


def test_rows_at_equal_flops_are_not_those_at_equal_steps(study):
    base, half = runs_of(study, "base"), runs_of(study, "C.width-half")
    amount = float(half[0].result["train_flops"])
    mine = value_at(half[0], "valid/bleu", budget("flops", amount))
    assert mine == half[0].points["valid/bleu"][-1][1]
    theirs = value_at(base[0], "valid/bleu", budget("flops", amount))
    assert theirs == pytest.approx(by_hand(base[0], "valid/bleu", "flops", amount))
    assert theirs < base[0].points["valid/bleu"][-1][1]


def test_the_budgets_of_a_study_are_what_base_and_most_rows_reach(study):
    found = {at.axis: at for at in budgets(study)}
    assert list(found) == ["steps", "tokens", "flops", "seconds"]
    totals = {
        axis: {row: min(run.result[key] for run in runs if run.done) for row, runs in study.by_variant.items()}
        for axis, key in {
            "steps": "steps",
            "tokens": "target_tokens",
            "flops": "train_flops",
            "seconds": "train_seconds",
        }.items()
    }
    for axis, at in found.items():
        others = [total for row, total in totals[axis].items() if row != "base"]
        reached = sum(total >= at.amount * (1 - 1e-9) for total in others)
        assert at.amount <= totals[axis]["base"] * (1 + 1e-9)
        assert reached > len(others) / 2
        larger = at.amount * 1.01
        beyond = sum(total >= larger for total in others)
        assert larger > totals[axis]["base"] or beyond <= len(others) / 2
    assert found["steps"].label == "at 1\u202f500 steps"
    assert found["flops"].label.endswith("FLOPs")
    assert found["seconds"].label.endswith("of training")
    assert found["tokens"].label.endswith("target tokens")


def test_a_budget_that_only_base_reaches_is_none(tmp_path):
    rows = ["base", "C.width-half", "C.ff-half", "C.layers-third"]
    full_study(tmp_path / "s", table="table3", seeds=(1,), only=rows)
    small = load_study(tmp_path / "s")
    totals = sorted(small.by_variant[row][0].result["train_flops"] for row in rows)
    assert next(at.amount for at in budgets(small) if at.axis == "flops") == pytest.approx(totals[1])


def test_two_rows_meet_at_the_least_that_both_reach(study):
    rows = [runs_of(study, "base"), runs_of(study, "C.width-half")]
    shared = common_budget(rows, "flops")
    assert shared.amount == pytest.approx(min(run.result["train_flops"] for run in rows[1]))
    assert common_budget([rows[0], []], "flops") is None


def test_a_study_without_curves_has_no_budgets(tmp_path):
    path = tmp_path / "s"
    full_study(path, table="table3", seeds=(1,), only=["base", "A.h1"])
    for file in path.glob("runs/*/metrics.jsonl"):
        write_bytes(file, b"")
    bare = load_study(path)
    assert budgets(bare) == []
    assert measure_at(bare.by_variant["base"], "valid/bleu", Budget(axis="steps", amount=1000, label="x")).n == 0


def test_nothing_finished_gives_no_budgets(tmp_path):
    path = tmp_path / "s"
    states = {(row, 1): ("failed", "x") for row in ("base", "A.h1")}
    full_study(path, table="table3", seeds=(1,), only=["base", "A.h1"], states=states)
    assert budgets(load_study(path)) == []


def test_values_agree_with_numpys_interpolation(study):
    run = runs_of(study, "big")[1]
    x, y = np.array(run.points["valid/perplexity"]).T
    for amount in np.linspace(x[0], x[-1], 7):
        expected = np.interp(amount, x, y)
        assert value_at(run, "valid/perplexity", budget("steps", float(amount))) == pytest.approx(expected)
