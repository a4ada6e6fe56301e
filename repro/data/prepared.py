"""A prepared corpus on disk: evaluation text, vocabulary and encoded pairs, with a manifest that vouches for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.data.corpora import SIDES, SPLITS, Side
from repro.data.encoded import EncodedPairs
from repro.data.text import read_lines
from repro.data.vocabulary import Vocabulary
from repro.errors import CheckError
from repro.files import digest_of, digest_of_file, read_json, write_json
from repro.shapes import Shape, check_shape

FORMAT = 1
"""Raised whenever files of before can no longer be read."""

MANIFEST, VOCABULARY, RAW, ENCODED = "manifest.json", "vocabulary.model", "raw", "encoded"

_MANIFEST: Shape = {
    "corpus": str,
    "languages": [str],
    "inputs": {"settings": dict, "text": dict},
    "counts": dict.fromkeys(SPLITS, dict),
    "notes": [str],
    "files": dict,
    "digest": str,
}
_ENTRY: Shape = {"bytes": int, "sha256": str}

EVALUATION_SPLITS = tuple(split for split in SPLITS if split != "train")
"""The splits whose raw text is kept."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A corpus ready for training. Its directory can be moved; nothing in it is ever changed."""

    directory: Path
    manifest: dict[str, Any]
    _open: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def load(directory: Path) -> Prepared:
        """The prepared corpus in `directory`. Raises CheckError when a file is missing, or not what was written."""
        manifest = read_json(directory / MANIFEST)
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            what = f"not a manifest of format {FORMAT}"
            raise CheckError(what, where=str(directory / MANIFEST), fix=_again(directory))
        check_shape(manifest, _MANIFEST, directory / MANIFEST, fix=_again(directory))
        for name, entry in manifest["files"].items():
            check_shape(entry, _ENTRY, directory / MANIFEST, fix=_again(directory))
            _check_file(directory, name, entry)
        if manifest["digest"] != digest_of_manifest(manifest):
            raise CheckError(
                "its digest is not that of its content", where=str(directory / MANIFEST), fix=_again(directory)
            )
        return Prepared(directory, manifest)

    @staticmethod
    def load_same(directory: Path, digest: str) -> Prepared:
        """The prepared corpus in `directory`. Raises CheckError as `load` does, and when its digest is not `digest`."""
        prepared = Prepared.load(directory)
        if prepared.digest != digest:
            raise CheckError(
                f"the prepared corpus changed: its digest is {prepared.digest[:12]}, wanted is {digest[:12]}",
                where=str(directory),
                fix="put the old files back, or start a new study or run",
            )
        return prepared

    @property
    def corpus(self) -> str:
        """The corpus's name."""
        return str(self.manifest["corpus"])

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        src, tgt = self.manifest["languages"]
        return str(src), str(tgt)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over the text, the settings and everything made of them; part of a run's hash."""
        return str(self.manifest["digest"])

    @property
    def vocabulary_sha256(self) -> str:
        """SHA-256 (hex) of the vocabulary file."""
        return str(self.manifest["files"][VOCABULARY]["sha256"])

    @property
    def counts(self) -> dict[str, dict[str, Any]]:
        """Per split: lines, pairs kept, blank and too long lines, pieces, longest sentences, unknown shares."""
        counts: dict[str, dict[str, Any]] = self.manifest["counts"]
        return counts

    @property
    def notes(self) -> list[str]:
        """What a user should know of this text, one sentence each."""
        return list(self.manifest["notes"])

    def vocabulary(self) -> Vocabulary:
        """The joint vocabulary."""
        if "vocabulary" not in self._open:
            self._open["vocabulary"] = Vocabulary(self.directory / VOCABULARY)
        vocabulary: Vocabulary = self._open["vocabulary"]
        return vocabulary

    def encoded(self, split: str) -> EncodedPairs:
        """The encoded pairs of `split`. In train blank and too long ones are left out, elsewhere pair i is line i."""
        if split not in self._open:
            self._open[split] = EncodedPairs.open(self.directory / ENCODED, split)
        encoded: EncodedPairs = self._open[split]
        return encoded

    def raw(self, split: str, side: Side) -> list[str]:
        """The untouched lines of one side of valid or test, blank ones kept."""
        return read_lines(self.raw_path(split, side))

    def raw_path(self, split: str, side: Side) -> Path:
        """The file that `raw` reads: a copy, byte for byte, of the corpus's."""
        return self.directory / RAW / f"{split}.{self.languages[SIDES.index(side)]}"

    def reference_sha256(self, split: str) -> str:
        """SHA-256 (hex) of the untouched reference file of valid or test."""
        return str(self.manifest["files"][f"{RAW}/{split}.{self.languages[1]}"]["sha256"])


def write_manifest(directory: Path, content: dict[str, Any]) -> None:
    """Complete `content` with format, files and digest, and write it as the manifest of `directory`."""
    files = {
        path.relative_to(directory).as_posix(): {"bytes": path.stat().st_size, "sha256": digest_of_file(path)}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
    manifest = {"format": FORMAT, **content, "files": files}
    write_json(directory / MANIFEST, {**manifest, "digest": digest_of_manifest(manifest)})


def digest_of_manifest(manifest: dict[str, Any]) -> str:
    """The digest of a prepared corpus: of its inputs (text and settings) and of every file made of them."""
    made = {name: entry["sha256"] for name, entry in manifest["files"].items()}
    return digest_of({"format": manifest["format"], "inputs": manifest["inputs"], "files": made})


def _check_file(directory: Path, name: str, entry: dict[str, Any]) -> None:
    path = directory / name
    if not path.is_file():
        raise CheckError("a file of the prepared corpus is missing", where=str(path), fix=_again(directory))
    if path.stat().st_size != entry["bytes"] or digest_of_file(path) != entry["sha256"]:
        raise CheckError("changed since the corpus was prepared", where=str(path), fix=_again(directory))


def _again(directory: Path) -> str:
    return f"remove {directory} and prepare the corpus again"
