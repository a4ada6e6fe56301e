"""The vocabulary: nothing of a line is lost, and the same text gives the same pieces."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.data.pieces import BOS, EOS, PAD, UNK
from repro.data.vocabulary import Vocabulary, train_vocabulary
from repro.errors import CheckError

ODD = [
    "🙂 hello 👨‍👩‍👧",
    "ein ⁇ Zeichen",
    "全　角　blank",
    "हिन्दी भाषा में",
    "  leading",
    "trailing   ",
    "a   b    c",
    " ",
    "tab\tin\tside",
    "a\u2028b \u0085 c\vd\fe",
    "lone\rreturn",
    "▁ the ▁mark▁",
    "▅ rare ▅",
    "nul\0l",
    "<s> tags </s> <unk> <pad> a<s>b",
    "\ue000 \ue001 \ue002\ue003\ue004 private \ue000\ue001",
    "e\u0301 é ﬁ ① Ａ",
    "\ufeffmark \u00a0nobreak\u00a0",
    "@@ @-@ x@@ y",
]
PLAIN = [f"the quick brown fox {n} jumps over lazy dogs and {n * 7} cats" for n in range(40)]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return train_vocabulary([*ODD * 3, *PLAIN], 250, tmp_path_factory.mktemp("vocabulary") / "vocabulary.model")


@pytest.mark.parametrize("line", ["", *ODD])
def test_cutting_and_joining_gives_the_line_back(vocabulary: Vocabulary, line: str) -> None:
    (ids,) = vocabulary.encode([line])
    assert UNK not in ids
    assert vocabulary.decode(ids) == line


@settings(max_examples=300, deadline=None)
@given(line=st.text(alphabet="".join(sorted(set("".join(ODD)))), max_size=40))
def test_any_line_of_known_characters_comes_back(vocabulary: Vocabulary, line: str) -> None:
    assert vocabulary.decode(vocabulary.encode([line])[0]) == line


def test_special_pieces_have_their_places_and_never_come_from_text(vocabulary: Vocabulary) -> None:
    ids = [piece for row in vocabulary.encode([*ODD, *PLAIN]) for piece in row]
    assert not {PAD, BOS, EOS} & set(ids)
    assert max(ids) < vocabulary.size == 250


def test_special_pieces_are_left_out_of_the_text(vocabulary: Vocabulary) -> None:
    (ids,) = vocabulary.encode(["quick fox"])
    assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD]) == "quick fox"
    assert vocabulary.decode([]) == vocabulary.decode([BOS, EOS]) == ""


def test_a_character_never_seen_is_unknown_and_counted(vocabulary: Vocabulary) -> None:
    (ids,) = vocabulary.encode(["foxЖ"])
    assert ids.count(UNK) == 1
    assert vocabulary.decode(ids) == "fox⁇"
    assert vocabulary.unknown_share(["foxЖ", "fox"]) == 1 / (len(ids) + len(vocabulary.encode(["fox"])[0]))
    assert vocabulary.unknown_share(ODD) == vocabulary.unknown_share([]) == 0.0


def test_an_id_that_is_none_is_refused(vocabulary: Vocabulary) -> None:
    for ids in ([250], [-1]):
        with pytest.raises(ValueError, match="from 0 to 249"):
            vocabulary.decode(ids)


def test_the_same_text_gives_the_same_bytes(vocabulary: Vocabulary, tmp_path: Path) -> None:
    again = train_vocabulary([*ODD * 3, *PLAIN], 250, tmp_path / "another" / "name.model")
    assert again.path.read_bytes() == vocabulary.path.read_bytes()
    assert again.sha256 == vocabulary.sha256
    assert Vocabulary(again.path).encode(PLAIN) == vocabulary.encode(PLAIN)


def test_a_line_of_thousands_of_words_is_trained_on_and_cut(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choice("abcdefgh") for _ in range(6)) for _ in range(50)]
    long = " ".join(draw.choice(words) for _ in range(5000))  # 35 kB, above sentencepiece's own limit of 4192 bytes
    trained = train_vocabulary(["xyz"] * 3 + [long], 100, tmp_path / "v.model")
    assert trained.decode(trained.encode([long])[0]) == long
    assert trained.unknown_share([long]) == 0.0
    one_word = "".join(draw.choice("abcdefgh") for _ in range(70_000))
    assert trained.decode(trained.encode([one_word])[0]) == one_word


def test_no_line_is_left_out_of_training(tmp_path: Path) -> None:
    """Each odd line's own letter must be known although it stands in that line only."""
    lines = [f"{line} {chr(0x4E00 + number)}" for number, line in enumerate(ODD)]
    trained = train_vocabulary([*lines, *PLAIN], 260, tmp_path / "v.model")
    assert trained.unknown_share([chr(0x4E00 + number) for number in range(len(ODD))]) == 0.0


def test_too_many_pieces_are_refused_with_the_largest_number_that_works(tmp_path: Path) -> None:
    text = ["a b ab abc"] * 3
    with pytest.raises(
        CheckError, match=r"data.vocabulary_size: 5000 pieces are more .*the most is (\d+)\)$"
    ) as refused:
        train_vocabulary(text, 5000, tmp_path / "v.model")
    most = int(refused.value.fix.split()[-1])
    assert train_vocabulary(text, most, tmp_path / "v.model").size == most
    with pytest.raises(CheckError):
        train_vocabulary(text, most + 1, tmp_path / "w.model")
    assert not (tmp_path / "w.model").exists()


def test_too_few_pieces_are_refused_with_the_least_number_that_works(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"too few .*the least is (\d+)\)$") as refused:
        train_vocabulary(PLAIN, 6, tmp_path / "v.model")
    least = int(refused.value.fix.split()[-1])
    assert train_vocabulary(PLAIN, least, tmp_path / "v.model").size == least


@pytest.mark.parametrize("lines", [[], ["", ""]])
def test_no_text_makes_no_vocabulary(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(CheckError, match="empty"):
        train_vocabulary(lines, 100, tmp_path / "v.model")


def test_a_missing_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no such file"):
        Vocabulary(tmp_path / "v.model")
    (tmp_path / "v.model").write_bytes(b"no model at all")
    with pytest.raises(CheckError, match="no sentencepiece model") as refused:
        Vocabulary(tmp_path / "v.model")
    assert str(tmp_path / "v.model") in str(refused.value)
