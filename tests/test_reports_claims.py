import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import yaml
from claims_study import Made

from ablations.tables import TABLES
from reports.claims.catalogue import CLAIMS, Part, load_claims
from reports.claims.verdicts import Verdict, decide, judge, seeds_needed, verdicts
from reports.pages.summary import summary
from reports.records.paper import load_paper
from repro.errors import CheckError

PAPER = load_paper()
TABLE_3 = (
    "one-head", "too-many-heads", "small-keys", "depth", "width", "feed-forward", "dropout", "smoothing",
    "learned-positions",
)  # fmt: skip
"""The claims that the paper's own Table 3 has all rows of."""


CLAIMS_BY_ID = {claim.id: claim for claim in load_claims()}


def verdict(name: str, study) -> Verdict:
    return judge(CLAIMS_BY_ID[name], study, PAPER)


def states(study) -> dict[str, str]:
    return {found.claim.id: found.state for found in verdicts(study, PAPER, list(CLAIMS_BY_ID.values()))}


def paper_study(*, sign: float = 1.0, seeds: int = 5, spread: float = 0.05):
    """The paper's Table 3 with little scatter; `sign` -1 turns every difference to base around, 0 takes it away."""
    made = Made(seeds, spread)
    for row in PAPER.rows.values():
        loss = math.log(PAPER.base.perplexity) * (math.log(row.perplexity) / math.log(PAPER.base.perplexity)) ** sign
        made.row(row.id, PAPER.base.bleu + sign * row.bleu_difference, math.exp(loss))
    return made


# The claims.


def test_claims_name_the_rows_of_the_tables_and_no_others():
    known = {row.id for table in TABLES.values() for row in table}
    assert set(yaml.safe_load(CLAIMS.read_text(encoding="utf-8"))["rows"]) == known


def test_rows_said_to_be_the_same_are_the_same_configuration():
    from ablations.scales import SCALES

    rows = {row.id: row for table in TABLES.values() for row in table}
    for scale in SCALES.values():
        for first, second in CLAIMS_BY_ID["one-head"].same.items():
            assert rows[first].of(scale.base).hash() == rows[second].of(scale.base).hash()


def test_every_statement_that_was_asked_for_is_a_claim():
    by_rows = {frozenset(claim.rows): claim for claim in CLAIMS_BY_ID.values()}
    for rows in (
        {"A.h1", "base"}, {"A.h32", "base"}, {"B.dk-half", "B.dk-quarter", "base"},
        {"C.layers-third", "C.layers-2third", "C.layers-4third", "base"}, {"C.width-half", "C.width-double", "base"},
        {"C.ff-half", "C.ff-double", "base"}, {"D.dropout-0", "base"}, {"D.smoothing-0", "base"}, {"E.learned", "base"},
        {"positions.none", "base"}, {"scaling.off", "base"},
        {"scaling.dk-4x-off", "scaling.dk-4x", "scaling.dk-quarter-off", "scaling.dk-quarter"},
        {"baseline.convs2s", "base"}, {"baseline.convs2s-flops", "base"}, {"baseline.lstm", "base"},
        {"baseline.convs2s", "baseline.gnmt", "baseline.lstm-attention"},
        {"baseline.convs2s-flops", "baseline.gnmt-flops", "baseline.lstm-attention-flops"},
    ):  # fmt: skip
        assert frozenset(rows) in by_rows
    assert by_rows[frozenset({"E.learned", "base"})].kind == "equivalence"
    assert by_rows[frozenset({"baseline.convs2s-flops", "base"})].budget == "flops"
    assert by_rows[frozenset({"baseline.convs2s", "base"})].match == "parameters"


GOOD = {
    "id": "mine", "sentence": "A is worse.", "source": "here", "kind": "difference",
    "parts": [{"says": "a below base", "contrast": {"A.h1": 1, "base": -1}, "metric": "bleu", "expect": "below"}],
}  # fmt: skip


def written(folder: Path, *claims: dict) -> Path:
    document = yaml.safe_load(CLAIMS.read_text(encoding="utf-8")) | {"claims": list(claims)}
    path = folder / "claims.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"contrast": {"A.h2": 1, "base": -1}}, "unknown row 'A.h2'"),
        ({"metric": "chrf"}, "unknown metric 'chrf'"),
        ({"expect": "lower"}, "unknown expect 'lower'"),
        ({"expect": "at-least"}, "at-least needs a margin"),
        ({"margin": 0}, "a margin must be above 0"),
        ({"margin": "wide"}, "margin is no number: 'wide'"),
        ({"contrast": {"A.h1": "one", "base": -1}}, "the weight of A.h1 is no number"),
        ({"contrast": {"A.h1": 1}}, "two rows or more"),
        ({"says": ""}, "a part says"),
        ({"order": ["A.h1", "base"]}, "a contrast or an order"),
        ({"size": 2}, "unknown key 'size'"),
        ({"expect": "equal", "margin": 0.5}, "an equivalence, and nothing else"),
        ({"metric": "length"}, "a trend, and nothing else"),
        ({"contrast": {"A.h1": 1, "A.h4": -1, "A.h16": -1, "base": 1}}, "an interaction, and nothing else"),
    ],
)
def test_an_unsound_part_is_refused_and_the_claim_named(tmp_path, change, told):
    path = written(tmp_path, GOOD | {"parts": [GOOD["parts"][0] | change]})
    with pytest.raises(CheckError, match="claim mine: ") as caught:
        load_claims(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "hunch"}, "unknown kind 'hunch'"),
        ({"budget": "money"}, "unknown budget 'money'"),
        ({"match": "name"}, "unknown match 'name'"),
        ({"paper": ["Transformer base", "HAL 9000"]}, "'HAL 9000'"),
        ({"parts": []}, "it has no parts"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"parts": [{"order": ["base"], "metric": "bleu", "expect": "above", "margin": 1}]}, "two rows or more"),
        ({"parts": [{"order": ["base", "A.h1"], "metric": "bleu", "expect": "above"}]}, "and a margin"),
    ],
)
def test_an_unsound_claim_is_refused_and_named(tmp_path, change, told):
    with pytest.raises(CheckError, match="claim mine: ") as caught:
        load_claims(written(tmp_path, GOOD | change))
    assert told in str(caught.value)


def test_a_claim_that_lacks_something_or_is_there_twice_is_refused(tmp_path):
    with pytest.raises(CheckError, match="claim mine: no source"):
        load_claims(written(tmp_path, {key: value for key, value in GOOD.items() if key != "source"}))
    with pytest.raises(CheckError, match="claim mine: its id is used twice"):
        load_claims(written(tmp_path, GOOD, GOOD))


# Verdicts where the truth is known.


def test_a_study_that_comes_out_as_the_paper_reproduces_its_claims():
    found = states(paper_study().study())
    assert {name: found[name] for name in TABLE_3} == dict.fromkeys(TABLE_3, "reproduced")


def test_a_study_that_comes_out_the_other_way_contradicts_them():
    study = paper_study(sign=-1).row("E.learned", 23.9, 5.4).study()
    found = states(study)
    assert {name: found[name] for name in TABLE_3} == dict.fromkeys(TABLE_3, "contradicted")


def test_where_all_rows_are_equal_only_equivalence_is_reproduced():
    study = paper_study(sign=0).row("positions.none", 25.8).row("scaling.off", 25.8).study()
    found = states(study)
    expected = dict.fromkeys((*TABLE_3, "no-positions", "unscaled"), "contradicted")
    assert {name: found[name] for name in expected} == expected | {"learned-positions": "reproduced"}
    assert "a difference of 0.1 BLEU or more on the claimed side is ruled out" in verdict("one-head", study).sentence


def test_a_part_that_is_against_its_claim_but_not_clearly_enough_for_all_of_it_says_so():
    told = {}
    for tenths in range(1, 40):
        keys = Made(seeds=3, spread=0.3).row("base", 25.0).row("B.dk-half", 24.0).row("B.dk-quarter", 25 + tenths / 10)
        finding = next(part for part in verdict("small-keys", keys.study()).findings if "quarter" in part.part.says)
        p = scipy.stats.ttest_1samp(finding.effect.values, 0.0).pvalue
        told["clear" if p < 0.025 else "between" if p < 0.05 else "open"] = finding
    assert told["clear"].state == "contradicted"
    assert told["between"].state == told["open"].state == "inconclusive"
    assert told["between"].reason.startswith(
        "against it at 95 %, but one of 2 parts contradicts a claim at 97.5 % only"
    )
    assert told["open"].reason.startswith("the interval is too wide")


def test_no_number_of_seeds_is_told_for_a_claim_with_a_part_that_none_decides():
    study = (
        Made(seeds=5, spread=0.15)
        .row("base", 90.0)
        .row("baseline.convs2s", 98.5)
        .row("baseline.gnmt", 98.9)
        .row("baseline.lstm-attention", 98.1)
        .study()
    )
    told = verdict("convs2s-recurrent-parameters", study)
    wide, high = told.findings
    assert (wide.needed is None, high.needed is None) == (False, True)
    found = summary(study, PAPER, [told])
    (point,) = next(statement.points for statement in found if statement.title == "What stays open")
    assert "all rows are above 98 BLEU" in point
    assert "seeds would decide" not in point


def test_where_seeds_scatter_too_much_nothing_is_said_but_how_many_would_do():
    study = paper_study(seeds=3, spread=4.0).study()
    found = states(study)
    assert {name: found[name] for name in TABLE_3} == dict.fromkeys(TABLE_3, "inconclusive")
    told = verdict("one-head", study)
    assert told.n == 3
    assert "the interval is too wide" in told.sentence
    assert f"about {told.leading.needed} seeds would decide" in told.sentence


def test_rows_that_are_not_there_are_not_tested_and_named():
    found = verdicts(Made().row("base", 25.8).study(), PAPER)
    assert {verdict.state for verdict in found} == {"not tested"}
    assert len(found) == len(load_claims())
    assert "the study lacks A.h1" in found[0].sentence
    assert found[0].runs == ()
    assert found[0].n == 0


def test_runs_that_did_not_finish_are_not_tested_and_their_states_told():
    made = Made(3).row("base", 25.8).row("A.h1", 24.9, states={1: "failed", 2: "failed", 3: "missing"})
    told = verdict("one-head", made.study())
    assert told.state == "not tested"
    assert "A.h1 2 failed, 1 missing" in told.sentence


def test_one_seed_is_never_more_than_inconclusive():
    found = verdicts(paper_study(seeds=1).study(), PAPER)
    assert {verdict.state for verdict in found} == {"inconclusive", "not tested"}
    told = next(verdict for verdict in found if verdict.claim.id == "one-head")
    assert "one run each, so no spread is known" in told.sentence
    assert "BLEU, 1 seed" in told.leading.shown
    assert told.interval is None
    assert told.effect.mean == pytest.approx(-0.9, abs=0.3)


def test_missing_seeds_are_told_beside_the_effect():
    made = Made(5).row("base", 25.8).row("A.h1", 24.9, states={2: "failed", 4: "stopped"})
    told = verdict("one-head", made.study())
    assert told.state == "reproduced"
    assert "3/5 seeds" in told.sentence
    assert told.runs == ("A.h1-s1", "base-s1", "A.h1-s3", "base-s3", "A.h1-s5", "base-s5")


def test_a_row_that_diverged_throughout_has_no_score_to_compare():
    all_diverged = dict.fromkeys((1, 2, 3), "diverged")
    told = verdict("unscaled", Made(3).row("base", 25.8).row("scaling.off", 20.0, states=all_diverged).study())
    assert told.state == "inconclusive"
    assert "3 runs of scaling.off diverged: no score to compare" in told.sentence
    waiting = Made(3).row("base", 25.8, states=dict.fromkeys((1, 2, 3), "missing"))
    told = verdict("unscaled", waiting.row("scaling.off", 20.0, states=all_diverged).study())
    assert told.state == "not tested"


def test_diverged_seeds_may_only_strengthen_a_verdict():
    one = {1: "diverged"}
    worse = Made(5).row("base", 25.8).row("scaling.off", 20.0, states=one)
    assert verdict("unscaled", worse.study()).state == "reproduced"
    better = Made(5).row("base", 20.0).row("scaling.off", 25.8, states=one)
    assert verdict("unscaled", better.study()).state == "inconclusive"
    base = Made(5).row("base", 25.8, states=one).row("scaling.off", 20.0)
    assert verdict("unscaled", base.study()).state == "inconclusive"
    helps = Made(5).row("base", 25.8, states=one).row("D.dropout-0", 20.0)
    assert verdict("dropout", helps.study()).state == "inconclusive"
    equal = Made(5).row("base", 25.8).row("E.learned", 25.8, states=one)
    told = verdict("learned-positions", equal.study())
    assert told.state == "inconclusive"
    assert "1 run of E.learned diverged, and those that did not are no fair sample" in told.sentence


def test_a_claim_of_two_parts_says_which_holds():
    """Smoothing: perplexity as in the paper, BLEU without any gain."""
    told = verdict("smoothing", Made(spread=0.02).row("base", 25.3, 4.92).row("D.smoothing-0", 25.3, 4.67).study())
    assert told.state == "contradicted"
    assert [finding.state for finding in told.findings] == ["reproduced", "contradicted"]
    assert "1 of 2 parts hold" in told.sentence
    assert told.leading.part.metric == "bleu"
    undecided = verdict("small-keys", Made().row("base", 25.8).row("B.dk-quarter", 25.1).study())
    assert undecided.state == "inconclusive"
    assert [finding.state for finding in undecided.findings] == ["not tested", "reproduced"]


def test_a_row_of_another_table_stands_in_for_the_same_configuration():
    told = verdict("learned-positions", Made().row("base", 25.8).row("positions.learned", 25.8).study())
    assert told.state == "reproduced"
    assert "positions.learned-s1" in told.runs


def test_an_order_holds_where_it_levels_off_and_not_where_it_turns():
    made = Made().row("base", 25.8, 4.9).row("C.ff-half", 25.0, 5.2)
    assert verdict("feed-forward", made.row("C.ff-double", 25.9, 4.9).study()).state == "reproduced"
    turned = verdict("feed-forward", made.row("C.ff-double", 25.9, 5.1).study())
    assert turned.state == "contradicted"
    assert turned.leading.part.says == "C.ff-double no worse than base in perplexity"


@pytest.mark.parametrize(("bleu", "state"), [(2.6, "reproduced"), (15.5, "contradicted")])
def test_failing_means_losing_half_of_bases_bleu(bleu, state):
    assert verdict("no-positions", Made().row("base", 25.8).row("positions.none", bleu).study()).state == state


@pytest.mark.parametrize(
    ("far", "near", "state"), [(-3.3, -0.2, "reproduced"), (-0.5, -0.5, "contradicted"), (-0.2, -3.0, "contradicted")]
)
def test_unscaled_attention_is_compared_between_sizes_of_keys(far, near, state):
    made = Made(spread=0.02).row("scaling.dk-4x", 26.0).row("scaling.dk-4x-off", 26.0 + far)
    made.row("scaling.dk-quarter", 25.0).row("scaling.dk-quarter-off", 25.0 + near)
    told = verdict("unscaled-large-keys", made.study())
    assert told.state == state
    assert told.effect.mean == pytest.approx(far - near, abs=0.05)


def by_length(start: float, step: float, by: str = "source") -> dict:
    groups = [
        {"by": by, "from": 10 * place + 1, "to": 10 * place + 10, "sentences": 100, "bleu": start - step * place}
        for place in range(4)
    ]
    return {"bleu_by_length": groups}


def test_falling_off_with_length_is_compared_with_bases_fall():
    def study(fall: float):
        made = Made(4)
        made.row("base", 30.0)
        made.row("baseline.lstm", 15.0)
        for name, start, step in (("base", 32.0, 1.0), ("baseline.lstm", 20.0, fall)):
            for run in made.rows[name]:
                run.result["test"].update(by_length(start + 0.1 * run.seed, step + (0.05 * (run.seed % 2))))
        return made.study()

    assert verdict("lstm-length", study(4.0)).state == "reproduced"
    assert verdict("lstm-length", study(-1.0)).state == "contradicted"
    assert "% of BLEU a ten words" in verdict("lstm-length", study(4.0)).sentence
    assert "by the length of its sources" in verdict("lstm-length", study(4.0)).budget
    bare = Made(4).row("base", 30.0).row("baseline.lstm", 15.0).study()
    assert verdict("lstm-length", bare).state == "not tested"


def test_lengths_of_sources_and_of_references_are_not_compared_with_one_another():
    def told(old: str, of_lstm: str):
        made = Made(4).row("base", 30.0).row("baseline.lstm", 15.0)
        for name, start, step, by in (("base", 32.0, 1.0, old), ("baseline.lstm", 20.0, 4.0, of_lstm)):
            for run in made.rows[name]:
                run.result["test"].update(by_length(start + 0.1 * run.seed, step + (0.05 * (run.seed % 2)), by))
        return verdict("lstm-length", made.study())

    assert told("reference", "reference").state == "reproduced"  # as results of earlier versions are
    assert "by the length of its references" in told("reference", "reference").budget
    assert told("reference", "source").state == "not tested"


# What the data cannot carry.


def test_rows_that_hardly_translate_decide_nothing():
    told = verdict("one-head", Made().row("base", 2.8).row("A.h1", 1.9).study())
    assert told.state == "inconclusive"
    assert "no row reaches 10 BLEU" in told.sentence


def test_rows_at_the_ceiling_do_not_pass_for_equal():
    made = Made(spread=0.01).row("base", 99.6).row("A.h1", 99.6).row("E.learned", 99.6).row("A.h32", 95.0)
    assert verdict("one-head", made.study()).state == "inconclusive"
    assert verdict("learned-positions", made.study()).state == "inconclusive"
    assert "above 98 BLEU" in verdict("one-head", made.study()).sentence
    assert verdict("too-many-heads", made.study()).state == "reproduced"


def test_two_names_of_one_configuration_are_not_compared():
    told = verdict("dropout", Made().row("base", 25.8).row("D.dropout-0", 25.8, shares="base").study())
    assert told.state == "not tested"
    assert "same configuration" in told.sentence


def test_seeds_that_are_all_alike_decide_nothing():
    told = verdict("one-head", Made(spread=0.0).row("base", 25.5).row("A.h1", 24.5).study())
    assert told.state == "inconclusive"
    assert "exactly alike" in told.sentence


CURVE = [(1000, 10.0), (2000, 20.0), (3000, 25.0)]
LONGER = [(1000, 10.0), (2000, 15.0), (3000, 18.0), (6000, 26.0)]


def test_unequal_budgets_are_refused_where_nothing_can_be_read_at_equal_ones():
    other = {"train.budget": 6000}
    told = verdict("one-head", Made().row("base", 25.8).row("A.h1", 20.0, settings=other).study())
    assert told.state == "not tested"
    assert "unequal budgets" in told.sentence


def test_unequal_budgets_are_read_off_the_curves_at_an_equal_one():
    """At the end A.h1 is ahead, having trained twice as long; at the 3 000 steps that both reached it is behind."""
    made = (
        Made()
        .row("base", 25.8, curve=CURVE)
        .row("A.h1", 27.0, curve=LONGER, settings={"train.budget": 6000}, steps=6000)
    )
    told = verdict("one-head", made.study())
    assert told.state == "reproduced"
    assert told.budget == "at 3\u202f000 steps, read off the validation curves (greedy decoding)"
    assert told.effect.mean == pytest.approx(18.0 - 25.0, abs=0.1)


def test_equal_flops_are_those_spent_to_within_5_per_cent_or_those_of_the_curves():
    made = Made().row("base", 25.8, curve=CURVE)
    near = made.row("baseline.convs2s-flops", 24.0, train_flops=3.12e12, curve=CURVE).study()
    told = verdict("transformer-convs2s-flops", near)
    assert told.state == "reproduced"
    assert told.effect.mean == pytest.approx(1.8, abs=0.1)
    assert "FLOPs each (within 4.0 %), scored at the end" in told.budget
    # Twice the FLOPs a step: what base spent it has spent after half of its steps, at 15 BLEU.
    dear = made.row("baseline.convs2s-flops", 24.0, train_flops=6e12, curve=CURVE).study()
    told = verdict("transformer-convs2s-flops", dear)
    assert told.effect.mean == pytest.approx(25.0 - 15.0, abs=0.1)
    assert told.budget.startswith("at 3.00×10¹² FLOPs")


def test_equal_parameters_are_asked_for_where_the_claim_needs_them():
    made = Made().row("base", 25.8).row("baseline.convs2s", 24.0, parameters=1_100_000)
    told = verdict("transformer-convs2s-parameters", made.study())
    assert told.state == "not tested"
    assert "not equally large (base 1.00 million and baseline.convs2s 1.10 million parameters)" in told.sentence
    assert verdict("transformer-convs2s-parameters", made.row("baseline.convs2s", 24.0).study()).state == "reproduced"


# Sizes, gaps and error rates.


def test_the_size_in_the_paper_is_the_papers():
    study = paper_study().study()
    assert verdict("one-head", study).leading.published == pytest.approx(24.9 - 25.8)
    smoothing = verdict("smoothing", study).findings[0]
    assert smoothing.published == pytest.approx(math.log(math.log(4.92) / math.log(4.67)))
    assert smoothing.effect.mean == pytest.approx(smoothing.published, abs=0.002)
    assert "−0.9 BLEU" in verdict("one-head", study).there
    flops = verdict("transformer-convs2s-flops", study)
    assert flops.there == "In the paper's Table 2 Transformer base is 2.1 BLEU above ConvS2S."
    assert verdict("unscaled", study).there == "The paper gives no number."


def test_the_gap_in_scale_to_the_paper_is_said():
    found = verdicts(Made().row("base", 25.8, parameters=650_000, target_tokens=2_500_000).study(), PAPER)[0]
    assert "0.65 million parameters (the paper's has 100 times as many)" in found.gap_to_paper
    assert "2.50 million target tokens of training (the paper's has 1\u202f000 times as many)" in found.gap_to_paper
    assert "multi30k_en_de, there it is WMT 2014 English-German" in found.gap_to_paper


def part(expect: str, margin: float) -> Part:
    return Part(says="x", contrast={"A.h1": 1, "base": -1}, metric="bleu", expect=expect, margin=margin)  # type: ignore[arg-type]


@pytest.mark.parametrize("mean", [-0.4, 0.03, 0.7])
@pytest.mark.parametrize("spread", [0.1, 0.6])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_states_follow_from_the_tests_of_scipy(mean, spread, n):
    shape = np.array([-1, 1] + [0] * (n - 2), dtype=float)
    values = mean + spread * shape / shape.std(ddof=1)

    def p(value: float, alternative: str) -> float:
        return scipy.stats.ttest_1samp(values, value, alternative=alternative).pvalue

    same = max(p(-0.5, "greater"), p(0.5, "less")) < 0.05
    outside = min(p(-0.5, "less"), p(0.5, "greater")) < 0.025
    expected = "contradicted" if outside else "reproduced" if same else "inconclusive"
    assert decide(part("equal", 0.5), mean, spread, n) == expected
    no_worse = (
        "contradicted" if p(-0.5, "less") < 0.025 else "reproduced" if p(-0.5, "greater") < 0.025 else "inconclusive"
    )
    assert decide(part("at-least", 0.5), mean, spread, n) == no_worse
    nothing = max(p(-0.1, "greater"), p(0.1, "less")) < 0.05
    refuted = p(0, "greater") < 0.025 or nothing
    below = "contradicted" if refuted else "reproduced" if p(0, "less") < 0.025 else "inconclusive"
    assert decide(part("below", 0.1), mean, spread, n) == below
    mirrored = decide(part("above", 0.1), -mean, spread, n)
    assert mirrored == below
    assert decide(part("at-most", 0.5), -mean, spread, n) == no_worse


@pytest.mark.parametrize("parts", [2, 5])
def test_one_of_several_parts_contradicts_only_at_a_level_corrected_for_their_number(parts):
    n, spread = 5, 0.5
    error = spread / math.sqrt(n)
    alone, corrected = (scipy.stats.t.ppf(1 - 0.025 / count, n - 1) * error for count in (1, parts))
    between = (alone + corrected) / 2
    assert decide(part("below", 0.1), between, spread, n) == "contradicted"
    assert decide(part("below", 0.1), between, spread, n, parts=parts) == "inconclusive"
    assert decide(part("below", 0.1), 1.01 * corrected, spread, n, parts=parts) == "contradicted"
    # What is claimed needs no correction: all parts have to hold.
    assert decide(part("below", 0.1), -between, spread, n, parts=parts) == "reproduced"
    narrow = 0.05
    alone, corrected = (
        0.1 - scipy.stats.t.ppf(1 - 0.05 / count, n - 1) * narrow / math.sqrt(n) for count in (1, parts)
    )
    between = (alone + corrected) / 2
    assert decide(part("above", 0.1), between, narrow, n) == "contradicted"
    assert decide(part("above", 0.1), -between, narrow, n, parts=parts) != "contradicted"


def test_the_seeds_that_would_be_needed_are_the_fewest_that_decide():
    needed = seeds_needed(part("below", 0.1), -0.4, 0.6, 3)
    critical = {n: scipy.stats.t.ppf(0.975, n - 1) * 0.6 / math.sqrt(n) for n in (needed - 1, needed)}
    assert critical[needed] < 0.4 < critical[needed - 1]
    assert seeds_needed(part("equal", 0.5), 0.5, 3.0, 3) is None


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_difference_that_is_not_there_is_seldom_told(n):
    """2 000 contrasts without any effect: each side is found in at most one of 40."""
    drawn = np.random.default_rng(n).normal(0.0, 1.0, size=(2000, n))
    found = [decide(part("below", 0.1), row.mean(), row.std(ddof=1), n) for row in drawn]
    assert np.mean([state == "reproduced" for state in found]) < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 2000)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_rows_that_lie_the_margin_apart_are_seldom_told_equal(n):
    drawn = np.random.default_rng(n).normal(0.5, 0.15, size=(2000, n))
    found = [decide(part("equal", 0.5), row.mean(), row.std(ddof=1), n) for row in drawn]
    assert np.mean([state == "reproduced" for state in found]) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
