"""Preparing a corpus: text to vocabulary and encoded pairs, once, whichever processes ask for it, whenever they die."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repro.data import corpora, smoke
from repro.data.corpora import SIDES, SPLITS, Corpus, differing, paths
from repro.data.download import fetch_text
from repro.data.encoded import EncodedPairs, Ids, keep, pack, store
from repro.data.pieces import UNK
from repro.data.prepared import ENCODED, EVALUATION_SPLITS, FORMAT, MANIFEST, RAW, VOCABULARY, Prepared, write_manifest
from repro.data.text import is_blank, read_bytes, read_pairs
from repro.data.vocabulary import Vocabulary, train_vocabulary
from repro.errors import CheckError, UsageError
from repro.files import digest_of_file, disk_error, read_json, write_bytes, write_text

__all__ = ["Prepared", "prepare"]

Say = Callable[[str], None]
"""Told what takes time, one line each."""

_LISTED = 20
"""Most line numbers of too long lines that the manifest lists."""


def _silent(_line: str) -> None: ...


def prepare(
    corpus: str,
    *,
    vocabulary_size: int | None = None,
    data_root: Path,
    source: Path | None = None,
    max_pieces: int = 256,
    base_url: str | None = None,
    say: Say = _silent,
) -> Prepared:
    """The prepared `corpus`, made first if it is not there: `<data_root>/<corpus>/<pieces>-<digest12>/`.

    `vocabulary_size`: pieces of the joint vocabulary, None for the corpus's own number. `source`: a directory with the
    text; without it the text is generated, downloaded (from `base_url`, by default the registry's address), or, for
    files of one's own, the one that was prepared before. `max_pieces`: longer training sentences, the end mark counted,
    are left out with a count. Any number of processes may call at once. Raises UsageError for an unknown corpus and
    CheckError for text that is missing, damaged or misaligned, a vocabulary size it does not allow, or a full disk.
    """
    known = corpora.corpus(corpus)
    if source is not None and known.origin == "generated":
        raise UsageError(f"{known.name} is generated, it takes no --source", where="--source")
    home = data_root / known.directory_name
    wanted = _Wanted(known, vocabulary_size or known.vocabulary_size, max_pieces)
    # Without a lock first: a shared, read-only data directory can be used.
    if (found := _at_hand(wanted, home, source)) is not None:
        return found
    with _only_one(home):
        if (found := _at_hand(wanted, home, source)) is not None:
            return found
        text = _text(known, home, source, base_url, say)
        if (found := _find(wanted, home, text.digests)) is not None:
            return found
        return _make(wanted, text, home, say)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is asked for, apart from the text itself."""

    known: Corpus
    vocabulary_size: int
    max_pieces: int

    def settings(self) -> dict[str, Any]:
        return {"vocabulary_size": self.vocabulary_size, "max_pieces": self.max_pieces}


@dataclass(frozen=True, slots=True)
class _Text:
    """The six files of a corpus, their digests, and what there is to say of them."""

    files: dict[str, Path]
    digests: dict[str, str]
    origin: str
    notes: list[str] = field(default_factory=list)


# Finding what is there.


def _at_hand(wanted: _Wanted, home: Path, source: Path | None) -> Prepared | None:
    """What was asked for, if it needs nothing but reading."""
    known = wanted.known
    files = paths(known, source or home / RAW)
    if source is not None or all(path.is_file() for path in files.values()):
        digests = _digests(files)
        if source is None and differing(known, digests):
            return None  # of an older generator, or damaged
        return _find(wanted, home, digests)
    if known.origin == "generated":
        return None
    candidates = [
        manifest for manifest in _manifests(wanted, home) if manifest["inputs"]["settings"] == wanted.settings()
    ]
    if len(candidates) > 1:
        where = " and ".join(manifest["directory"] for manifest in candidates)
        raise CheckError(f"{known.name} was prepared from several texts", where=where, fix="name one with --source DIR")
    return Prepared.load(Path(candidates[0]["directory"])) if candidates else None


def _find(wanted: _Wanted, home: Path, digests: dict[str, str]) -> Prepared | None:
    """The prepared corpus made of the text with `digests`."""
    inputs = _inputs(wanted, digests)
    for manifest in _manifests(wanted, home):
        if manifest["inputs"] == inputs:
            return Prepared.load(Path(manifest["directory"]))
    return None


def _manifests(wanted: _Wanted, home: Path) -> list[dict[str, Any]]:
    """The manifests in `home` for this vocabulary size, each with its `directory`; those of other formats left out."""
    found = [(read_json(path), path.parent) for path in sorted(home.glob(f"{wanted.vocabulary_size}-*/{MANIFEST}"))]
    return [
        {**manifest, "directory": str(directory)}
        for manifest, directory in found
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT
    ]


def _inputs(wanted: _Wanted, digests: dict[str, str]) -> dict[str, Any]:
    return {"languages": list(wanted.known.languages), "text": digests, "settings": wanted.settings()}


def _digests(files: dict[str, Path]) -> dict[str, str]:
    """File name -> SHA-256; raises CheckError for a missing file."""
    for path in files.values():
        if not path.is_file():
            there = "no such file" if path.parent.is_dir() else "no such directory"
            raise CheckError(
                there, where=str(path if path.parent.is_dir() else path.parent), fix=f"wanted: {', '.join(files)}"
            )
    return {name: digest_of_file(path) for name, path in files.items()}


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Hold the corpus's lock, and clear what killed holders left behind.

    The system frees the lock of a process that dies. Where a file system has no locks, two processes may do the same
    work; the rename at its end lets one of them win.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / ".lock").open("wb")
    except OSError as error:
        raise disk_error(error, home) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        for leftover in home.glob(".making-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for unfinished in (home / RAW).glob(".*"):
            unfinished.unlink()
        yield


# Getting the text.


def _text(known: Corpus, home: Path, source: Path | None, base_url: str | None, say: Say) -> _Text:
    """The corpus's text, generated or downloaded to `home`/raw if need be, or in `source`."""
    if source is None and known.origin == "local":
        raise CheckError(
            f"the text of {known.name} has to be brought" + (f": {known.advice}" if known.advice else ""),
            fix=known.source_advice(),
        )
    raw = home / RAW
    if source is None:
        for name, path in paths(known, raw).items():
            _bring(known, name, path, base_url or known.base_url, say)
        files = paths(known, raw)
        return _Text(files, _digests(files), known.origin)
    files = paths(known, source)
    text = _Text(files, _digests(files), str(source.absolute()))
    other = differing(known, text.digests)
    if other:
        text.notes.append(f"not the published text of {known.name}: {', '.join(other)} differ")
    elif known.sha256:
        # The published text: it serves in place of the download from now on.
        for name, path in files.items():
            write_bytes(raw / name, read_bytes(path))
    return text


def _bring(known: Corpus, name: str, path: Path, base_url: str, say: Say) -> None:
    """Make sure that `path` is the known file `name`."""
    if path.is_file():
        if digest_of_file(path) == known.sha256[name]:
            return
        if known.origin == "download":
            fix = f"remove it to download it again, or {known.source_advice()}"
            raise CheckError(f"is not the published text of {known.name}", where=str(path), fix=fix)
    if known.origin == "download":
        url = base_url.rstrip("/") + "/" + known.remote_name(name)
        fetch_text(url, path, known.sha256[name], otherwise=known.source_advice(), say=say)
        return
    split, language = name.split(".")
    column = known.languages.index(language)
    write_text(path, "".join(pair[column] + "\n" for pair in smoke.generate(split)))


# Making it.


def _make(wanted: _Wanted, text: _Text, home: Path, say: Say) -> Prepared:
    """Do the work in a directory beside the final one, then rename it: there is nothing in between."""
    try:
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=home))
    except OSError as error:
        raise disk_error(error, home) from error
    try:
        _fill(making, wanted, text, say)
        digest = Prepared.load(making).digest
        final = home / f"{wanted.vocabulary_size}-{digest[:12]}"
        making.chmod(0o755)
        try:
            making.rename(final)
        except OSError as error:
            if not final.is_dir():
                raise disk_error(error, final) from error
            # Without locks another process may have been first, with the same content; loading makes sure of it.
        return Prepared.load(final)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _fill(making: Path, wanted: _Wanted, text: _Text, say: Say) -> None:
    known = wanted.known
    sides = {split: _pairs(known, text, split) for split in SPLITS}
    filled = [(src, tgt) for src, tgt in zip(*sides["train"], strict=True) if not is_blank(src) and not is_blank(tgt)]
    if not filled:
        where = str(text.files[known.file_name("train", "src")])
        raise CheckError("no line has text on both sides", where=where, fix="give sentence pairs to train on")
    say(f"training a vocabulary of {wanted.vocabulary_size} pieces on {len(filled)} pairs")
    joint = [pair[column] for column in (0, 1) for pair in filled]
    vocabulary = train_vocabulary(joint, wanted.vocabulary_size, making / VOCABULARY)
    counts = {}
    for split in SPLITS:
        say(f"encoding {split}")
        encoded, counts[split] = _encode(sides[split], vocabulary, wanted.max_pieces, training=split == "train")
        if not len(encoded):
            raise CheckError(f"every training pair is longer than {wanted.max_pieces} pieces", where="data.max_pieces")
        store(making / ENCODED, split, encoded)
    for split in EVALUATION_SPLITS:
        for side in SIDES:
            name = known.file_name(split, side)
            write_bytes(making / RAW / name, read_bytes(text.files[name]))
    write_manifest(
        making,
        {
            "corpus": known.name,
            "languages": list(known.languages),
            "inputs": _inputs(wanted, text.digests),
            "origin": text.origin,
            "licence": known.licence,
            "cite": known.cite,
            "notes": text.notes,
            "counts": counts,
        },
    )


def _pairs(known: Corpus, text: _Text, split: str) -> tuple[list[str], list[str]]:
    src, tgt = (text.files[known.file_name(split, side)] for side in SIDES)
    pairs = read_pairs(src, tgt)
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _encode(
    sides: tuple[Sequence[str], Sequence[str]], vocabulary: Vocabulary, max_pieces: int, *, training: bool
) -> tuple[EncodedPairs, dict[str, Any]]:
    """One split's encoded pairs and its counts; in training, blank and too long pairs are left out."""
    packed = [pack(_encoded_rows(lines, vocabulary), vocabulary.size) for lines in sides]
    blank = np.array([is_blank(src) or is_blank(tgt) for src, tgt in zip(*sides, strict=True)], dtype=bool)
    lengths = [np.diff(offsets) + 1 for _, offsets in packed]
    too_long = (np.maximum(*lengths) > max_pieces) & ~blank
    chosen = ~(blank | too_long) if training else np.ones(len(blank), dtype=bool)
    pieces, offsets = {}, {}
    for side, (flat, starts) in zip(SIDES, packed, strict=True):
        pieces[side], offsets[side] = keep(flat, starts, chosen)
    encoded = EncodedPairs(pieces, offsets, np.flatnonzero(chosen).astype(np.int64) + 1)
    counts: dict[str, Any] = {
        "lines": len(blank),
        "pairs": len(encoded),
        "blank": int(blank.sum()),
        "too_long": int(too_long.sum()),
        "too_long_lines": (np.flatnonzero(too_long)[:_LISTED] + 1).tolist(),
    }
    for side, row_lengths in zip(SIDES, (encoded.src_lengths, encoded.tgt_lengths), strict=True):
        counts[f"{side}_pieces"] = int(row_lengths.sum())
        counts[f"{side}_longest"] = int(row_lengths.max(initial=0)) + 1
        counts[f"{side}_unknown_share"] = _unknown_share(pieces[side])
    return encoded, counts


def _encoded_rows(lines: Sequence[str], vocabulary: Vocabulary) -> Iterator[list[int]]:
    """The pieces of each line, some thousand lines at a time: as lists they take many times the memory of an array."""
    for start in range(0, len(lines), 10_000):
        yield from vocabulary.encode(lines[start : start + 10_000])


def _unknown_share(pieces: Ids) -> float:
    return float((pieces == UNK).mean()) if len(pieces) else 0.0
