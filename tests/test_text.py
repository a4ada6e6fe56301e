"""Reading text: what is a line, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro.data.text import is_blank, read_lines, read_pairs
from repro.errors import CheckError


def written(directory: Path, content: bytes, name: str = "text.en") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "odd", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1d", "\x1e", "\r", "\u00a0", "\u3000", "\0"]
)
def test_only_a_line_feed_ends_a_line(tmp_path: Path, odd: str) -> None:
    text = f"a{odd}b\n{odd}c\nd{odd}e"
    assert read_lines(written(tmp_path, text.encode())) == [f"a{odd}b", f"{odd}c", f"d{odd}e"]


def test_crlf_files_read_as_their_lf_twins(tmp_path: Path) -> None:
    crlf = written(tmp_path, b"one two\r\n\r\nthree\r\n", "crlf")
    lf = written(tmp_path, b"one two\n\nthree\n", "lf")
    assert read_lines(crlf) == read_lines(lf) == ["one two", "", "three"]


def test_a_last_line_needs_no_line_end_and_outer_blanks_stay(tmp_path: Path) -> None:
    assert read_lines(written(tmp_path, b" a \n\tb  ")) == [" a ", "\tb  "]


def test_blank_lines_are_lines(tmp_path: Path) -> None:
    assert read_lines(written(tmp_path, b"\n\na\n\n")) == ["", "", "a", ""]


def test_a_line_of_unicode_blanks_is_blank() -> None:
    assert [is_blank(line) for line in ("", " ", "\u3000\t", "\u2028", "a", " . ")] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]


def test_latin_1_is_refused_with_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "ok\nsch\u00f6n\n".encode("latin-1"))
    with pytest.raises(CheckError, match=r"line 2 is not UTF-8 \(byte 0xf6\).*iconv") as refused:
        read_lines(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xef\xbb\xbfa\n", "byte-order mark.*tail -c"),
        ("a\n".encode("utf-16"), "is UTF-16, not UTF-8.*iconv"),
        (b"", "is empty"),
    ],
)
def test_marks_other_encodings_and_empty_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(CheckError, match=complaint) as refused:
        read_lines(path)
    assert str(path) in str(refused.value)


def test_a_missing_file_and_a_directory_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "train.en", tmp_path):
        with pytest.raises(CheckError) as refused:
            read_lines(path)
        assert str(path) in str(refused.value)


def test_sides_of_unequal_length_are_refused_with_both_counts(tmp_path: Path) -> None:
    src = written(tmp_path, b"a\nb\nc\n", "t.en")
    tgt = written(tmp_path, b"x\ny\n", "t.de")
    with pytest.raises(CheckError) as refused:
        read_pairs(src, tgt)
    for part in ("3 lines", "2", str(src), str(tgt)):
        assert part in str(refused.value)


def test_pairs_keep_blank_lines_in_step(tmp_path: Path) -> None:
    src = written(tmp_path, b"a\n\nc\n", "t.en")
    tgt = written(tmp_path, b"x\r\ny\r\n\r\n", "t.de")
    assert read_pairs(src, tgt) == [("a", "x"), ("", "y"), ("c", "")]
