"""Corpora as the commands see them: known, prepared, described."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.scales import SCALES
from repro.config import DataConfig
from repro.errors import CheckError

if TYPE_CHECKING:
    from repro.data.prepare import Prepared

ROOT_VARIABLE = "ABLATE_DATA"
"""Environment variable: where prepared corpora are kept; without it, `data/` in the working directory."""


def data_root() -> Path:
    """Where prepared corpora are kept."""
    return Path(os.environ.get(ROOT_VARIABLE) or "data").absolute()


def prepare_for(data: DataConfig, *, source: Path | None = None, known: Path | None = None) -> Prepared:
    """The prepared corpus of `data`, made if it is not there.

    `source`: the directory of its text; it is read in any case. `known`: where a study has it; used without `source`.
    """
    if source is None:
        from repro.data.prepare import Prepared

        if known is not None and known.is_dir():
            return Prepared.load(known)
        # A generated corpus is made anew, which notices a changed generator; text that was brought once is not asked
        # for again.
        found = None if data.corpus == "smoke" else prepared_already(data)
        if found is not None:
            return found
    return _prepare(data, source)


def prepared_already(data: DataConfig) -> Prepared | None:
    """The newest prepared corpus of `data` here, or None."""
    from repro.data.prepare import Prepared

    folders = sorted((data_root() / data.corpus).glob(f"{data.vocabulary_size}-*/manifest.json"), key=_age)
    for folder in folders:
        try:
            return Prepared.load(folder.parent)
        except CheckError:
            continue  # damaged: preparing it again says so
    return None


def prepare_corpus(corpus: str, *, vocabulary_size: int | None, source: Path | None) -> Prepared:
    """Prepare `corpus` as the first scale that uses it would, or with another vocabulary size."""
    used = [scale.base.data for scale in SCALES.values() if scale.base.data.corpus == corpus]
    data = used[0] if used else DataConfig(corpus=corpus)
    size = vocabulary_size or data.vocabulary_size
    return _prepare(DataConfig(corpus=corpus, vocabulary_size=size, max_pieces=data.max_pieces), source)


def _prepare(data: DataConfig, source: Path | None) -> Prepared:
    from repro.data.prepare import prepare

    return prepare(
        data.corpus,
        vocabulary_size=data.vocabulary_size,
        max_pieces=data.max_pieces,
        data_root=data_root(),
        source=source,
    )


def _age(manifest: Path) -> float:
    return -manifest.stat().st_mtime


def known() -> list[dict[str, Any]]:
    """The registry's corpora as plain documents, with the vocabulary sizes for which each is prepared here."""
    from repro.data.corpora import CORPORA

    return [
        {
            "name": corpus.name,
            "languages": list(corpus.languages),
            "licence": corpus.licence,
            "prepared": sorted(
                int(folder.parent.name.partition("-")[0]) for folder in (data_root() / name).glob("*-*/manifest.json")
            ),
        }
        for name, corpus in CORPORA.items()
    ]


def described(prepared: Prepared) -> dict[str, Any]:
    """What was prepared, as a plain document."""
    return {
        "corpus": prepared.corpus,
        "languages": " to ".join(prepared.languages),
        "directory": str(prepared.directory),
        "digest": prepared.digest,
        "vocabulary_size": prepared.vocabulary().size,
        "counts": dict(prepared.counts),
    }
