"""Preparing corpora: what is kept and dropped, made once, never half, and noticed when it changes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_disk import small_disk

from repro.data import corpora
from repro.data import prepare as prepare_module
from repro.data.corpora import CORPORA, Corpus, corpus
from repro.data.prepare import Prepared, prepare
from repro.errors import CheckError, UsageError

WORDS = ("red", "dog", "cat", "runs", "sees", "tree", "blue", "house", "and", "under")


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(2, 9)))


def made_source(directory: Path, **changes: bytes) -> Path:
    """A directory with six small files; `changes` by name with "_" for "." replace some."""
    directory.mkdir(exist_ok=True)
    draw = random.Random(3)
    for split, size in (("train", 200), ("valid", 10), ("test", 10)):
        lines = [sentence(draw) for _ in range(size)]
        (directory / f"{split}.en").write_text("".join(f"{line}\n" for line in lines))
        (directory / f"{split}.de").write_text("".join(f"{line.upper()}\n" for line in lines))
    for name, content in changes.items():
        (directory / name.replace("_", ".")).write_bytes(content)
    return directory


def prepared_from(source: Path, root: Path, max_pieces: int = 256) -> Prepared:
    return prepare("local:en-de", vocabulary_size=80, data_root=root, source=source, max_pieces=max_pieces)


def test_every_split_is_encoded_and_the_raw_evaluation_text_kept(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    made = prepared_from(source, tmp_path / "data")
    vocabulary = made.vocabulary()
    assert made.corpus == "local:en-de"
    assert made.languages == ("en", "de")
    for split in ("train", "valid", "test"):
        encoded = made.encoded(split)
        src = (source / f"{split}.en").read_text().splitlines()
        tgt = (source / f"{split}.de").read_text().splitlines()
        assert [vocabulary.decode(encoded.src(i)) for i in range(len(encoded))] == src
        assert [vocabulary.decode(encoded.tgt(i)) for i in range(len(encoded))] == tgt
        assert encoded.src_lengths.tolist() == [len(encoded.src(i)) for i in range(len(encoded))]
        assert encoded.tgt_lengths.tolist() == [len(encoded.tgt(i)) for i in range(len(encoded))]
    for split in ("valid", "test"):
        assert made.raw(split, "src") == (source / f"{split}.en").read_text().splitlines()
        assert made.raw(split, "tgt") == (source / f"{split}.de").read_text().splitlines()
        reference = hashlib.sha256((source / f"{split}.de").read_bytes()).hexdigest()
        assert made.reference_sha256(split) == reference
    assert made.vocabulary_sha256 == vocabulary.sha256


def test_the_directory_is_named_after_pieces_and_digest(tmp_path: Path) -> None:
    made = prepared_from(made_source(tmp_path / "text"), tmp_path / "data")
    assert made.directory == tmp_path / "data" / "local-en-de" / f"80-{made.digest[:12]}"


def test_blank_lines_are_dropped_for_training_with_a_count_and_kept_in_evaluation(tmp_path: Path) -> None:
    made = prepare(
        "local:en-de",
        vocabulary_size=40,
        data_root=tmp_path / "data",
        source=made_source(
            tmp_path / "text",
            train_en=b"red dog\n\nblue cat\n \t\nthe tree\n" * 30,
            train_de=b"RED DOG\nX\nBLUE CAT\n\n\xe3\x80\x80\n" * 30,
            valid_en=b"red dog\n\nblue cat\n",
            valid_de=b"RED DOG\nX\n\n",
        ),
    )
    assert made.counts["train"] | {"lines": 150, "pairs": 60, "blank": 90} == made.counts["train"]
    assert made.encoded("train").lines[:4].tolist() == [1, 3, 6, 8]
    assert made.counts["valid"]["pairs"] == 3
    assert made.raw("valid", "src") == ["red dog", "", "blue cat"]
    assert made.raw("valid", "tgt") == ["RED DOG", "X", ""]
    assert made.encoded("valid").src_lengths[1] == 0


def test_a_line_of_5000_words_is_dropped_with_its_number_and_kept_in_evaluation(tmp_path: Path) -> None:
    long = b" ".join([b"dog"] * 5000)
    source = made_source(tmp_path / "text")
    for name, text in (("train.en", long), ("train.de", b"DOG"), ("valid.en", long), ("valid.de", b"DOG")):
        with (source / name).open("ab") as file:
            file.write(text + b"\n")
    made = prepared_from(source, tmp_path / "data")
    train, valid = made.counts["train"], made.counts["valid"]
    assert (train["lines"], train["pairs"], train["too_long"], train["too_long_lines"]) == (201, 200, 1, [201])
    assert (valid["pairs"], valid["too_long_lines"]) == (11, [11])
    assert made.vocabulary().decode(made.encoded("valid").src(10)).split(" ") == ["dog"] * 5000
    assert valid["src_longest"] >= 5001


def test_the_longest_sentence_kept_has_max_pieces_with_its_end_mark(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    everything = prepared_from(source, tmp_path / "data")
    longest = np.maximum(everything.encoded("train").src_lengths, everything.encoded("train").tgt_lengths) + 1
    limit = int(np.median(longest))
    cut = prepared_from(source, tmp_path / "data", max_pieces=limit)
    assert cut.counts["train"]["pairs"] == int((longest <= limit).sum())
    assert cut.counts["train"]["too_long"] == int((longest > limit).sum())
    assert cut.digest != everything.digest


def test_odd_line_separators_stay_inside_and_crlf_reads_as_lf(tmp_path: Path) -> None:
    text = {"valid_en": "a\u2028b\nc\u0085d\vd\n", "valid_de": "A\rB\nC\n"}
    lf = prepared_from(
        made_source(tmp_path / "lf", **{name: content.encode() for name, content in text.items()}), tmp_path / "d1"
    )
    crlf = prepared_from(
        made_source(
            tmp_path / "crlf", **{name: content.replace("\n", "\r\n").encode() for name, content in text.items()}
        ),
        tmp_path / "d2",
    )
    for made in (lf, crlf):
        assert made.raw("valid", "src") == ["a\u2028b", "c\u0085d\vd"]
        assert made.raw("valid", "tgt") == ["A\rB", "C"]
        assert len(made.encoded("valid")) == 2


def test_the_vocabulary_sees_the_training_side_only(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text", valid_en="red Ж dog\n".encode(), valid_de=b"RED DOG\n")
    made = prepared_from(source, tmp_path / "data")
    assert made.vocabulary().unknown_share(["Ж"]) > 0
    assert made.counts["valid"]["src_unknown_share"] > 0
    assert made.counts["train"]["src_unknown_share"] == made.counts["train"]["tgt_unknown_share"] == 0.0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"train_de": b"X\nY\n"}, "200 lines, but .*train.de has 2"),
        ({"valid_en": b"a\n"}, "1 lines, but .*valid.de has 10"),
        ({"test_de": "sch\u00f6n\n".encode("latin-1")}, "test.de: line 1 is not UTF-8"),
        ({"train_en": b""}, "train.en: is empty"),
        ({"train_en": b"\xef\xbb\xbfa\n"}, "train.en: begins with a byte-order mark"),
        ({"train_en": b"\n" * 200}, "train.en: no line has text on both sides"),
    ],
)
def test_wrong_text_is_one_line_and_leaves_nothing_behind(
    tmp_path: Path, changes: dict[str, bytes], complaint: str
) -> None:
    with pytest.raises(CheckError, match=complaint) as refused:
        prepared_from(made_source(tmp_path / "text", **changes), tmp_path / "data")
    assert "\n" not in str(refused.value)
    assert [path.name for path in (tmp_path / "data" / "local-en-de").iterdir()] == [".lock"]


def test_a_missing_directory_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="nowhere: no such directory"):
        prepared_from(tmp_path / "nowhere", tmp_path / "data")
    source = made_source(tmp_path / "text")
    (source / "test.de").unlink()
    with pytest.raises(CheckError, match=r"test\.de: no such file"):
        prepared_from(source, tmp_path / "data")


def test_a_vocabulary_larger_than_the_text_allows_is_refused(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    with pytest.raises(CheckError, match=r"data.vocabulary_size: 30000 pieces are more .*the most is \d+"):
        prepare("local:en-de", vocabulary_size=30_000, data_root=tmp_path / "data", source=source)


def test_every_pair_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"data.max_pieces: every training pair is longer than 2"):
        prepared_from(made_source(tmp_path / "text"), tmp_path / "data", max_pieces=2)


def test_preparing_again_does_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path / "text")
    first = prepared_from(source, tmp_path / "data")
    monkeypatch.setattr(prepare_module, "train_vocabulary", None)
    again = prepared_from(source, tmp_path / "data")
    assert (again.directory, again.digest) == (first.directory, first.digest)


def test_two_places_make_the_same_digest(tmp_path: Path) -> None:
    digests = {prepared_from(made_source(tmp_path / name), tmp_path / f"{name}-data").digest for name in ("a", "b")}
    assert len(digests) == 1


def test_text_brought_once_is_found_without_its_source(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    with pytest.raises(CheckError, match=r"has to be brought.*--source DIR.*train\.en"):
        prepare("local:en-de", vocabulary_size=80, data_root=tmp_path / "data")
    made = prepared_from(source, tmp_path / "data")
    shutil.rmtree(source)
    assert prepare("local:en-de", vocabulary_size=80, data_root=tmp_path / "data").digest == made.digest
    with pytest.raises(CheckError, match="has to be brought"):
        prepare("local:en-de", vocabulary_size=70, data_root=tmp_path / "data")


def test_several_texts_need_a_source_to_tell_them_apart(tmp_path: Path) -> None:
    prepared_from(made_source(tmp_path / "a"), tmp_path / "data")
    prepared_from(made_source(tmp_path / "b", test_en=b"dog\n" * 10), tmp_path / "data")
    with pytest.raises(CheckError, match=r"prepared from several texts.*--source DIR"):
        prepare("local:en-de", vocabulary_size=80, data_root=tmp_path / "data")


def test_a_changed_text_is_another_corpus(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    first = prepared_from(source, tmp_path / "data")
    lines = (source / "train.de").read_text().split("\n")
    (source / "train.de").write_text("\n".join(["DOG RUNS", *lines[1:]]))
    second = prepared_from(source, tmp_path / "data")
    assert second.digest != first.digest
    assert second.directory != first.directory
    assert Prepared.load(first.directory).digest == first.digest


@pytest.mark.parametrize(
    "name", ["vocabulary.model", "raw/test.de", "encoded/train.src.pieces.npy", "encoded/valid.lines.npy"]
)
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_file_of_a_prepared_corpus_is_noticed(tmp_path: Path, name: str, damage: str) -> None:
    made = prepared_from(made_source(tmp_path / "text"), tmp_path / "data")
    path = made.directory / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(CheckError, match=r"changed since|is missing") as refused:
        Prepared.load(made.directory)
    assert str(path) in str(refused.value)
    with pytest.raises(CheckError, match=r"changed since|is missing"):
        prepared_from(tmp_path / "text", tmp_path / "data")


def test_a_manifest_that_says_another_digest_is_noticed(tmp_path: Path) -> None:
    made = prepared_from(made_source(tmp_path / "text"), tmp_path / "data")
    manifest = json.loads((made.directory / "manifest.json").read_text())
    manifest["inputs"]["settings"]["max_pieces"] = 17
    (made.directory / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckError, match="digest"):
        Prepared.load(made.directory)


def test_a_prepared_corpus_can_be_moved(tmp_path: Path) -> None:
    made = prepared_from(made_source(tmp_path / "text"), tmp_path / "data")
    moved = made.directory.rename(tmp_path / "elsewhere")
    again = Prepared.load(moved)
    assert again.digest == made.digest
    assert len(again.encoded("train")) == 200


def _prepare_in_child(source: Path, root: Path, results: multiprocessing.Queue[str]) -> None:
    results.put(prepared_from(source, root).digest)


def test_processes_that_ask_at_once_get_one_corpus(tmp_path: Path) -> None:
    source = made_source(tmp_path / "text")
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=_prepare_in_child, args=(source, tmp_path / "data", results)) for _ in range(4)]
    for child in children:
        child.start()
    digests = {results.get(timeout=60) for _ in children}
    for child in children:
        child.join(timeout=60)
        assert child.exitcode == 0
    assert len(digests) == 1
    names = sorted(path.name for path in (tmp_path / "data" / "local-en-de").iterdir())
    assert names == [".lock", f"80-{digests.pop()[:12]}"]


KILLED = """
import sys, time
from pathlib import Path
from repro.data import prepare as module
original = module.write_manifest
def wait(*arguments):
    print("working", flush=True)
    time.sleep(60)
module.write_manifest = wait
module.prepare("local:en-de", vocabulary_size=80, data_root=Path(sys.argv[2]), source=Path(sys.argv[1]))
"""


def test_what_a_killed_process_leaves_is_never_used_and_cleared_away(tmp_path: Path) -> None:
    source, root = made_source(tmp_path / "text"), tmp_path / "data"
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(source), str(root)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "working\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    home = root / "local-en-de"
    assert len(list(home.glob(".making-*"))) == 1
    assert not list(home.glob("80-*"))
    made = prepared_from(source, root)
    assert sorted(path.name for path in home.iterdir()) == [".lock", made.directory.name]


def test_a_full_disk_is_one_clear_line_and_the_next_try_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path / "text")
    with small_disk(tmp_path / "disk", monkeypatch, kibibytes=2048) as disk:
        root = disk.path / "data"
        root.mkdir()
        disk.fill()
        with pytest.raises(CheckError, match="the disk is full"):
            prepared_from(source, root)
        disk.free()
        assert prepared_from(source, root).counts["train"]["pairs"] == 200
        assert not list(root.glob("*/.making-*"))


def test_a_disk_that_fills_while_arrays_are_written_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made_source(tmp_path / "text", train_en=b"red dog runs\n" * 60_000, train_de=b"RED DOG RUNS\n" * 60_000)
    with small_disk(tmp_path / "disk", monkeypatch, kibibytes=600) as disk:
        if not os.path.ismount(disk.path):
            disk.fill()
        with pytest.raises(CheckError, match="the disk is full"):
            prepare("local:en-de", vocabulary_size=40, data_root=disk.path / "data", source=source)
        if os.path.ismount(disk.path):
            assert [path.name for path in (disk.path / "data" / "local-en-de").iterdir()] == [".lock"]


def test_a_read_only_data_directory_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path / "text")
    made = prepared_from(source, tmp_path / "data")
    monkeypatch.setattr(prepare_module, "_only_one", None)  # the lock, the only thing written before work
    assert prepared_from(source, tmp_path / "data").digest == made.digest


# The registry.


def test_the_smoke_corpus_is_prepared_without_any_source(tmp_path: Path) -> None:
    made = prepare("smoke", data_root=tmp_path)
    assert {split: made.counts[split]["pairs"] for split in made.counts} == {"train": 20_000, "valid": 250, "test": 500}
    words = sum(len(line.split()) for line in made.raw("test", "src"))
    assert made.counts["test"]["src_pieces"] < 1.3 * words, "most words are one piece"
    assert prepare("smoke", data_root=tmp_path).directory == made.directory
    with pytest.raises(UsageError, match="takes no --source"):
        prepare("smoke", data_root=tmp_path, source=tmp_path)


def test_smoke_text_of_an_older_generator_is_made_anew(tmp_path: Path) -> None:
    made = prepare("smoke", data_root=tmp_path)
    (tmp_path / "smoke" / "raw" / "train.svo").write_text("older\n")
    assert prepare("smoke", data_root=tmp_path).digest == made.digest


def test_an_unknown_corpus_is_wrong_usage_with_near_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown corpus 'multi30k_de_en'.*multi30k_en_de"):
        prepare("multi30k_de_en", data_root=tmp_path)
    for name in ("local", "local:en", "local:en-en", "local:../x-y"):
        with pytest.raises(UsageError):
            corpus(name)


def test_the_registry_names_languages_licence_and_files() -> None:
    assert set(CORPORA) >= {"smoke", "multi30k_en_de", "multi30k_en_fr", "wmt14_en_de"}
    assert CORPORA["multi30k_en_fr"].file_names() == [
        "train.en", "train.fr", "valid.en", "valid.fr", "test.en", "test.fr",
    ]  # fmt: skip
    for known in CORPORA.values():
        assert known.licence
        assert known.vocabulary_size > 0
        assert known.origin == "local" or sorted(known.sha256) == sorted(known.file_names())
    assert corpus("local:en-hi").languages == ("en", "hi")


def test_wmt14_says_where_its_text_is_and_takes_a_source(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"statmt\.org/wmt14.*--source DIR"):
        prepare("wmt14_en_de", data_root=tmp_path / "data")
    source = made_source(tmp_path / "text")
    assert prepare("wmt14_en_de", vocabulary_size=80, data_root=tmp_path / "data", source=source).notes == []


def registered(source: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus for download whose known text is that of `source`."""
    known = Corpus(
        name="tiny",
        title="",
        languages=("en", "de"),
        origin="download",
        vocabulary_size=80,
        licence="none",
        base_url="http://127.0.0.1:9/",
        remote_names={"train": "train", "valid": "val", "test": "test_x"},
        sha256={path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir()},
    )
    monkeypatch.setitem(corpora.CORPORA, "tiny", known)
    return known


def test_a_source_equal_to_the_published_text_serves_in_place_of_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made_source(tmp_path / "text")
    registered(source, monkeypatch)
    made = prepare("tiny", data_root=tmp_path / "data", source=source)
    assert made.notes == []
    shutil.rmtree(source)
    assert prepare("tiny", data_root=tmp_path / "data").digest == made.digest
    assert prepare("tiny", vocabulary_size=70, data_root=tmp_path / "data").vocabulary().size == 70


def test_a_source_that_differs_from_the_published_text_is_used_and_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made_source(tmp_path / "text")
    registered(source, monkeypatch)
    other = made_source(tmp_path / "other", test_de=b"DOG\n" * 10)
    made = prepare("tiny", data_root=tmp_path / "data", source=other)
    (note,) = made.notes
    assert "not the published text" in note
    assert "test.de" in note
    assert "train.en" not in note
    assert not (tmp_path / "data" / "tiny" / "raw").exists()


def test_without_network_one_line_names_the_source_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registered(made_source(tmp_path / "text"), monkeypatch)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(CheckError, match=r"cannot be reached .*--source DIR.*train\.en, train\.de") as refused:
        prepare("tiny", data_root=tmp_path / "data")
    assert "\n" not in str(refused.value)


def test_a_published_file_that_was_changed_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = made_source(tmp_path / "text")
    registered(source, monkeypatch)
    prepare("tiny", data_root=tmp_path / "data", source=source)
    path = tmp_path / "data" / "tiny" / "raw" / "train.de"
    path.write_text(path.read_text().replace("DOG", "DOGS"))
    with pytest.raises(CheckError, match=r"train\.de: is not the published text of tiny"):
        prepare("tiny", data_root=tmp_path / "data")
