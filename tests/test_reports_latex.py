"""Tables in LaTeX: every sign means itself, and every file compiles on its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from reports_study import SyntheticStudy, full_study, tiny_config

from reports.exports.files import named_tables
from reports.exports.latex import beyond_latin, escape, latex, tabular
from reports.records.collection import load_studies
from reports.tables.cells import Cell, Column, Group, Row, Table

HINDI = "हिन्दी"
STRANGE = f"100 % & #1_x ~^ {{y}} \\input{{z}} $x$ -- <b> {HINDI}"


def table(text: str, **changes: object) -> Table:
    """A table in which `text` stands everywhere that a user's text can stand."""
    column = Column(key="a_b", symbol=text, subscript=text, unit=text)
    cell = Cell(value=1.0, text="−1.4", spread="±0.3", marks="*°", note=text, kind="plain")
    row = Row(id=text, title=text, cells={"a_b": cell}, extra=text, marks=("†",))
    group = Group(label=text, title=text, rows=(row,))
    return Table(caption=text, columns=(column,), groups=(group,), footnotes={"*": text, "†": text}, title=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_model", r"d\_model"),
        ("100 %", r"100 \%"),
        ("a & b # $", r"a \& b \# \$"),
        ("\\x{y}", r"\textbackslash{}x\{y\}"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("×10¹⁸", r"\ensuremath{\times}10\ensuremath{^{18}}"),
        ("10⁻³", r"10\ensuremath{^{-3}}"),
        ("−2.1 ±0.3", r"\ensuremath{-}2.1 \ensuremath{\pm}0.3"),
        ("12\u202f345", r"12\,345"),
        ("a\nb\tc\x00", "a b c"),
        (HINDI, HINDI),
    ],
)
def test_signs_mean_themselves(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_nothing_but_our_own_commands_stands_in_a_table() -> None:
    text = latex(table(STRANGE), "tab:a_b")
    assert "\\input{z}" not in text
    assert "$x$" not in text
    assert r"\label{tab:a-b}" in text
    assert text.count(escape(STRANGE)) == 11


def test_the_bare_tabular_has_its_caption_in_comments_only() -> None:
    text = tabular(table("plain\ntext"), "tab:x")
    code = [line for line in text.split("\n") if not line.startswith("%")]
    assert code[0].startswith(r"\begin{tabular}")
    assert "documentclass" not in text
    assert sum("plain text" in line for line in text.split("\n") if line.startswith("%")) == 4


def test_a_file_says_when_it_needs_lualatex() -> None:
    assert latex(table(HINDI), "x").startswith("% !TeX program = lualatex")
    assert "lualatex" not in latex(table("Ä é ő – “x”"), "x")


def test_letters_beyond_latin_are_found() -> None:
    assert beyond_latin("Ä ő ž") == []
    assert beyond_latin("aहb日") == ["ह", "日"]


# Compiled.


def compiled(engine: str, text: str, folder: Path) -> str:
    """The text of the page that `engine` makes of `text`."""
    for tool in (engine, "pdftotext"):
        assert shutil.which(tool), f"this test needs {tool}: apt-get install texlive-latex-recommended texlive-luatex"
    folder.mkdir(parents=True)
    (folder / "t.tex").write_text(text, encoding="utf-8")
    command = [engine, "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "t.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Missing character" not in log
    assert "Overfull" not in log
    return subprocess.run(
        ["pdftotext", "-layout", "t.pdf", "-"], cwd=folder, capture_output=True, check=True
    ).stdout.decode()


@pytest.mark.slow
def test_every_table_of_a_report_compiles(tmp_path: Path) -> None:
    made = full_study(tmp_path / "s", table="table3+scaling+positions+baselines", seeds=(1, 2))
    tables = named_tables(load_studies([made.path]))
    assert len(tables) == 7
    for name, found in tables.items():
        page = compiled("pdflatex", latex(found, f"tab:{name}"), tmp_path / name)
        for row in found.rows:
            assert row.id in page.replace("\n", " "), name
    page = compiled("lualatex", latex(tables["table3"], "tab:t"), tmp_path / "again")
    assert next(row for row in tables["table3"].rows if row.id == "A.h1").cells["bleu"].text in page


@pytest.mark.slow
def test_strange_names_and_hindi_survive_in_print(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant(f"{HINDI} 5 %_&#", "mine", "mine", {"data.corpus": "a_b"})
    made.run(tiny_config())
    made.run(tiny_config(variant=f"{HINDI} 5 %_&#", seed=2))
    found = named_tables(load_studies([made.write()]))["table3"]
    page = compiled("lualatex", latex(found, "tab:x"), tmp_path / "tex")
    assert "5 %_&#" in page
    # Vowel signs are set before, above and below their letters, so that a reader of the page finds them in any order.
    assert any("ह" in line and "द" in line for line in page.split("\n"))
    assert STRANGE[:15] in compiled("lualatex", latex(table(STRANGE), "tab:y"), tmp_path / "all")


@pytest.mark.slow
def test_a_bare_tabular_compiles_in_a_document_that_loads_booktabs(tmp_path: Path) -> None:
    made = full_study(tmp_path / "s", only=["base", "A.h1"], seeds=(1,))
    text = tabular(named_tables(load_studies([made.path]))["table3"], "tab:x")
    page_size = "paperwidth=90cm,paperheight=30cm,margin=1cm"
    head = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\usepackage[{page_size}]{{geometry}}"
    page = compiled("pdflatex", f"{head}\\begin{{document}}\n\\tiny {text}\n\\end{{document}}\n", tmp_path / "tex")
    assert "A.h1" in page
