"""Tables and the numbers in them: means, differences, published values, and what is said where some are missing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import scipy.stats
import yaml
from reports_study import SyntheticStudy, full_study, tiny_config

import reports.records.paper
from reports.formats import counted, duration, fixed, listed, moment, plain, power, scientific, signed, times
from reports.pages.markdown import escape
from reports.records.paper import load_paper
from reports.records.study import Run, load_study
from reports.statistics.budgets import budget
from reports.statistics.measures import bleu_on_test, difference, direction, measure
from reports.tables.smoke import smoke_table
from reports.tables.table1 import complexity_table, power_of
from reports.tables.table2 import cost_table
from reports.tables.table3 import main_table
from repro.config import TransformerConfig
from repro.errors import CheckError


def small(**changes: int) -> TransformerConfig:
    return TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=changes.get("n_heads", 4))


def two_rows(path: Path, base: dict[int, float], row: dict[int, float | None], id: str = "A.h1") -> SyntheticStudy:
    """A study of base and one row with known test BLEU by seed; None: failed."""
    made = SyntheticStudy(path, base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant(id, "A", "1 head", {"model.n_heads": 1, "model.d_k": 32, "model.d_v": 32})
    for seed, bleu in base.items():
        made.run(tiny_config(seed=seed), "done", test={"bleu": bleu})
    for seed, value in row.items():
        config = tiny_config(variant=id, seed=seed, model=small(n_heads=1))
        if value is None:
            made.run(config, "failed", "no luck")
        else:
            made.run(config, "done", test={"bleu": value})
    made.write()
    return made


def test_seconds_over_runs_of_different_machines_are_marked(tmp_path: Path) -> None:
    made = two_rows(tmp_path / "s", {1: 30.0, 2: 31.0}, {1: 20.0, 2: 25.0})
    result = next(made.path.glob("runs/base-s2-*/result.json"))
    result.write_text(json.dumps(json.loads(result.read_text()) | {"device": "Tesla P100-SXM2-16GB"}))
    study = load_study(made.path)
    table, costs = main_table(study), cost_table([study], load_paper())
    base, row = table.rows
    assert [(base.cells[key].marks, row.cells[key].marks) for key in ("seconds", "speed", "flops", "bleu")] == [
        ("¶", ""), ("¶", ""), ("", ""), ("", "")
    ]  # fmt: skip
    assert costs.rows[0].cells["seconds"].marks == "¶"
    assert "different machines" in table.footnotes["¶"]
    assert "different machines" in costs.footnotes["¶"]


def test_the_mean_is_over_the_finished_seeds(tmp_path: Path) -> None:
    study = load_study(two_rows(tmp_path / "s", {1: 30.0, 2: 31.0}, {1: 20.0, 2: 25.0, 3: None}).path)
    values = measure(study.by_variant["A.h1"], bleu_on_test)
    assert values.mean == 22.5
    assert (values.n, values.planned, values.complete) == (2, 3, False)
    cell = next(row for row in main_table(study).rows if row.id == "A.h1").cells["bleu"]
    assert (cell.value, cell.text, cell.note) == (22.5, "22.5", "2/3 seeds")
    assert [study.by_variant["A.h1"][0].id, study.by_variant["A.h1"][1].id] == list(cell.runs)


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    # Seed 3 of base has no partner, and seed 2 of the row failed: only seed 1 tells a difference.
    study = load_study(two_rows(tmp_path / "s", {1: 30.0, 2: 31.0, 3: 90.0}, {1: 28.0, 2: None}).path)
    values = difference(study.by_variant["A.h1"], study.by_variant["base"], bleu_on_test)
    assert values.values == (-2.0,)
    cell = next(row for row in main_table(study).rows if row.id == "A.h1").cells["difference"]
    assert (cell.text, cell.note) == ("−2.0", "1/2 seeds")
    assert len(cell.runs) == 2


def test_a_missing_base_seed_marks_the_difference(tmp_path: Path) -> None:
    study = load_study(two_rows(tmp_path / "s", {1: 30.0}, {1: 28.0, 2: 27.0}).path)
    cell = next(row for row in main_table(study).rows if row.id == "A.h1").cells["difference"]
    assert (cell.text, cell.note) == ("−2.0", "1/2 seeds")


@pytest.mark.parametrize(
    ("row", "published", "word"),
    [
        ({1: 29.0, 2: 28.0}, -0.9, "same"),
        ({1: 31.0, 2: 32.0}, -0.9, "opposite"),
        ({1: 31.0, 2: 29.0}, -0.9, "mixed"),
        ({1: 30.0, 2: 29.0}, -0.9, "mixed"),
        ({1: 30.04, 2: 29.97}, -0.9, "none"),
        ({1: 25.0, 2: 25.0}, 0.0, ""),
        ({1: 25.0, 2: 25.0}, None, ""),
        ({}, -0.9, ""),
    ],
)
def test_the_direction_is_that_of_every_seed(
    tmp_path: Path, row: dict[int, float | None], published: float | None, word: str
) -> None:
    study = load_study(two_rows(tmp_path / "s", {1: 30.0, 2: 30.0}, row).path)
    values = difference(study.by_variant["A.h1"], study.by_variant["base"], bleu_on_test)
    assert direction(values, published) == word


def test_only_changed_cells_are_shown_and_base_shows_all(tmp_path: Path) -> None:
    table = main_table(load_study(full_study(tmp_path / "s", table="table3", seeds=(1,)).path))
    rows = {row.id: row for row in table.rows}
    settings = [column.key for column in table.columns if column.block == "model"]
    shown = {id: {key: row.cells[key].text for key in settings if row.cells[key].text} for id, row in rows.items()}
    assert len(shown["base"]) == len(settings)
    base = shown["base"]
    assert shown["A.h1"] == {
        "model.n_heads": "1",
        "model.d_k": base["model.d_model"],
        "model.d_v": base["model.d_model"],
    }
    assert shown["B.dk-quarter"] == {"model.d_k": str(int(base["model.d_k"]) // 4)}
    assert shown["D.smoothing-0"] == {"train.label_smoothing": "0"}
    assert shown["E.learned"] == {"model.positions": "learned"}
    assert shown["big"].keys() >= {"model.d_model", "model.d_ff", "model.n_heads", "model.dropout", "train.budget"}
    assert "model.scale_attention" not in settings


def test_the_groups_stand_in_the_papers_order(tmp_path: Path) -> None:
    study = full_study(tmp_path / "s", table="positions+scaling+table3", seeds=(1,))
    table = main_table(load_study(study.path))
    labels = [group.label for group in table.groups]
    assert labels == ["base", "(A)", "(B)", "(C)", "(D)", "(E)", "big", "scaling", "positions"]
    assert "model.scale_attention" in [column.key for column in table.columns]


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    table = main_table(load_study(full_study(tmp_path / "s", table="table3", seeds=(1,)).path))
    rows = {row.id: row.cells for row in table.rows}
    names = ("paper.perplexity", "paper.bleu", "paper.difference", "paper.parameters")
    printed = {
        "base": ("4.92", "25.8", "", "65"),
        "A.h16": ("4.91", "25.8", "0.0", ""),
        "C.layers-third": ("6.11", "23.7", "−2.1", "36"),
        "C.ff-double": ("4.75", "26.2", "+0.4", "90"),
        "big": ("4.33", "26.4", "+0.6", "213"),
    }
    for id, texts in printed.items():
        assert tuple(rows[id][name].text for name in names) == texts
    assert all(not rows[id][name].runs for id in printed for name in names)


def test_a_table_without_published_rows_has_no_paper_columns(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("mine", "mine", "mine", {})
    made.run(tiny_config(variant="mine"))
    assert not [column for column in main_table(load_study(made.write())).columns if column.block == "paper"]


def test_another_budget_is_marked(tmp_path: Path) -> None:
    table = main_table(load_study(full_study(tmp_path / "s", table="table3", seeds=(1,)).path))
    assert [row.id for row in table.rows if "†" in row.marks] == ["big"]
    assert "another budget" in table.footnotes["†"]


def test_incomplete_rows_are_marked_and_counted(tmp_path: Path) -> None:
    states = {("A.h1", 2): ("failed", "x"), ("A.h1", 3): ("missing", ""), ("A.h4", 1): ("running", "")}
    made = full_study(tmp_path / "s", only=["base", "A.h1", "A.h4"], states=states)
    rows = {row.id: row for row in main_table(load_study(made.path)).rows}
    made.close()
    assert (rows["A.h1"].cells["seeds"].text, rows["A.h1"].cells["seeds"].note) == ("1/3 seeds", "1 failed, 1 missing")
    assert (rows["A.h4"].cells["seeds"].text, rows["A.h4"].cells["seeds"].note) == ("2/3 seeds", "1 running")
    assert rows["base"].cells["seeds"].text == "3"
    assert [id for id, row in rows.items() if "‡" in row.marks] == ["A.h1", "A.h4"]


def test_a_row_that_shares_runs_says_so(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", table="table3+positions", seeds=(1,)).path)
    rows = {row.id: row for row in main_table(study).rows}
    assert rows["positions.learned"].extra == "the same runs as E.learned"
    assert rows["positions.learned"].cells["bleu"].value == rows["E.learned"].cells["bleu"].value
    assert len(study.trained) == len(study.runs) - 1


def test_another_family_has_dashes_where_it_has_no_such_size(tmp_path: Path) -> None:
    from repro.config.baselines import LstmConfig
    from repro.files import digest_of, read_json, write_json

    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    changes = {"model.family": "lstm", "model.d_hidden": 64, "model.n_layers": 4}
    made.variant("baseline.lstm", "baselines", "LSTM", changes)
    made.run(tiny_config())
    run = made.run(tiny_config(variant="baseline.lstm", seed=2))
    document = read_json(run.path / "config.json")
    document["config"]["model"] = {"family": "lstm", "n_layers": 4, "d_hidden": LstmConfig().d_hidden}
    identity = {key: value for key, value in document["config"].items() if key not in ("variant", "table")}
    document["hash"] = digest_of({"config": identity, "semantics": document["semantics"]})
    write_json(run.path / "config.json", document)
    made.runs[-1]["hash"] = document["hash"]
    row = next(row for row in main_table(load_study(made.write())).rows if row.id == "baseline.lstm")
    assert row.cells["model.n_layers"].text == "4"
    assert row.cells["model.n_heads"].text == "–"
    assert row.cells["bleu"].value is not None
    assert row.extra == ""


def test_cost_columns_name_their_units(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", only=["base", "C.width-half"], seeds=(1,)).path)
    table = main_table(study)
    columns = {column.key: column for column in table.columns}
    assert columns["speed"].unit == "target tokens/s"
    flops = [run.number("train_flops") or 0.0 for run in study.finished]
    exponent = math.floor(math.log10(min(flops)))
    assert columns["flops"].unit == f"our count, ×{power(exponent)}"
    base = next(row for row in table.rows if row.base)
    assert base.cells["flops"].text == f"{flops[0] / 10**exponent:.2f}"


def test_a_run_of_another_configuration_is_not_read_as_the_planned_one(tmp_path: Path) -> None:
    made = two_rows(tmp_path / "s", {1: 30.0}, {1: 28.0})
    made.runs[1]["hash"] = "0" * 64
    made.write()
    run = load_study(made.path).runs[1]
    assert run.state == "unreadable"
    assert "planned was 000000000000" in run.reason


def test_a_moved_study_is_read_where_it_is(tmp_path: Path) -> None:
    made = two_rows(tmp_path / "s", {1: 30.0}, {1: 28.0})
    made.path.rename(tmp_path / "elsewhere")
    study = load_study(tmp_path / "elsewhere")
    assert (study.name, len(study.finished)) == ("elsewhere", 2)


def test_shares_of_the_smoke_language_are_means_over_seeds(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", table="positions", seeds=(1, 2)).path)
    table = smoke_table(study)
    assert table is not None
    assert [column.symbol for column in table.columns] == ["exact", "particles", "1–2", "3–5", "6–9", "10+"]
    values = [run.result["test"]["smoke"]["exact_match"] for run in study.by_variant["base"]]
    cell = table.rows[0].cells["exact_match"]
    assert cell.value == pytest.approx(fmean(values))
    assert cell.text == f"{100 * fmean(values):.1f}"


def test_other_corpora_have_no_smoke_section(tmp_path: Path) -> None:
    assert smoke_table(load_study(full_study(tmp_path / "s", scale="multi30k-cpu", only=["base"]).path)) is None


def test_published_numbers_are_those_of_table_3() -> None:
    paper = load_paper()
    assert len([id for id in paper.rows if not id.startswith("positions")]) == 20
    assert (paper.base.bleu, paper.base.perplexity, paper.base.parameters) == (25.8, 4.92, 65)
    assert paper.rows["A.h1"].bleu_difference == -0.9
    assert paper.rows["D.smoothing-0"].perplexity == 4.67
    assert paper.base_target_tokens == 2.5e9
    assert paper.rows["positions.learned"] is paper.rows["E.learned"]


def test_every_block_of_published_numbers_names_its_source() -> None:
    document = yaml.safe_load(Path(reports.records.paper.__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
    for block in ("table1", "table2", "table3"):
        assert "Table" in document[block]["from"]
    for block in document["protocol"].values():
        assert "section" in block["from"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (fixed(12345.678, 1), "12\u202f345.7"),
        (fixed(-0.04, 1), "0.0"),
        (fixed(-3.0, 0), "−3"),
        (signed(0.04, 1), "0.0"),
        (signed(0.05001, 1), "+0.1"),
        (signed(-1.25, 2), "−1.25"),
        (scientific(3.283e18), "3.28×10¹⁸"),
        (scientific(1234.0), "1\u202f234"),
        (plain(True), "on"),
        (plain(None), "none"),
        (plain(0.1), "0.1"),
        (plain(100_000.0), "100\u202f000"),
        (plain(1e15), "1.00×10¹⁵"),
        (plain("learned"), "learned"),
        (duration(42.0), "42 s"),
        (duration(150.0), "2.5 min"),
        (duration(302_400.0), "3.5 days"),
        (times(123.4), "120"),
        (times(1.26), "1.3"),
        (counted(1, "run"), "1 run"),
        (counted(2, "run"), "2 runs"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed([]), ""),
        (moment("2026-01-31T13:05:00+01:00"), "2026-01-31 12:05 UTC"),
        (moment("yesterday"), "yesterday"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_model | 5 * 3", r"d\_model \| 5 \* 3"),
        ("# no heading", r"\# no heading"),
        ("- no list", r"\- no list"),
        ("1. no list", r"1\. no list"),
        ("-1.4 and 1.12", "-1.4 and 1.12"),
        ("---", r"\---"),
        ("<b> & [x](y)", r"&lt;b&gt; &amp; \[x\](y)"),
        ("two\r\nlines", "two lines"),
        ("हिन्दी +1.4", "हिन्दी +1.4"),
    ],
)
def test_markdown_signs_are_harmless(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_a_mean_stands_with_its_interval_over_seeds(tmp_path: Path) -> None:
    base, row = {1: 30.0, 2: 31.0, 3: 33.0}, {1: 28.5, 2: 28.0, 3: 30.1}
    study = load_study(two_rows(tmp_path / "s", base, row).path)
    rows = {row.id: row.cells for row in main_table(study).rows}

    def half(values: list[float]) -> float:
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, np.mean(values), scipy.stats.sem(values))
        return float(high - low) / 2

    bleu, difference_ = rows["A.h1"]["bleu"], rows["A.h1"]["difference"]
    assert bleu.interval is not None
    assert bleu.interval.half == pytest.approx(half(list(row.values())))
    assert (bleu.text, bleu.spread, bleu.n) == ("28.9", f"±{half(list(row.values())):.1f}", 3)
    apart = [row[seed] - base[seed] for seed in base]
    assert (difference_.text, difference_.spread) == ("−2.5", f"±{half(apart):.1f}")
    assert difference_.interval is not None
    assert difference_.interval.half == pytest.approx(half(apart))
    assert rows["base"]["perplexity"].spread.startswith("±")


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    rows = main_table(load_study(two_rows(tmp_path / "s", {1: 30.0}, {1: 28.0}).path)).rows
    assert all(not cell.spread and cell.interval is None for row in rows for cell in row.cells.values())


def test_a_difference_beyond_the_scatter_over_seeds_is_marked(tmp_path: Path) -> None:
    base = {seed: 30.0 + seed / 10 for seed in range(1, 7)}
    clear = {seed: value - 5 + 0.1 * (-1) ** seed for seed, value in base.items()}
    unclear = {seed: value + 2 * (-1) ** seed for seed, value in base.items()}
    for name, row, marks in (("clear", clear, "*"), ("unclear", unclear, "")):
        table = main_table(load_study(two_rows(tmp_path / name, base, dict(row)).path))
        cell = next(row for row in table.rows if row.id == "A.h1").cells["difference"]
        assert cell.marks == marks
        p = scipy.stats.ttest_rel(list(row.values()), list(base.values())).pvalue
        assert f"p = {p:.2g}" in cell.hint
        assert ("*" in table.footnotes) == bool(marks)
    assert "Student" in main_table(load_study(tmp_path / "clear")).footnotes["*"]


def test_a_table_at_an_equal_budget_is_read_off_the_learning_curves(tmp_path: Path) -> None:
    study = load_study(full_study(tmp_path / "s", only=["base", "C.width-half", "big"], seeds=(1, 2)).path)
    at = budget("steps", 1000.0)
    table = main_table(study, budget=at)
    rows = {row.id: row for row in table.rows}

    def bleu_at(run: Run) -> float:
        steps, values = zip(*run.points["valid/bleu"], strict=True)
        return float(np.interp(1000.0, steps, values))

    here = [bleu_at(run) for run in study.by_variant["C.width-half"]]
    assert rows["C.width-half"].cells["bleu"].value == pytest.approx(fmean(here))
    base = [bleu_at(run) for run in study.by_variant["base"]]
    apart = [mine - other for mine, other in zip(here, base, strict=True)]
    assert rows["C.width-half"].cells["difference"].value == pytest.approx(fmean(apart))
    assert not any("†" in row.marks for row in table.rows)
    assert at.label in table.caption
    assert at.label in table.title
    bleu = next(column for column in table.columns if column.key == "bleu")
    assert bleu.heading == "BLEU_valid"
    beyond = main_table(study, budget=budget("steps", 2000.0))  # base ends at 1500 steps, big goes on to 4500
    cells = {row.id: row.cells["bleu"] for row in beyond.rows}
    assert (cells["base"].text, cells["base"].value) == ("–", None)
    assert cells["big"].value is not None


def test_a_row_that_spent_another_budget_than_base_is_marked(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant("mine", "mine", "mine", {"model.n_heads": 1})
    made.run(tiny_config())
    made.run(tiny_config(variant="mine", model=small(n_heads=1)), budget={"unit": "steps", "amount": 90.0})
    assert [row.id for row in main_table(load_study(made.write())).rows if "†" in row.marks] == ["mine"]


def test_the_caption_tells_protocol_test_set_and_signs(tmp_path: Path) -> None:
    caption = main_table(load_study(full_study(tmp_path / "s", only=["base"], seeds=(1,)).path)).caption
    for told in ("sacreBLEU 13a", "cased", "beam 4", "test side (500 sentences)", "smoke", "95 %", "Student", "seeds"):
        assert told in caption


def test_cost_is_given_by_our_count_and_by_the_papers_method(tmp_path: Path) -> None:
    rows = ["base", "A.h1", "big", "baseline.lstm", "baseline.gnmt-flops"]
    study = load_study(full_study(tmp_path / "s", table="table3+baselines", only=rows, seeds=(1, 2)).path)
    table = cost_table([study], load_paper())
    ours, published = table.groups
    assert [row.id for row in ours.rows] == ["base", "big", "baseline.lstm", "baseline.gnmt-flops"]
    runs = study.by_variant["base"]
    rate = max(run.result["padded_flops"] / run.result["train_seconds"] for run in study.finished)
    cells = next(row for row in ours.rows if row.base).cells
    assert cells["flops"].value == fmean(run.result["train_flops"] for run in runs)
    assert cells["method"].value == pytest.approx(fmean(run.result["train_seconds"] for run in runs) * rate)
    assert (
        f"{scientific(rate)} FLOP/s on AMD EPYC & Söhne, 1 thread, fp32 (the highest that a run kept" in table.caption
    )
    units = {column.key: column.unit for column in table.columns}
    assert units["flops"].startswith("our count")
    assert units["method"].startswith("paper's method")
    assert not any(cells.keys() & {"bleu", "flops", "method"} for cells in (row.cells for row in published.rows))
    gnmt = next(row for row in published.rows if row.id == "GNMT + RL")
    texts = {key: cell.text for key, cell in gnmt.cells.items()}
    assert texts == {
        "paper.bleu.en-de": "24.6",
        "paper.bleu.en-fr": "39.92",
        "paper.flops.en-de": "2.3×10¹⁹",
        "paper.flops.en-fr": "1.4×10²⁰",
    }


def test_on_a_gpu_that_the_paper_names_its_own_rate_is_taken(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config(), device="Tesla P100-SXM2-16GB", train_seconds=43_200.0)
    cell = cost_table([load_study(made.write())], load_paper()).rows[0].cells["method"]
    assert cell.value == pytest.approx(43_200 * 9.5e12)


def test_published_systems_are_those_of_table_2() -> None:
    systems = load_paper().systems
    assert len(systems) == 10
    assert (systems[-1].model, systems[-1].bleu_german, systems[-1].flops_german) == ("Transformer big", 28.4, 2.3e19)


def test_table_1_has_the_papers_classes_and_says_that_nothing_was_measured() -> None:
    table = complexity_table(None, load_paper())
    shown = {
        row.id: [cell.text for key, cell in row.cells.items() if not key.startswith(("measured", "expected"))]
        for row in table.rows
    }
    assert shown["self-attention"] == ["O(n² d)", "O(1)", "O(1)"]
    assert shown["convolutional"] == ["O(k n d²)", "O(1)", "O(logₖ n)"]
    assert "Nothing of it was measured" in table.caption
    assert {column.block for column in table.columns} == {"paper"}


def test_measured_exponents_stand_beside_the_classes() -> None:
    exponent = {"value": 1.63, "low": 1.51, "high": 1.75}
    bench = {
        "schema": 1, "device": "cpu", "threads": 1, "lengths": [16, 512], "widths": [64, 1024],
        "layers": [{"layer": "self_attention", "exponents": {"n": exponent, "d": exponent | {"value": 1.0}}}],
    }  # fmt: skip
    table = complexity_table(bench, load_paper())
    rows = {row.id: row.cells for row in table.rows}
    assert (rows["self-attention"]["measured.n"].text, rows["self-attention"]["measured.n"].spread) == ("1.63", "±0.12")
    assert rows["self-attention"]["expected.n"].value == 2
    assert rows["recurrent"]["measured.n"].text == "–"
    assert "n from 16 to 512" in table.caption
    with pytest.raises(CheckError, match="not a document of ablate bench layers"):
        complexity_table({"layers": 3}, load_paper())


@pytest.mark.parametrize(
    ("size", "complexity", "power_"),
    [("n", "O(n^2 d)", 2), ("d", "O(n^2 d)", 1), ("d", "O(k n d^2)", 2), ("n", "O(r n d)", 1), ("n", "O(1)", 0)],
)
def test_the_power_of_a_size_is_read_off_a_class(size: str, complexity: str, power_: int) -> None:
    assert power_of(size, complexity) == power_
