"""Corpora as the commands see them: known, prepared, described."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.scales import SCALES
from repro.config import DataConfig
from repro.errors import CheckError

if TYPE_CHECKING:
    from repro.data.corpora import Corpus
    from repro.data.prepare import Prepared

Say = Callable[[str], None]
"""Told what takes time, one line each."""

ROOT_VARIABLE = "ABLATE_DATA"
"""Environment variable: where prepared corpora are kept; without it, `data/` in the working directory."""


def silent(_: str) -> None:
    """Tell nobody."""


def data_root() -> Path:
    """Where prepared corpora are kept."""
    return Path(os.environ.get(ROOT_VARIABLE) or "data").absolute()


def prepare_for(data: DataConfig, *, source: Path | None = None, say: Say = silent) -> Prepared:
    """The prepared corpus of `data`, made if it is not there. `source`: the directory of its text."""
    from repro.data.prepare import prepare

    return prepare(
        data.corpus,
        vocabulary_size=data.vocabulary_size,
        max_pieces=data.max_pieces,
        data_root=data_root(),
        source=source,
        say=say,
    )


def prepared_already(data: DataConfig) -> Prepared | None:
    """The newest prepared corpus of `data` here, or None. Raises UsageError for an unknown corpus."""
    from repro.data.corpora import corpus
    from repro.data.prepare import Prepared

    settings = {"vocabulary_size": data.vocabulary_size, "max_pieces": data.max_pieces}
    for manifest in sorted(_manifests(corpus(data.corpus), str(data.vocabulary_size)), key=_age):
        try:
            found = Prepared.load(manifest.parent)
        except CheckError:
            continue  # damaged: preparing it again says so
        if found.manifest["inputs"]["settings"] == settings:
            return found
    return None


def prepare_corpus(corpus: str, *, vocabulary_size: int | None, source: Path | None, say: Say = silent) -> Prepared:
    """Prepare `corpus` as the first scale that uses it would, or with another vocabulary size."""
    used = [scale.base.data for scale in SCALES.values() if scale.base.data.corpus == corpus]
    data = used[0] if used else DataConfig(corpus=corpus)
    size = vocabulary_size or data.vocabulary_size
    return prepare_for(
        DataConfig(corpus=corpus, vocabulary_size=size, max_pieces=data.max_pieces), source=source, say=say
    )


def _manifests(corpus: Corpus, vocabulary_size: str = "*") -> list[Path]:
    return list((data_root() / corpus.directory_name).glob(f"{vocabulary_size}-*/manifest.json"))


def _age(manifest: Path) -> float:
    return -manifest.stat().st_mtime


def known() -> list[dict[str, Any]]:
    """The registry's corpora as plain documents, with the vocabulary sizes for which each is prepared here."""
    from repro.data.corpora import CORPORA

    return [
        {
            "name": corpus.name,
            "title": corpus.title,
            "languages": list(corpus.languages),
            "licence": corpus.licence,
            "prepared": sorted(int(found.parent.name.partition("-")[0]) for found in _manifests(corpus)),
        }
        for corpus in CORPORA.values()
    ]


def described(prepared: Prepared) -> dict[str, Any]:
    """What was prepared, as a plain document."""
    return {
        "corpus": prepared.corpus,
        "languages": list(prepared.languages),
        "directory": str(prepared.directory),
        "digest": prepared.digest,
        "vocabulary_size": prepared.vocabulary().size,
        "counts": prepared.counts,
        "notes": prepared.notes,
    }


def in_words(prepared: Prepared) -> list[str]:
    """What was prepared, one line each."""
    lines = [f"{prepared.corpus}, {' to '.join(prepared.languages)}: {prepared.directory}"]
    for split, counts in prepared.counts.items():
        left_out = "left out" if split == "train" else "kept"
        parts = [f"{counts['pairs']} pairs of {counts['lines']} lines"]
        parts += [f"{counts['blank']} blank ones {left_out}"] if counts["blank"] else []
        if counts["too_long"]:
            where = ", ".join(str(number) for number in counts["too_long_lines"])
            parts.append(f"{counts['too_long']} too long ones {left_out} (lines {where})")
        longest = max(counts["src_longest"], counts["tgt_longest"])
        unknown = max(counts["src_unknown_share"], counts["tgt_unknown_share"])
        parts += [f"longest {longest} pieces", f"unknown pieces at most {unknown:.2%} a side"]
        lines.append(f"{split}: {', '.join(parts)}")
    return [*lines, f"digest {prepared.digest}", *prepared.notes]
