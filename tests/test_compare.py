"""`ablate compare`: two rows in depth, on the terminal, as JSON and as a page."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from statistics import fmean

import pytest
import sacrebleu
from reports_study import SyntheticStudy, tiny_config

from ablations.cli import run as ablate
from repro.config import TransformerConfig
from repro.files import digest_of_file, write_json, write_text

WORDS = ["der", "alte", "Hund", "läuft", "über", "<grünes>", "Gras", "&", "bellt", "laut", "नमस्ते"]
CHANGED = 5
"""The line of the test side, from 0, that only the second row gets wrong."""


def sentences() -> list[str]:
    draw = random.Random("test side")
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 14))) for _ in range(40)]


def spoiled(lines: list[str], seed: str, share: float = 0.15) -> list[str]:
    """`lines` with a few words exchanged."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split()) for line in lines]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Base and A.h1 with two seeds each, their translations and the corpus."""
    path = tmp_path / "s"
    references = sentences()
    for name, lines in (("xx", [f"source {number}" for number in range(40)]), ("yy", references)):
        write_text(path / "data" / "raw" / f"test.{name}", "".join(f"{line}\n" for line in lines))
    write_json(path / "data" / "manifest.json", {"languages": ["xx", "yy"]})
    digest = digest_of_file(path / "data" / "raw" / "test.yy")
    made = SyntheticStudy(path, base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant("A.h1", "A", "1 head", {"model.n_heads": 1})
    made.variant("A.h4", "A", "none finished", {"model.n_heads": 2})
    one_head = TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=1)
    for seed in (1, 2):
        good = spoiled(references, f"base {seed}")
        good[CHANGED] = references[CHANGED]
        bad = spoiled(good, f"A.h1 {seed}", 0.4)
        bad[CHANGED] = "nichts davon"
        bad[8:14] = references[8:14]
        for config, lines in (
            (tiny_config(seed=seed), good),
            (tiny_config(variant="A.h1", seed=seed, model=one_head), bad),
        ):
            bleu = sacrebleu.corpus_bleu(lines, [references]).score
            groups = [{"by": "source", "from": 0, "to": 10, "sentences": 30, "bleu": bleu - seed}]
            test = {"bleu": bleu, "reference_sha256": digest, "bleu_by_length": groups}
            made.run(config, test=test).write_hypotheses("test", lines)
    two = TransformerConfig(n_layers=2, d_model=32, d_ff=64, n_heads=2)
    made.run(tiny_config(variant="A.h4", model=two), "failed", "no luck")
    return made.write()


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert ablate(["compare", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_scores_are_compared_seed_by_seed(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, f"{study}:base", f"{study}:A.h1")
    references = sentences()
    bleu = {}
    for path in (study / "runs").iterdir():
        hypotheses = path / "hypotheses" / "test.txt"
        if hypotheses.exists():
            lines = hypotheses.read_text(encoding="utf-8").split("\n")[:-1]
            bleu[path.name.rsplit("-", 1)[0]] = sacrebleu.corpus_bleu(lines, [references]).score
    score = found["scores"]["bleu"]
    assert score["first"]["mean"] == pytest.approx(fmean([bleu["base-s1"], bleu["base-s2"]]))
    apart = [bleu[f"A.h1-s{seed}"] - bleu[f"base-s{seed}"] for seed in (1, 2)]
    assert score["difference"]["values"] == pytest.approx(apart)
    assert found["by_length"][0]["difference"]["mean"] == pytest.approx(fmean(apart))
    assert found["by_length"][0]["first"]["mean"] == pytest.approx(fmean([bleu["base-s1"] - 1, bleu["base-s2"] - 2]))
    assert {entry["key"] for entry in found["settings"]} == {"model.n_heads", "model.d_k", "model.d_v"}


def test_the_second_row_is_tested_against_the_first(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, f"{study}:base", f"{study}:A.h1")
    assert found["tests"]["test_set"]["n"] == 2
    assert found["tests"]["test_set"]["p"] < 0.05
    assert found["tests"]["seeds"]["n"] == 2
    back = document(capsys, f"{study}:A.h1", f"{study}:base")
    assert back["tests"]["test_set"]["p"] == found["tests"]["test_set"]["p"]
    assert back["scores"]["bleu"]["difference"]["mean"] == -found["scores"]["bleu"]["difference"]["mean"]


def test_a_row_compared_with_itself_differs_in_nothing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, f"{study}:base", f"{study}:base")
    assert found["scores"]["bleu"]["difference"]["values"] == [0.0, 0.0]
    assert found["tests"]["test_set"]["p"] == 1.0
    assert (found["sentences"], found["settings"]) == ([], [])


def test_the_sentences_that_differ_most_stand_side_by_side(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, f"{study}:base", f"{study}:A.h1")["sentences"]
    gains = [entry["second"]["chrf"] - entry["first"]["chrf"] for entry in found]
    better = [gain for gain in gains if gain > 0]
    worse = [gain for gain in gains if gain < 0]
    assert min(len(better), len(worse)) > 2
    assert gains == sorted(better, reverse=True) + sorted(worse)
    entry = found[len(better)]
    assert (entry["number"], entry["source"], entry["reference"]) == (
        CHANGED + 1,
        f"source {CHANGED}",
        sentences()[CHANGED],
    )
    assert entry["second"]["text"] == "nichts davon"
    assert entry["first"]["chrf"] == pytest.approx(100.0)
    assert entry["second"]["chrf"] == pytest.approx(sacrebleu.sentence_chrf("nichts davon", [entry["reference"]]).score)


def test_the_terminal_shows_text_as_it_is(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ablate(["compare", f"{study}:base", f"{study}:A.h1"]) == 0
    shown = capsys.readouterr().out
    assert sentences()[CHANGED] in shown
    assert "sacreBLEU's paired approximate randomisation" in shown
    assert re.search(r"BLEU, test \(13a\) +\d+\.\d\d ±\d+\.\d\d \(n = 2\)", shown)


def test_the_page_needs_nothing_else_and_escapes_all(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = study.parent / "out" / "compare.html"
    assert ablate(["compare", f"{study}:base", f"{study}:A.h1", "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    text = page.read_text(encoding="utf-8")
    assert "&lt;grünes&gt;" in text
    assert "<grünes>" not in text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
    assert "<script" not in text


def test_rows_without_a_corpus_at_hand_are_compared_without_sentences(
    study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (study / "data" / "raw" / "test.yy").write_text("another text\n", encoding="utf-8")
    found = document(capsys, f"{study}:base", f"{study}:A.h1")
    assert found["sentences"] == []
    assert found["tests"]["test_set"]["p"] is None
    assert "not at hand" in found["tests"]["test_set"]["detail"]


@pytest.mark.parametrize(
    ("second", "code", "words"),
    [
        ("A.h1", 2, "names no row"),
        ("{study}:A.h", 2, "did you mean"),
        ("{study}:A.h4", 3, "no finished run"),
        ("nowhere:A.h1", 3, "no study here"),
    ],
)
def test_a_row_that_cannot_be_compared_is_one_clear_line(
    study: Path, capsys: pytest.CaptureFixture[str], second: str, code: int, words: str
) -> None:
    assert ablate(["compare", f"{study}:base", second.format(study=study)]) == code
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_samples_of_a_search_are_not_compared(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = tmp_path / "search"
    write_json(search / "study.json", json.loads((study / "study.json").read_text()) | {"kind": "search"})
    assert ablate(["compare", f"{search}:base", f"{search}:A.h1"]) == 2
    told = capsys.readouterr().err
    assert "not comparable at equal budget" in told
    assert "ablate status" in told


def test_scores_of_other_references_are_not_compared(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = SyntheticStudy(study.parent / "other", base=tiny_config())
    other.variant("base", "base", "base", {})
    other.run(tiny_config())
    other.write()
    assert ablate(["compare", f"{study}:base", f"{other.path}:base"]) == 3
    assert "different test references" in capsys.readouterr().err
