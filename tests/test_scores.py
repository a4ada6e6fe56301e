"""Scores against the sacrebleu command, against hand counts, and for wrong input."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys

import pytest

from repro.decoding.scores import bleu_by_length, score, segmentation_warnings
from repro.decoding.tokenise import split_compounds
from repro.errors import CheckError

REFERENCES = [
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Zwei junge, weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Mehrere Männer mit Schutzhelmen bedienen ein Antriebsradsystem.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Eine Frau im T-Shirt kauft für 3,50 Euro „Eis“ in New-York-Style.",
    "",
    "Zeile mit\u2028besonderem\x85Umbruch und einem \r Wagenrücklauf.",
]
HYPOTHESES = [
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und reinigt ein Fenster.",
    "zwei junge weiße Männer sind draußen in der Nähe von Büschen.",
    "Mehrere Männer mit Helmen bedienen ein System.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "Eine Frau im T-Shirt kauft für 3,50 Euro „Eis“ im New-York-Stil.",
    "",
    "Zeile mit\u2028einem\x85Umbruch und einem \r Wagenrücklauf .",
]


def command(tmp_path, *arguments: str) -> dict:
    for name, lines in (("hypotheses", HYPOTHESES), ("references", REFERENCES)):
        (tmp_path / name).write_bytes("".join(line + "\n" for line in lines).encode())
    output = subprocess.run(
        [sys.executable, "-m", "sacrebleu", "references", "-i", "hypotheses", "-w", "14", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(output.stdout)


@pytest.mark.parametrize(
    ("key", "arguments"),
    [("bleu", ["-m", "bleu"]), ("bleu_intl", ["-m", "bleu", "-tok", "intl"]), ("chrf", ["-m", "chrf"])],
)
def test_scores_equal_the_sacrebleu_command_to_the_last_digit(tmp_path, key, arguments):
    found = score(HYPOTHESES, REFERENCES)
    told = command(tmp_path, *arguments)
    assert f"{found[key]:.14f}" == f"{told['score']:.14f}"
    assert found["signatures"][key] == told["signature"]
    assert "version:" in found["signatures"][key]


def test_scores_are_cased():
    assert score(["ein Mann steht hier ."], ["Ein Mann steht hier."])["bleu"] < 100
    assert score(["Ein Mann steht hier."], ["Ein Mann steht hier."])["bleu"] == pytest.approx(100)


def test_compounds_are_split_as_the_authors_script_did():
    assert split_compounds("ein T-Shirt - und rot-weiß") == "ein T ##AT##-##AT## Shirt - und rot ##AT##-##AT## weiß"
    assert split_compounds("E-Mail-Adresse") == "E ##AT##-##AT## Mail ##AT##-##AT## Adresse"
    assert split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_the_compound_protocol_counts_moses_tokens_and_the_parts_of_compounds():
    """Counted by hand: 8 tokens (Der | rot | - | weiße | Ball | ist | da | .), of which the fourth is wrong."""
    found = score(["Der rot-weiße Ball ist da."], ["Der rot-blaue Ball ist da."], language="de")
    right = [(7, 8), (5, 7), (3, 6), (1, 5)]
    expected = 100 * math.exp(sum(math.log(a / b) for a, b in right) / 4)
    assert found["bleu_compound"] == pytest.approx(expected)
    assert "moses-de" in found["signatures"]["bleu_compound"]
    assert "sacremoses:" in found["signatures"]["bleu_compound"]
    assert found["unavailable"] == {}


def test_without_sacremoses_or_a_language_the_compound_score_is_none_with_the_reason(monkeypatch):
    assert score(HYPOTHESES, REFERENCES)["unavailable"] == {"bleu_compound": "no target language given"}
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    found = score(HYPOTHESES, REFERENCES, language="de")
    assert found["bleu_compound"] is None
    assert "sacremoses" in found["unavailable"]["bleu_compound"]
    assert "bleu_compound" not in found["signatures"]
    assert found["bleu"] > 0


def test_only_the_protocols_asked_for_are_scored():
    found = score(HYPOTHESES, REFERENCES, protocols=["13a"])
    assert set(found["signatures"]) == {"bleu", "chrf"}
    assert "bleu_intl" not in found


def test_a_score_is_a_json_document():
    found = score(HYPOTHESES, REFERENCES, language="de")
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["sentences"] == 7


@pytest.mark.parametrize("scorer", [score, bleu_by_length])
def test_sides_of_unequal_number_and_nothing_to_score_are_refused(scorer):
    with pytest.raises(CheckError, match="6 hypotheses for 7 references"):
        scorer(HYPOTHESES[:6], REFERENCES)
    with pytest.raises(CheckError, match="no references"):
        scorer([], [])


def test_hypotheses_that_are_all_empty_score_zero():
    found = score([""] * 7, REFERENCES, language="de")
    assert (found["bleu"], found["bleu_intl"], found["bleu_compound"], found["chrf"]) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("lines", "mark"),
    [
        (["ein Spiel@@ haus", "ein Haus"], "@@"),
        (["ein Haus@@", "ein Haus"], "@@"),
        (["▁ein ▁Haus", "ein Haus"], "▁"),
        (["rot @-@ weiß", "x"], "@-@"),
    ],
)
def test_hypotheses_with_segmentation_marks_are_warned_of(lines, mark, caplog):
    with caplog.at_level(logging.WARNING):
        (warning,) = score(lines, ["ein Haus", "x"])["warnings"]
    assert warning.startswith("1 of 2 hypotheses")
    assert repr(mark) in warning
    assert warning in caplog.text


def test_ordinary_text_raises_no_warning():
    assert segmentation_warnings([*HYPOTHESES, "mail@@example", "a@b.de", "_ein_ - @ -"]) == []


def test_bleu_by_length_groups_by_words_of_the_references_or_sources():
    hypotheses, references = (
        ["a b c d e", "a b c d x", "a b c d e f g h"],
        ["a b c d e", "a b c d e", "a b c d e f g h"],
    )
    groups = bleu_by_length(hypotheses, references, edges=(4, 5, 7))
    assert [(group["from"], group["to"], group["sentences"]) for group in groups] == [(5, 5, 2), (8, None, 1)]
    assert {group["by"] for group in groups} == {"reference"}
    assert groups[1]["bleu"] == pytest.approx(100)
    assert groups[0]["bleu"] == pytest.approx(score(hypotheses[:2], references[:2])["bleu"])
    by_source = bleu_by_length(hypotheses, references, sources=["", "a b c d e f", "a"], edges=(4, 5, 7))
    assert [(group["from"], group["to"], group["sentences"]) for group in by_source] == [(0, 4, 2), (6, 7, 1)]
    assert {group["by"] for group in by_source} == {"source"}
    with pytest.raises(CheckError, match="2 sources for 3 references"):
        bleu_by_length(hypotheses, references, sources=["a", "b"])


def test_scores_need_neither_torch_nor_a_start_up_of_sacrebleu():
    code = (
        "import sys, repro.decoding.scores; "
        "print([name for name in ('torch', 'sacrebleu', 'sacremoses') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
