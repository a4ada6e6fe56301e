import dataclasses
import json
import math
import random
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from reports_study import SyntheticStudy, tiny_config
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from reports.records import texts
from reports.records.study import Run, Study, Variant, load_study
from reports.statistics import randomisation, significance
from reports.statistics.intervals import interval_of, mean_interval, t_test
from reports.statistics.lengths import fall_of
from reports.statistics.measures import Measure, bleu_on_test, contrast, difference, log_loss
from reports.statistics.randomisation import References, compare, signature
from repro.config import TransformerConfig
from repro.files import digest_of_file, write_bytes, write_json

VALUES = [
    [31.2, 30.4],
    [27.9, 28.3, 28.8],
    [-1.2, -0.4, -2.2, -0.9, -1.5],
    [0.3, -0.2, 0.1, 0.4, -0.6, 0.2, 0.05, 0.0, 0.11, -0.3],
]


# Student's t.


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_the_interval_of_a_mean_is_scipys(values, level):
    interval = mean_interval(values, level)
    low, high = scipy.stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=scipy.stats.sem(values))
    assert interval is not None
    assert (interval.low, interval.high, interval.level) == (pytest.approx(low), pytest.approx(high), level)
    assert interval.half == pytest.approx((high - low) / 2)


def test_one_value_has_no_interval_and_no_test():
    assert mean_interval([31.2]) is None
    assert mean_interval([]) is None
    assert t_test([0.4]) is None


@pytest.mark.parametrize("values", VALUES)
def test_the_test_over_seeds_is_scipys_paired_test(values):
    base = [30.0 + 0.1 * number for number in range(len(values))]
    other = [b + value for b, value in zip(base, values, strict=True)]
    assert t_test(values) == pytest.approx(scipy.stats.ttest_rel(other, base).pvalue)


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("margin", [0.3, 0.5, 2.0])
def test_a_90_per_cent_interval_inside_the_margin_is_two_one_sided_tests_at_5_per_cent(values, margin):
    above = scipy.stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    below = scipy.stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert mean_interval(values, 0.9).within(-margin, margin) == (max(above, below) < 0.05)


def test_values_that_are_all_alike_carry_no_p_unless_they_are_zero():
    assert t_test([0.5, 0.5, 0.5]) is None
    assert t_test([0.0, 0.0, 0.0]) == 1.0


@pytest.mark.parametrize("n", [3, 5, 10])
def test_seed_intervals_cover_the_truth_in_95_of_100_cases(n):
    """2 000 tables of 20 rows; base's seeds are shared by all differences of a table."""
    tables, rows = 2000, 20
    drawn = np.random.default_rng(n).normal(30.0, 0.4, size=(tables, rows + 1, n))
    means = drawn[:, 1:]
    differences = means - drawn[:, :1]
    for values, truth in ((means, 30.0), (differences, 0.0)):
        mean, spread = values.mean(axis=2), values.std(axis=2, ddof=1)
        half = interval_of(0.0, 1.0, n).high * spread
        assert 0.93 < float(np.mean(np.abs(mean - truth) <= half)) < 0.97
    # The same interval as the one that tables show.
    shown = mean_interval(list(differences[7, 3]))
    middle, spread = differences[7, 3].mean(), differences[7, 3].std(ddof=1)
    assert shown.high == pytest.approx(middle + interval_of(0.0, 1.0, n).high * spread)


def test_an_aggregate_has_its_interval():
    measure = Measure(values=(30.0, 31.0, 32.0), runs=("a", "b", "c"), planned=3)
    assert measure.interval.high - 31.0 == pytest.approx(scipy.stats.t.ppf(0.975, 2) / math.sqrt(3))
    assert Measure(values=(30.0,), runs=("a",), planned=1).interval is None


# Holm.


def test_holm_is_as_worked_by_hand():
    # Sorted .005 .01 .03 .04 times 4, 3, 2, 1: .02 .03 .06 .04, then never below the one before.
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.6, 0.5]) == [1.0, 1.0]
    assert significance.holm([0.04]) == [0.04]
    assert significance.holm([]) == []


@pytest.mark.parametrize("n", [3, 5, 10])
def test_a_table_in_which_nothing_differs_gives_a_false_alarm_in_at_most_5_of_100(n):
    """100 000 tables of 20 rows like base, whose runs all differences share: 2 000 would not tell 4.8 from 5.2."""
    rows, alarms, uncorrected = 20, [], []
    for part in range(20):
        drawn = np.random.default_rng([n, part]).normal(30.0, 0.4, size=(5000, rows + 1, n))
        differences = drawn[:, 1:] - drawn[:, :1]
        t = differences.mean(axis=2) / (differences.std(axis=2, ddof=1) / math.sqrt(n))
        least = 2 * scipy.stats.t.sf(np.abs(t).max(axis=1), n - 1)
        # A table has a false alarm when its least p has one: Holm multiplies that by the number of rows.
        alarms.append(np.mean(rows * least < 0.05))
        uncorrected.append(np.mean(least < 0.05))
    assert 0.03 < np.mean(alarms) < 0.05
    assert np.mean(uncorrected) > 0.3
    p = 2 * scipy.stats.t.sf(np.abs(t[:2000]), n - 1)
    told = [min(significance.holm(list(row))) < 0.05 for row in p]
    assert told == list(rows * p.min(axis=1) < 0.05)
    assert np.mean(told) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    # The same p as a study's own.
    study = memory_study({f"r{row}": list(drawn[3, row + 1]) for row in range(rows)}, list(drawn[3, 0]))
    tests = significance.table_tests(study)
    assert [tests[f"r{row}"].seeds.p for row in range(rows)] == pytest.approx(list(p[3]))
    assert [tests[f"r{row}"].seeds_corrected for row in range(rows)] == pytest.approx(significance.holm(list(p[3])))


def memory_study(rows: dict[str, list[float]], base: list[float], same: dict[str, str] | None = None) -> Study:
    """A finished study whose runs have just their BLEU; `same`: rows that share the runs of another."""
    values = {"base": base, **rows}
    runs = [
        Run(
            id=f"{row}-s{seed}", variant=row, seed=seed, hash="", path=Path(f"{(same or {}).get(row, row)}-{seed}"),
            same_as=None, state="done", settings={}, environment={},
            result={"test": {"bleu": value}, "valid": {"perplexity": 2.0}},
        )
        for row, found in values.items()
        for seed, value in enumerate(found, 1)
    ]  # fmt: skip
    return Study(
        path=Path("nowhere"), name="x", table="table3", scale="smoke", seeds=tuple(range(1, len(base) + 1)),
        overrides=(), data={"directory": "data"}, created="", version="", planned_base={},
        variants=tuple(Variant(id=row, group="A", title=row, changes={}) for row in values), runs=tuple(runs),
    )  # fmt: skip


# Over seeds.


def test_rows_are_paired_by_seed_and_corrected_over_the_table():
    base = [30.0, 31.0, 29.5, 30.5]
    rows = {"clear": [25.0, 26.1, 24.4, 25.6], "noise": [30.4, 30.2, 30.0, 30.1], "other": [29.0, 30.8, 29.1, 29.0]}
    tests = significance.table_tests(memory_study(rows, base))
    p = [scipy.stats.ttest_rel(values, base).pvalue for values in rows.values()]
    assert [tests[row].seeds.p for row in rows] == pytest.approx(p)
    assert tests["clear"].seeds_corrected == pytest.approx(3 * p[0])
    assert tests["clear"].significant
    assert not tests["noise"].significant
    assert "base" not in tests


def test_a_configuration_under_two_names_counts_once_in_the_correction():
    base, values = [30.0, 31.0, 29.5], [25.0, 26.2, 24.1]
    rows = {"E.learned": values, "positions.learned": values}
    tests = significance.table_tests(memory_study(rows, base, {"positions.learned": "E.learned"}))
    p = scipy.stats.ttest_rel(values, base).pvalue
    assert tests["E.learned"].seeds_corrected == pytest.approx(p)
    assert tests["positions.learned"].seeds_corrected == pytest.approx(p)


def test_one_seed_gives_no_p_over_seeds_and_says_why():
    tests = significance.table_tests(memory_study({"A.h1": [28.0]}, [30.0]))
    assert tests["A.h1"].seeds.p is None
    assert "no test over seeds" in tests["A.h1"].seeds.detail
    assert not tests["A.h1"].significant


@cache
def least_sign_flip_p(n: int) -> float:
    """By going through every signing of differences that all point one way."""
    sums = [abs(sum(signs)) for signs in product((-1, 1), repeat=n)]
    return sum(found >= n for found in sums) / len(sums)


@pytest.mark.parametrize("n", [2, 3, 5, 6, 8])
def test_what_seeds_allow_is_said(n):
    text = significance.what_seeds_allow(n)
    least = least_sign_flip_p(n)
    assert (f"p = {least:g}" if n < 6 else f"p = {least:.3f}") in text
    assert ("six seeds would allow 0.031" in text) == (n < 6)
    # A mean of this many standard deviations is just significant.
    shape = np.array([(-1) ** i for i in range(n)] if n % 2 == 0 else [-1, 0, 1] + [0] * (n - 3), dtype=float)
    shape = (shape - shape.mean()) / shape.std(ddof=1)
    needed = scipy.stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    assert f"{needed:.2f} times its standard deviation" in text
    assert scipy.stats.ttest_1samp(shape + needed, 0).pvalue == pytest.approx(0.05)


def test_one_seed_allows_nothing_and_what_six_would_is_said():
    assert "no test over seeds" in significance.what_seeds_allow(1)
    assert "six" in significance.what_seeds_allow(1)
    assert "0.031" in significance.what_seeds_allow(1)


# On the test set.

WORDS = [
    *("the", "a", "man", "woman", "dog", "in", "on", "with", "ball", "street", "plays", "runs", "red", "blue", "young"),
    "It's",
    "half-time,",
    "§ü",
]


def sentences(count: int) -> list[str]:
    rng = random.Random(5)
    return [
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(0 if i % 40 == 7 else 3, 15))) + " ."
        for i in range(count)
    ]


def translations(reference: list[str], seed: int, errors: float) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) if rng.random() < errors else word for word in line.split()) for line in reference
    ]


def sacrebleu_command(folder: Path, reference: list[str], *systems: list[str]) -> list[dict]:
    """What `sacrebleu REF -i BASE SYSTEM... -m bleu --paired-ar` prints."""
    names = []
    for name, lines in zip(["ref", *(f"sys{i}" for i in range(len(systems)))], [reference, *systems], strict=True):
        path = folder / f"{name}.txt"
        write_bytes(path, "".join(line + "\n" for line in lines).encode())
        names.append(str(path))
    command = [sys.executable, "-m", "sacrebleu", names[0], "-i", *names[1:], "-m", "bleu", "--paired-ar", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_paired_randomisation_is_sacrebleus_own_command(tmp_path):
    reference = sentences(300)
    systems = [
        translations(reference, seed, errors) for seed, errors in [(1, 0.3), (2, 0.3), (3, 0.31), (4, 0.36), (5, 0.9)]
    ]
    printed = sacrebleu_command(tmp_path, reference, *systems)
    references = References(reference)
    counts = [references.statistics(lines) for lines in systems]
    ours = compare([counts[0]] * 4, counts[1:])
    assert [found.p for found in ours] == [entry["BLEU"]["p_value"] for entry in printed[1:]]
    assert len({found.p for found in ours}) > 2
    base = printed[0]["BLEU"]["score"]
    assert [found.difference for found in ours] == [entry["BLEU"]["score"] - base for entry in printed[1:]]
    assert [found.p_with_ties for found in ours] == [found.p for found in ours]


def test_where_shuffles_tie_both_p_are_told(tmp_path):
    """Few sentences differ: sacreBLEU leaves out shuffles that tie, which a randomisation test has to count."""
    reference = sentences(60)
    base = translations(reference, 1, 0.3)
    one, three = list(base), list(base)
    one[3] = reference[3]
    for line in (3, 9, 20):
        three[line] = reference[line]
    printed = sacrebleu_command(tmp_path, reference, base, one, three, base)
    references = References(reference)
    counts = [references.statistics(lines) for lines in (base, one, three, base)]
    found = compare([counts[0]] * 3, counts[1:])
    assert [comparison.p for comparison in found] == [entry["BLEU"]["p_value"] for entry in printed[1:]]
    assert found[0].p == pytest.approx(1 / 10_001)
    # One sentence: every shuffle ties. Three, all better: all must fall on one side, one signing in four.
    assert found[0].p_with_ties == 1.0
    assert found[1].p_with_ties == pytest.approx(0.25, abs=0.02)
    assert found[2].p_with_ties == 1.0


def paired_by_sacrebleu(reference: list[str], *systems: list[str]) -> list[float]:
    """p of sacreBLEU's own library for each system after the first."""
    named = [(str(number), lines) for number, lines in enumerate(systems)]
    _, scores = PairedTest(named, {"BLEU": BLEU()}, [reference], test_type="ar")()
    return [result.p_value for result in scores["BLEU"][1:]]


def test_poor_systems_without_longer_matches_are_smoothed_as_by_sacrebleu():
    reference = ["the man runs", "a dog plays in the street", "two young women", "red ball on a street", "a man"] * 2
    backwards = [" ".join(reversed(line.split())) for line in reference]
    some = [
        (line, other, "")[(0, 1, 0, 2, 0)[n % 5]]
        for n, (line, other) in enumerate(zip(backwards, reference, strict=True))
    ]
    words = [" ".join(line.split()[n % 2 : 2]) for n, line in enumerate(reference)]
    references = References(reference)
    counts = [references.statistics(lines) for lines in (backwards, some, words)]
    assert counts[0].sum(axis=0)[3:6].tolist() == [0, 0, 0]
    found = compare([counts[0]] * 2, counts[1:])
    assert [comparison.p for comparison in found] == paired_by_sacrebleu(reference, backwards, some, words)
    assert len({comparison.p for comparison in found}) == 2


def test_statistics_are_sacrebleus_for_any_text():
    rng = random.Random(4)
    pieces = ["a", "b", "c", "d", "x.", "e,", "1.5", "10-20", "&quot;", "<skipped>", "(f)", "é", "नम", "\u2028", "-"]
    for _ in range(200):
        count = rng.randint(1, 12)
        reference, system = (
            [" ".join(rng.choice(pieces) for _ in range(rng.choice([0, 1, 2, 3, 5, 9, 14]))) for _ in range(count)]
            for _ in range(2)
        )
        expected = BLEU(references=[reference])._extract_corpus_statistics(system, None)
        assert References(reference).statistics(system).tolist() == expected


def test_rounding_never_decides_a_tie(monkeypatch):
    """Another translation of one line: all shuffles have the same difference, whatever the last digit says."""
    scored, rng = randomisation._bleu, np.random.default_rng(1)
    monkeypatch.setattr(randomisation, "_bleu", lambda rows: scored(rows) + rng.normal(0.0, 1e-12, len(rows)))
    reference = sentences(60)
    base = translations(reference, 1, 0.3)
    systems = [[*base[:line], f"{reference[line]} {reference[line - 1]}", *base[line + 1 :]] for line in range(8)]
    references = References(reference)
    found = compare([references.statistics(base)] * 8, [references.statistics(lines) for lines in systems])
    assert {comparison.p for comparison in found} == {1 / 10_001}
    assert {comparison.p_with_ties for comparison in found} == {1.0}


def test_odd_texts_are_counted_as_sacrebleu_counts_them(tmp_path):
    reference = [
        "Ein Mann.",
        "",
        "a b c d",
        "x",
        "U\u2028V w \u00a0 z",
        "नमस्ते दुनिया , ठीक है ?",
        "“So,” 3.5 km/h – ja!",
    ] * 4
    base = ["", "something", "a b c d a b c d", "x", "U V w z", "नमस्ते दुनिया , ठीक ?", '"So," 3.5 km/h - nein!'] * 4
    other = ["Ein Mann .", "", "a b", "", "U\u2028V w z", "नमस्ते , है ?", "“So,” 3,5 km/h – ja!"] * 4
    nothing = [""] * len(reference)
    references = References(reference)
    counts = [references.statistics(lines) for lines in (base, other, nothing)]
    assert counts[0].tolist() == BLEU(references=[reference])._extract_corpus_statistics(base, None)
    ours = compare([counts[0]] * 2, counts[1:])
    assert [found.p for found in ours] == paired_by_sacrebleu(reference, base, other, nothing)


def test_the_signature_is_the_commands(tmp_path):
    paths = [str(tmp_path / name) for name in ("ref", "base", "system")]
    for path in paths:
        write_bytes(Path(path), "".join(line + "\n" for line in sentences(20)).encode())
    command = [sys.executable, "-m", "sacrebleu", paths[0], "-m", "bleu", "--paired-ar", "-f", "text", "-i", *paths[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert signature() in done.stdout + done.stderr


def scored_study(folder: Path, rows: dict[str, list[float]], *, with_corpus: bool = True) -> Study:
    """A study on disk: `rows` give the share of wrong words for each seed; base has 30 %."""
    reference = sentences(120)
    raw = folder / "data" / "raw" / "test.xx"
    raw.parent.mkdir(parents=True)
    write_bytes(raw, "".join(line + "\n" for line in reference).encode())
    write_json(folder / "data" / "manifest.json", {"languages": ["en", "xx"]})
    study = SyntheticStudy(folder, base=tiny_config())
    for number, (row, errors) in enumerate({"base": [0.3] * 3, **rows}.items()):
        study.variant(row, row.split(".")[0], row, {})
        model = TransformerConfig(n_layers=2, d_model=32, d_ff=64 + number, n_heads=4)
        for seed, share in enumerate(errors, 1):
            run = study.run(
                tiny_config(variant=row, seed=seed, model=model), test={"reference_sha256": digest_of_file(raw)}
            )
            run.write_hypotheses("test", translations(reference, 100 * seed + len(row), share))
    study.write()
    if not with_corpus:
        raw.unlink()
    return load_study(folder)


def test_each_pair_of_models_is_tested_by_sacrebleu_and_the_largest_p_is_told(tmp_path):
    study = scored_study(tmp_path / "s", {"A.h1": [0.34, 0.36, 0.33], "A.h16": [0.2, 0.4, 0.3]})
    reference = sentences(120)
    runs = {(run.variant, run.seed): run.path / "hypotheses" / "test.txt" for run in study.runs}
    lines = {key: path.read_text(encoding="utf-8").split("\n")[:-1] for key, path in runs.items()}
    printed = [paired_by_sacrebleu(reference, lines["base", seed], lines["A.h1", seed])[0] for seed in (1, 2, 3)]
    tests = significance.table_tests(study)
    assert tests["A.h1"].test_set.pairs == tuple(printed)
    assert tests["A.h1"].test_set.p == max(printed)
    assert tests["A.h1"].test_set.n == 3
    assert tests["A.h1"].test_set.signature == signature()
    # Better with one seed, worse with another: no direction that all pairs share.
    assert tests["A.h16"].test_set.p == 1.0
    assert "disagree" in tests["A.h16"].test_set.detail
    corrected = significance.holm([max(printed), 1.0])
    assert tests["A.h1"].test_set_corrected == corrected[0]
    assert "training them again" in tests["A.h1"].test_set.detail


def test_without_the_reference_no_p_is_given_and_it_is_said(tmp_path):
    tests = significance.table_tests(scored_study(tmp_path, {"A.h1": [0.5, 0.5, 0.5]}, with_corpus=False))
    assert tests["A.h1"].test_set.p is None
    assert tests["A.h1"].test_set_corrected is None
    assert "reference is not at hand" in tests["A.h1"].test_set.detail
    assert tests["A.h1"].seeds.p is not None


def test_another_reference_than_the_one_scored_on_is_not_used(tmp_path):
    study = scored_study(tmp_path, {"A.h1": [0.5, 0.5, 0.5]})
    path = texts.reference_of(study)
    assert path == tmp_path / "data" / "raw" / "test.xx"
    path.write_text(path.read_text(encoding="utf-8") + "one more\n", encoding="utf-8")
    assert texts.reference_of(study) is None


def test_missing_or_shortened_translations_give_no_p_for_their_row(tmp_path):
    study = scored_study(tmp_path, {"A.h1": [0.5, 0.5, 0.5], "A.h4": [0.5] * 3, "A.h16": [0.5] * 3})
    of = {(run.variant, run.seed): run.path / "hypotheses" / "test.txt" for run in study.runs}
    of["A.h1", 2].unlink()
    of["A.h4", 3].write_text("short\n", encoding="utf-8")
    tests = significance.table_tests(study)
    for row in ("A.h1", "A.h4"):
        assert tests[row].test_set.p is None
        assert "missing or not one a line" in tests[row].test_set.detail
    assert tests["A.h16"].test_set.p == pytest.approx(1 / 10_001)


def test_a_rewritten_file_of_translations_is_tested_anew(tmp_path):
    study = scored_study(tmp_path, {"A.h1": [0.9, 0.9, 0.9]})
    before = significance.table_tests(study)["A.h1"].test_set.p
    for run in study.by_variant["A.h1"]:
        lines = translations(sentences(120), 9, 0.3)
        write_bytes(run.path / "hypotheses" / "test.txt", "".join(line + "\n" for line in lines).encode())
    assert significance.table_tests(study)["A.h1"].test_set.p > before


# Contrasts.


def test_a_contrast_of_two_rows_is_the_difference_and_skips_seeds_that_lack_one():
    study = memory_study({"A.h1": [28.0, 29.5]}, [30.0, 31.0, 29.5])
    rows = study.by_variant
    found = contrast(rows, {"A.h1": 1, "base": -1}, bleu_on_test)
    assert found.values == difference(rows["A.h1"], rows["base"], bleu_on_test).values == (-2.0, -1.5)
    assert found.planned == 2
    assert found.runs == ("A.h1-s1", "base-s1", "A.h1-s2", "base-s2")
    assert contrast(rows, {"base": 1, "A.h1": -1}, bleu_on_test).values == (2.0, 1.5)
    halved = contrast(rows, {"A.h1": 1, "base": -0.5}, bleu_on_test)
    assert halved.values == (13.0, 14.0)


def test_the_fall_with_length_is_a_weighted_line_over_its_mean():
    groups = [(0, 10, 200, 34.0), (11, 20, 150, 30.0), (21, 30, 40, 27.0), (51, None, 10, 12.0)]
    middles, weights, bleu = [5, 15.5, 25.5, 55.5], [200, 150, 40, 10], [34.0, 30.0, 27.0, 12.0]
    slope = np.polyfit(middles, bleu, 1, w=np.sqrt(weights))[0]
    run = memory_study({}, [30.0]).runs[0]
    run.result["test"]["bleu_by_length"] = [
        {"from": start, "to": end, "sentences": count, "bleu": score} for start, end, count, score in groups
    ]
    assert fall_of("reference")(run) == pytest.approx(10 * slope / np.average(bleu, weights=weights))
    run.result["test"]["bleu_by_length"] = run.result["test"]["bleu_by_length"][:1]
    assert fall_of("reference")(run) is None


def test_perplexity_is_compared_by_the_ratio_of_losses():
    run = memory_study({}, [30.0]).runs[0]
    other = dataclasses.replace(run, result={"valid": {"perplexity": 4.0}})  # two bits a piece instead of one
    assert log_loss(other) - log_loss(run) == pytest.approx(math.log(2.0))
    assert log_loss(dataclasses.replace(run, result={"valid": {"perplexity": 1.0}})) is None
