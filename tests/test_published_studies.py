"""The studies that this repository publishes: intact, made again by the command they name, and quoted right."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

import pytest

from ablations.cli import run

ROOT = Path(__file__).parents[1]
PUBLISHED = sorted(path.parent for path in (ROOT / "reports" / "published").glob("*/SHA256SUMS"))
QUOTED = {"BLEU": "bleu", "Δ BLEU": "difference", "perplexity": "perplexity", "params (×10⁶)": "parameters"}
"""Columns of the README's table by what `cells.csv` calls them."""

every = pytest.mark.parametrize("study", PUBLISHED, ids=lambda path: path.name)


def cells(study: Path) -> dict[tuple[str, str], str]:
    """The text of each cell of Table 3 by row and column."""
    with (study / "cells.csv").open(encoding="utf-8", newline="") as lines:
        table = [cell for cell in csv.DictReader(lines) if cell["table"] == "table3"]
    return {(cell["row"], cell["column"]): cell["text"] for cell in table}


def quoted() -> list[dict[str, str]]:
    """The rows of the first table of the README, by its headings."""
    opening = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Five minutes")[0]
    table = [line.strip("|").split("|") for line in opening.splitlines() if line.startswith("|")]
    heading, _, *rows = ([cell.strip() for cell in line] for line in table)
    return [dict(zip(heading, row, strict=True)) for row in rows]


def test_there_are_published_studies() -> None:
    assert {"smoke", "multi30k-cpu"} <= {path.name for path in PUBLISHED}


@every
def test_every_file_has_its_digest(study: Path) -> None:
    lines = (study / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    listed = dict(reversed(line.split("  ")) for line in lines)
    found = {path.relative_to(study).as_posix(): path for path in study.rglob("*") if path.is_file()}
    assert found.keys() - {"SHA256SUMS"} == listed.keys()
    for name, digest in listed.items():
        assert hashlib.sha256(found[name].read_bytes()).hexdigest() == digest, name


def test_they_are_small_enough_for_git() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "reports" / "published").rglob("*") if path.is_file()) < 10e6


def test_every_number_of_the_readmes_table_is_a_cell_of_the_published_study() -> None:
    published = cells(ROOT / "reports" / "published" / "multi30k-cpu")
    rows = quoted()
    assert len(rows) > 10
    for row in rows:
        name = re.sub(r"[*`]", "", row["row"])
        for heading, column in QUOTED.items():
            assert row[heading] == published.get((name, column), ""), (name, heading)


@pytest.mark.slow
def test_its_command_makes_the_same_bytes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the study whose corpus is generated; the other's text is not in this repository."""
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    study, again = ROOT / "reports" / "published" / "smoke", tmp_path / "again"
    assert run(["publish", str(study), str(again)]) == 0
    made = {path.relative_to(again): path for path in again.rglob("*") if path.is_file()}
    kept = {path.relative_to(study): path for path in study.rglob("*") if path.is_file()}
    assert made.keys() == kept.keys()
    for name, path in made.items():
        assert path.read_bytes() == kept[name].read_bytes(), name
