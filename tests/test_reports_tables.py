"""Tables and the numbers in them: means, differences, published values, and what is said where some are missing."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from reports_study import SyntheticStudy, full_study, tiny_config

import reports.paper
from reports.formats import counted, duration, fixed, listed, moment, plain, power, scientific, signed, times
from reports.markdown import escape
from reports.measures import bleu_on_test, difference, direction, measure
from reports.paper import load_paper
from reports.records import load_study
from reports.smoke import smoke_table
from reports.tables import main_table
from repro.config import TransformerConfig


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
    assert paper.rows["D.smoothing-0"].perplexity_difference == -0.25
    assert paper.base_target_tokens == 2.5e9
    assert paper.rows["positions.learned"] is paper.rows["E.learned"]


def test_every_block_of_published_numbers_names_its_source() -> None:
    document = yaml.safe_load(Path(reports.paper.__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
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
