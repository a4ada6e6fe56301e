"""The report as a whole: one page that stands alone, says what happened, and hides nothing."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from reports_study import SIGNATURE, TOUR, SyntheticStudy, full_study, tiny_config

from reports.pages import trust
from reports.pages.page import render_page, render_text, write_report
from reports.pages.sections import build
from reports.records.collection import load_studies
from reports.records.paper import load_paper
from reports.records.study import Variant, load_study
from repro.config import TransformerConfig
from repro.errors import CheckError, UsageError
from repro.files import write_json, write_text

STATES = {
    ("A.h1", 2): ("failed", "out of memory at step 431"),
    ("C.layers-third", 1): ("diverged", "loss is nan"),
    ("D.dropout-0", 2): ("missing", ""),
    ("scaling.off", 1): ("diverged", "loss is <inf> & more"),
    ("scaling.off", 2): ("diverged", "loss is <inf> & more"),
    ("E.learned", 2): ("stopped", "asked to stop"),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = full_study(tmp_path_factory.mktemp("studies") / "demo_smoke", only=TOUR, seeds=(1, 2), states=STATES)
    return made.path


@pytest.fixture(scope="module")
def page(study: Path) -> str:
    return write_report(study).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(study: Path, page: str) -> str:
    return (study / "report" / "report.md").read_text(encoding="utf-8")


def page_of(*studies: Path) -> str:
    """The page of these studies, without the files beside it."""
    return render_page(build(load_studies(studies), load_paper(), studies[0] / "report"))


def text_of(study: Path) -> str:
    return render_text(build(load_studies([study]), load_paper(), study / "report"))


class Checker(HTMLParser):
    """Every opened element is closed, and every id is there once."""

    VOID = frozenset({"meta", "input", "br", "path", "use", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._note(attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "text", "script", "desc"):
            self.words.append(data)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src", "xlink:href"):
                self.links.append(value or "")


def read(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    return checker


def words(page: str) -> str:
    return " ".join(" ".join(read(page).words).split())


def row_cells(page: str, variant: str) -> list[str]:
    """The texts of one row of the main table."""
    table = page[page.index('<section id="table">') :]
    start = table.index(f'<a href="#row-{variant}">')
    row = table[start : table.index("</tr>", start)]
    return [re.sub(r"<[^>]+>", " ", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, flags=re.DOTALL)]


def test_the_page_is_well_formed_and_its_ids_are_unique(page: str) -> None:
    checker = read(page)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    checker = read(page)
    assert not re.search(r"<script[^>]*\ssrc|fetch\(|XMLHttpRequest|import\(", page)
    assert "link" not in checker.tags
    assert "img" not in checker.tags
    for link in checker.links:
        assert not link.startswith(("http:", "https:", "//", "data:"))
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_every_link_inside_the_page_leads_somewhere(page: str) -> None:
    checker = read(page)
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)


def test_every_row_leads_to_its_run_directories(study: Path, page: str) -> None:
    links = {link for link in read(page).links if link.startswith("../runs/")}
    present = {f"../runs/{path.name}/" for path in (study / "runs").iterdir()}
    assert present <= links
    assert all((study / "report" / link).is_dir() for link in present)


def test_every_number_of_ours_leads_to_the_runs_that_it_comes_from(study: Path, page: str) -> None:
    trails = json.loads(page.partition('id="trails">')[2].partition("</script>")[0])
    pane = page[page.index('<div class="pane">') :]
    numbers = re.findall(r'<td[^>]* data-runs="([^"]+)"', pane[: pane.index("</table>")])
    shown = [sorted(trails[int(number)][2] for number in each.split()) for each in numbers]
    with (study / "report" / "data" / "cells.csv").open(encoding="utf-8", newline="") as file:
        cells = [line for line in csv.DictReader(file) if line["table"] == "table3" and line["runs"]]
    assert shown == [sorted(line["runs"].split()) for line in cells]
    assert {line["column"] for line in cells} >= {"bleu", "perplexity", "difference", "speed", "flops"}
    for variant, _, directory, link, anchor, _ in trails:
        assert (study / "report" / link / "config.json").is_file() or directory.startswith("D.dropout-0-s2")
        assert f'<details id="{anchor}">' in page
        assert anchor == f"row-{variant}"


def test_every_score_that_runs_have_shows_its_signature(tmp_path: Path) -> None:
    signatures = {
        "bleu": SIGNATURE,
        "bleu_intl": SIGNATURE.replace("13a", "intl"),
        "bleu_compound": SIGNATURE.replace("13a", "none") + "|words:moses-de+compounds",
        "chrf": "nrefs:1|case:mixed|eff:yes|nc:6",
    }
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    for seed in (1, 2):
        made.run(tiny_config(seed=seed), test={"signatures": signatures})
    shown = words(page_of(made.write()))
    for name, signature in signatures.items():
        assert shown.count(signature) >= 3, name  # of all runs, and with each run's records


def test_what_is_printed_says_that_there_are_tables_at_other_budgets(page: str) -> None:
    labels = re.findall(r'<label for="budget-\d">([^<]+)</label>', page)
    parts = [part.partition("</p>")[0] for part in page.split('<p class="printed">')[1:]]
    printed = [" ".join(re.sub("<[^>]+>", "", part).split()) for part in parts]
    assert len(labels) > 2
    for place, label in enumerate(labels):
        assert printed[place].startswith(f"Rows compared at {' '.join(label.split())};")
        others = [" ".join(other.split()) for other in labels if other != label]
        assert printed[place].endswith(f"compare them at {', '.join(others)}, too.")


def test_runs_that_nobody_began_take_one_line(page: str, text: str) -> None:
    for told in (words(page), " ".join(text.split())):
        assert re.search(r"missing ?, that is, not begun: D\.dropout-0 \(seed 2\)", told)


def test_two_renderings_are_the_same_bytes(study: Path, page: str, tmp_path: Path) -> None:
    first = {path.relative_to(study / "report"): path.read_bytes() for path in (study / "report").rglob("*.*")}
    write_report(study)
    second = {path.relative_to(study / "report"): path.read_bytes() for path in (study / "report").rglob("*.*")}
    assert first == second
    assert page.encode("utf-8") == second[Path("index.html")]


RENDER = """
import sys
from pathlib import Path
from reports.pages.page import write_report
write_report(Path(sys.argv[1]), Path(sys.argv[2]))
print([name for name in ("torch", "ray", "mlflow", "ablations") if name in sys.modules])
"""


def test_another_process_writes_the_same_bytes_and_loads_nothing_heavy(tmp_path: Path) -> None:
    study = full_study(tmp_path / "s", only=["base", "A.h1"], seeds=(1, 2)).path
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", RENDER, str(study), str(tmp_path / seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"
    for path in (tmp_path / "1").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "2" / path.relative_to(tmp_path / "1")).read_bytes()


def test_figures_also_stand_as_files(study: Path, page: str, text: str) -> None:
    figures = {path.name for path in (study / "report" / "figures").iterdir()}
    for name in ("bleu-flops", "difference", "sizes", "lengths", "speed", "systems", "curves-0-A"):
        assert {f"{name}.svg", f"{name}.pdf", f"{name}.png"} <= figures
    for path in (study / "report" / "figures").iterdir():
        magic = {".svg": b"<svg ", ".pdf": b"%PDF-", ".png": b"\x89PNG"}[path.suffix]
        assert path.read_bytes().startswith(magic)
    for name in re.findall(r"\]\(figures/([^)]+)\)", text):
        assert name in figures


def test_an_incomplete_row_never_shows_a_bare_mean(page: str) -> None:
    cells = row_cells(page, "A.h1")
    assert "1/2 seeds" in cells[11]
    assert "1 failed" in cells[11]
    for cell in cells[12:15]:  # perplexity, BLEU, difference
        assert "1/2 seeds" in cell


def test_a_row_without_a_finished_run_shows_its_state_and_no_number(page: str) -> None:
    cells = row_cells(page, "scaling.off")
    assert "0/2 seeds" in cells[11]
    assert "2 diverged" in cells[11]
    assert set(cells[12:14]) == {"–"}


def test_reasons_of_unfinished_runs_are_told(page: str, text: str) -> None:
    told = words(page)
    for reason in ("out of memory at step 431", "loss is nan", "loss is <inf> & more", "asked to stop"):
        assert reason in told
    assert "loss is &lt;inf&gt; &amp; more" in text


def test_the_summary_counts_what_finished_and_what_did_not(page: str) -> None:
    assert "Of 18 runs 12 finished: 1 failed, 3 diverged, 1 stopped and 1 missing." in words(page)


def test_the_summary_says_how_far_the_paper_is(page: str) -> None:
    told = words(page)
    assert "million parameters (the paper's has 180 times as many)" in told  # 65 million over 0.36 million
    assert "the text is smoke, there it is WMT 2014 English-German" in told
    assert "cannot go below p = 0.5 with 2 seeds" in told  # 2 of 4 assignments of signs, two-sided


def test_protocol_and_digests_are_printed(page: str, text: str) -> None:
    assert SIGNATURE in words(page)
    assert SIGNATURE.replace("|", r"\|").replace("_", r"\_") in text


def test_the_smoke_language_has_its_section(page: str, text: str) -> None:
    assert '<section id="smoke">' in page
    assert "## The smoke language" in text


def test_markdown_tables_have_as_many_cells_in_every_row(text: str) -> None:
    widths: list[int] = []
    for line in text.split("\n"):
        if line.startswith("|"):
            widths.append(len(re.findall(r"(?<!\\)\|", line)))
        else:
            assert len(set(widths)) <= 1
            widths = []


NASTY = 'H_1 50% & #2 <b>"x"</b> $y$ {z} हिन्दी | `q` *s*'


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("studies") / "a_b & <c> हिन्दी"
    made = SyntheticStudy(path, base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant(NASTY, NASTY, NASTY, {"model.n_heads": 2})
    made.run(tiny_config())
    made.run(tiny_config(variant="nasty", model=TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=2)))
    made.runs[-1]["variant"] = NASTY
    broken = made.run(tiny_config(variant="nasty", seed=2), "failed", f"broken by {NASTY}\nand more")
    made.runs[-1]["variant"] = NASTY
    assert broken.path.is_dir()
    return made.write()


def test_names_with_signs_and_hindi_survive(nasty: Path) -> None:
    page = page_of(nasty)
    checker = read(page)
    assert checker.open == []
    assert "b" not in checker.tags
    assert NASTY in words(page)
    text = text_of(nasty)
    assert "<b>" not in text
    assert "हिन्दी" in text
    for figure in re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(figure)


def test_names_with_signs_and_hindi_reach_every_file(nasty: Path) -> None:
    out = write_report(nasty).parent
    with (out / "data" / "runs.csv").open(encoding="utf-8", newline="") as file:
        assert NASTY in {line["variant"] for line in csv.DictReader(file)}
    (curves,) = (out / "figures").glob("curves-0-H-1-50*.svg")
    for name in ("difference", "speed", curves.stem):
        for form in ("svg", "pdf", "png"):
            assert (out / "figures" / f"{name}.{form}").is_file()
        drawn = ElementTree.fromstring((out / "figures" / f"{name}.svg").read_text(encoding="utf-8"))
        assert any(NASTY in "".join(node.itertext()) for node in drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert "हिन्दी" in (out / "tables" / "table3.tex").read_text(encoding="utf-8")
    assert "हिन्दी" in (out / "report.md").read_text(encoding="utf-8")


def test_a_study_without_a_finished_run_renders(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config(), "missing")
    made.run(tiny_config(seed=2), "running")
    page = page_of(made.write())
    made.close()
    assert "No run has finished yet" in words(page)
    assert "0/2 seeds" in words(page)
    assert "running" in words(page)


def test_a_study_that_nobody_has_begun_renders(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config(), "missing")
    page = page_of(made.write())
    assert "No run has finished yet" in words(page)
    assert row_cells(page, "base")[:3] == ["2", "32", "64"]


def test_a_study_with_one_run_renders(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config())
    page = page_of(made.write())
    assert "The one run finished." in words(page)
    assert "luck of that seed" in words(page)


def test_a_study_without_base_renders(tmp_path: Path) -> None:
    made = full_study(tmp_path / "s", only=["A.h1", "A.h4"], seeds=(1,))
    page = page_of(made.path)
    assert "The study has no base row" in words(page)


@pytest.mark.slow
def test_five_hundred_runs_render(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    configs = [tiny_config(variant="base", seed=seed) for seed in range(1, 6)]
    for number in range(1, 100):
        made.variant(f"A.n{number}", "AB"[number % 2], f"row {number}", {"model.d_ff": 64 + number})
        model = TransformerConfig(n_layers=2, d_model=32, d_ff=64 + number, n_heads=4)
        configs += [tiny_config(variant=f"A.n{number}", seed=seed, model=model) for seed in range(1, 6)]
    for config in configs:
        made.run(config)
    page = page_of(made.write())
    assert "All 500 runs finished." in words(page)


def test_a_damaged_run_is_shown_as_unreadable(tmp_path: Path) -> None:
    made = full_study(tmp_path / "s", table="positions", seeds=(1, 2))
    (next((made.path / "runs").glob("positions.none-s2-*")) / "result.json").write_text("{", encoding="utf-8")
    page = page_of(made.path)
    assert "unreadable" in words(page)
    assert "1/2 seeds" in row_cells(page, "positions.none")[10]


def test_the_report_can_go_elsewhere(study: Path, tmp_path: Path) -> None:
    page = write_report(study, tmp_path / "out")
    assert page == tmp_path / "out" / "index.html"
    links = [link for link in read(page.read_text(encoding="utf-8")).links if "/runs/" in link]
    assert any((page.parent / link).is_dir() for link in links)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"test": {"signatures": {"bleu": SIGNATURE.replace("13a", "intl")}}}, "tok:intl"),
        ({"test": {"reference_sha256": "f" * 64}}, "references"),
        ({"digests": {"vocabulary": "e" * 64}}, "perplexity"),
    ],
)
def test_scores_that_do_not_compare_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config())
    made.run(tiny_config(seed=2), "done", **change)
    with pytest.raises(CheckError, match="cannot stand in one table") as refused:
        write_report(made.write())
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


SOURCES = ["ein <b>Satz</b>", "", "zwei\u2028Zeilen", "हिन्दी", "fünf", "sechs", "sieben", "acht", "neun"]


def study_with_text(path: Path, references: list[str]) -> Path:
    made = SyntheticStudy(path, base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant("A.h1", "A", "1 head", {"model.n_heads": 1})
    scored = hashlib.sha256("".join(f"right {number}\n" for number in range(9)).encode()).hexdigest()
    low = tiny_config(variant="A.h1", model=TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=1))
    for config, name in ((tiny_config(), "good"), (low, "bad")):
        run = made.run(config, "done", test={"reference_sha256": scored})
        run.write_hypotheses("test", [f"{name} {number}" for number in range(9)])
    write_json(path / "data" / "manifest.json", {"languages": ["xx", "yy"]})
    for language, lines in (("xx", SOURCES), ("yy", references)):
        write_text(path / "data" / "raw" / f"test.{language}", "".join(line + "\n" for line in lines))
    return made.write()


def test_examples_are_spread_over_the_test_side(tmp_path: Path) -> None:
    with_text = study_with_text(tmp_path / "s", [f"right {number}" for number in range(9)])
    found = page_of(with_text)
    start = found.index('<section id="examples">')
    told = words(found[start : found.index("</section>", start)])
    numbers = re.findall(r"source, line (\d)", told)
    assert numbers == ["1", "4", "5", "6", "8", "9"]  # evenly spaced among the lines that hold something
    for number in numbers:
        line = int(number) - 1
        assert " ".join(SOURCES[line].split()) in told
        assert f"right {line} base, seed 1 good {line} A.h1, seed 1 bad {line}" in told
    assert "ein &lt;b&gt;Satz&lt;/b&gt;" in text_of(with_text)


def test_there_are_no_examples_from_another_text(tmp_path: Path) -> None:
    page = page_of(study_with_text(tmp_path / "s", [f"changed {number}" for number in range(9)]))
    assert '<section id="examples">' not in page


def test_what_is_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no study here"):
        write_report(tmp_path)


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"schema": 1, "study": "x"}', encoding="utf-8")
    with pytest.raises(CheckError, match=r"study\.json: damaged \(table is missing\)"):
        write_report(tmp_path)


def test_the_switch_shows_the_table_at_every_equal_budget(page: str) -> None:
    start = page.index('<section id="table">')
    table = page[start : page.index("</fieldset>", start)]
    names = re.findall(r'<input type="radio" name="budget"[^>]*><label[^>]*>([^<]+)</label>', table)
    assert names[0] == "whole budget"
    units = ["steps", "target tokens", "FLOPs", "s of training"]
    assert [name.split(" ", 1)[1] for name in names[1:]] == units
    assert table.count('<div class="pane">') == len(names)
    assert table.count(" checked>") == 1


def test_cells_carry_their_unrounded_value_for_sorting(study: Path, page: str) -> None:
    scores = [json.loads(path.read_text())["test"]["bleu"] for path in (study / "runs").glob("base-s*/result.json")]
    start = page.index('<section id="table">')
    values = re.findall(r'data-v="([^"]+)"', page[start : page.index("</table>", start)])
    assert sum(scores) / len(scores) in [pytest.approx(float(value), abs=1e-12) for value in values]


def test_every_claim_has_its_verdict_and_leads_to_its_rows(tmp_path: Path) -> None:
    from reports.claims.catalogue import load_claims

    made = full_study(tmp_path / "s", only=["base", "A.h1", "positions.none"], seeds=(1, 2, 3))
    page = page_of(made.path)
    claims = page[page.index('<section id="claims">') : page.index('<section id="table">')]
    told = words(claims)
    for claim in load_claims():
        assert claim.sentence in told
    assert f"not corrected over the {len(load_claims())} claims" in told
    assert "not corrected over the" in text_of(made.path)
    row = claims[claims.index("Without positions the model fails.") :]
    row = row[: row.index("</tr>")]
    assert 'class="verdict reproduced"' in row  # 78 BLEU below base, with seeds a third of a point apart
    assert 'href="#row-positions.none"' in row
    assert "95 % interval" in row
    assert "not tested" in told


def test_studies_of_different_scales_stand_apart_on_one_page(tmp_path: Path) -> None:
    first = full_study(tmp_path / "first", only=["base", "A.h1"], seeds=(1, 2)).path
    second = full_study(tmp_path / "second", scale="multi30k-cpu", only=["base", "A.h1"], seeds=(1,)).path
    page = page_of(first, second)
    checker = read(page)
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)
    assert {"s1-table", "s2-table", "s1-row-A.h1", "s2-row-A.h1"} <= set(checker.ids)
    spoken = {name for names in re.findall(r'aria-labelledby="([^"]+)"', page) for name in names.split()}
    assert spoken <= set(checker.ids)
    with pytest.raises(UsageError, match="no place for their report"):
        write_report([first, second])


def test_parts_of_one_experiment_are_one_study(tmp_path: Path) -> None:
    first = full_study(tmp_path / "first", only=["base", "A.h1"], seeds=(1,)).path
    second = full_study(tmp_path / "second", only=["base", "A.h4"], seeds=(1,)).path
    told = words(page_of(first, second))
    assert "3 rows with seed 1" in told


def test_a_search_has_no_report_and_says_where_to_look(tmp_path: Path) -> None:
    path = full_study(tmp_path / "s", only=["base", "A.h1"], seeds=(1,)).path
    plan = json.loads((path / "study.json").read_text(encoding="utf-8"))
    write_json(path / "study.json", plan | {"kind": "search"})
    with pytest.raises(UsageError, match=r"not comparable at equal budget.*ablate status") as refused:
        write_report(path)
    assert "\n" not in str(refused.value)
    assert not (path / "report").exists()


def test_a_later_report_takes_away_only_what_an_earlier_one_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_report(full_study(tmp_path / "two", only=["base", "A.h1"], seeds=(1,)).path, out)
    gone = out / "figures" / "difference.pdf"
    assert gone.is_file()
    write_text(out / "figures" / "mine.svg", "mine")
    single = SyntheticStudy(tmp_path / "one", base=tiny_config())
    single.variant("base", "base", "base", {})
    single.run(tiny_config())
    write_report(single.write(), out)
    assert not gone.exists()
    assert (out / "figures" / "mine.svg").read_text(encoding="utf-8") == "mine"
    listed = json.loads((out / "files.json").read_text(encoding="utf-8"))["files"]
    on_disk = {path.relative_to(out).as_posix() for path in out.rglob("*.*")} - {"files.json", "figures/mine.svg"}
    assert set(listed) == on_disk
    assert listed["index.html"] == hashlib.sha256((out / "index.html").read_bytes()).hexdigest()


def test_what_bench_layers_measured_stands_in_table_one(tmp_path: Path) -> None:
    path = full_study(tmp_path / "s", only=["base"], seeds=(1,)).path
    slope = {"value": 1.93, "low": 1.83, "high": 2.03}
    layers = [
        {"layer": "self_attention", "exponents": {"n": slope, "d": slope | {"value": 1.07, "low": 1.0, "high": 1.14}}}
    ]
    document = {"schema": 1, "device": "a processor", "threads": 1, "lengths": [64, 512], "widths": [64, 256]}
    write_json(path / "bench-layers.json", document | {"layers": layers})
    page = write_report(path).read_text(encoding="utf-8")
    table = page[page.index('<section id="complexity">') :]
    told = words(table[: table.index("</section>")])
    assert "1.93" in told
    assert "Measured on a processor" in told


def test_rows_with_fewer_seeds_than_others_are_told(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s")
    for dropout, seeds in ((0.1, 3), (0.0, 1), (0.2, 1)):
        model = TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=4, dropout=dropout)
        variant = "base" if dropout == 0.1 else f"D.dropout-{dropout:g}"
        made.variant(variant, "D", variant, {} if dropout == 0.1 else {"model.dropout": dropout})
        for seed in range(1, seeds + 1):
            made.run(tiny_config(variant=variant, model=model, seed=seed))
    text = text_of(made.write())
    assert "3 rows (2 with seed 1 and 1 with seeds 1, 2 and 3) on the corpus" in text
    assert "Seeds: 1 to 3 a row; where it is one, a difference may be no more than its luck. With 3 seeds" in text


@pytest.mark.parametrize(("slower", "told"), [(1.1, False), (2.5, True)])
def test_runs_of_equal_cost_that_took_unequal_time_are_told(tmp_path: Path, slower: float, told: bool) -> None:
    made = SyntheticStudy(tmp_path / "s")
    made.variant("base", "base", "base", {})
    made.variant("C.layers-third", "C", "a third of the layers", {"model.n_layers": 1})
    runs = [made.run(tiny_config(seed=seed), train_seconds=100.0) for seed in (1, 2)]
    runs.append(made.run(tiny_config(seed=3), train_seconds=100.0 * slower))
    shallow = TransformerConfig(n_layers=1, d_model=32, d_ff=64, n_heads=4)
    made.run(tiny_config(variant="C.layers-third", model=shallow), train_seconds=1.0)
    points = [point for point in trust.trust(load_study(made.write()), load_paper()) if point.startswith("Seconds:")]
    assert len(points) == int(told)
    assert not told or f"{runs[2].path.name} took 2.5 times as long as {runs[0].path.name}," in points[0]


def test_rows_with_a_learning_rate_of_their_own_are_named_beside_base() -> None:
    planned = {"train.learning_rate_factor": 0.3}
    tuned = Variant(id="baseline.x", group="baseline", title="", changes={"train.learning_rate_factor": 1.5})
    plain = Variant(id="A.h1", group="A", title="", changes={"model.n_heads": 1})
    told = trust.tuning([tuned, plain], planned)
    assert "base's is 0.3: baseline.x (1.5)" in told
    assert "A.h1" not in told
    assert trust.tuning([plain], planned) == ""
