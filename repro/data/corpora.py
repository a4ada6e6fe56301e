"""The registry of corpora: what they are, where their text comes from, and how it is known to be whole."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from repro.data import smoke
from repro.errors import UsageError

SPLITS = ("train", "valid", "test")

Side = Literal["src", "tgt"]
SIDES: tuple[Side, Side] = ("src", "tgt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A parallel corpus. Its text is generated, downloaded, or a directory of the user's (`--source`)."""

    name: str
    title: str
    languages: tuple[str, str]
    """Source and target language: the endings of the files' names."""
    origin: Literal["generated", "download", "local"]
    vocabulary_size: int
    """Pieces of the joint vocabulary when nothing else is asked for."""
    licence: str
    cite: str = ""
    base_url: str = ""
    """Where the files of a download lie."""
    remote_names: Mapping[str, str] = field(default_factory=dict)
    """Per split, a download's file name without language and `.gz`."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Per file name (`train.en`), the digest of the known text; empty when any text may stand for the corpus."""
    advice: str = ""
    """For a corpus that is neither generated nor downloaded: where its text is to be had."""

    def file_name(self, split: str, side: Side) -> str:
        """The name of one file of text, e.g. `train.en`."""
        return f"{split}.{self.languages[SIDES.index(side)]}"

    def file_names(self) -> list[str]:
        """The names of all six files."""
        return [self.file_name(split, side) for split in SPLITS for side in SIDES]

    def remote_name(self, file_name: str) -> str:
        """The name below `base_url` of the file that is `file_name` here."""
        split, language = file_name.split(".")
        return f"{self.remote_names[split]}.{language}.gz"

    @property
    def directory_name(self) -> str:
        """The name of the corpus as a directory."""
        return self.name.replace(":", "-")

    def source_advice(self) -> str:
        """What to do when the text is not to be had otherwise."""
        return f"pass --source DIR, a directory that holds {', '.join(self.file_names())}"


def corpus(name: str) -> Corpus:
    """The corpus called `name`, or `local:en-de` for any two languages. Raises UsageError for an unknown name."""
    if name in CORPORA:
        return CORPORA[name]
    if name.startswith("local"):
        return _local(name)
    near = difflib.get_close_matches(name, CORPORA, n=3, cutoff=0.4)
    known = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(CORPORA)}"
    raise UsageError(
        f"unknown corpus {name!r}", fix=f"{known}; for files of your own use local:SRC-TGT with --source DIR"
    )


def _local(name: str) -> Corpus:
    """A corpus of the user's own files, its languages in its name."""
    found = re.fullmatch(r"local:([A-Za-z0-9_]+)-([A-Za-z0-9_]+)", name)
    if not found or found[1] == found[2]:
        raise UsageError(f"{name!r} does not name two languages", fix="write local:SRC-TGT, e.g. local:en-de")
    return Corpus(
        name=name,
        title=f"local files, {found[1]} to {found[2]}",
        languages=(found[1], found[2]),
        origin="local",
        vocabulary_size=4000,
        licence="that of the files",
    )


_MULTI30K_SHA256 = {  # of the unpacked text, lines stripped of outer blanks
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "67aa53ff412b6af1f47c604a623e112e2c28c61519aa7cf8a5348af21722b67a",
    "train.fr": "b47e97734763b5252a979d767955c270f2c93e9e79f8ef063f71088a26e3c5a9",
    "valid.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "valid.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "valid.fr": "05f2ed05aa5bf06567b3d7ad3121f6346ebd909265383dc79dbe08ef707b7bc2",
    "test.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test.fr": "57a705a12ffb81f3da3539798bdaaaa8f2df5824de3a84e0f4ea378dab959b62",
}


def _multi30k(tgt: str, language: str, cite: str) -> Corpus:
    return Corpus(
        name=f"multi30k_en_{tgt}",
        title=f"Multi30k, image captions, English to {language} (29 000 pairs; test: test_2016_flickr)",
        languages=("en", tgt),
        origin="download",
        vocabulary_size=4000,
        licence="no licence file; its README: non-commercial research and education, images under Flickr's terms",
        cite=cite,
        # A commit, not a branch: what lies at this address cannot change.
        base_url="https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/",
        remote_names={"train": "train", "valid": "val", "test": "test_2016_flickr"},
        sha256={name: sha for name, sha in _MULTI30K_SHA256.items() if name.endswith((".en", f".{tgt}"))},
    )


CORPORA: dict[str, Corpus] = {
    known.name: known
    for known in (
        Corpus(
            name="smoke",
            title="a small made-up language pair with one right translation a source, generated here",
            languages=smoke.LANGUAGES,
            origin="generated",
            vocabulary_size=320,
            licence="Apache-2.0, as this project",
            sha256=smoke.SHA256,
        ),
        _multi30k("de", "German", "Elliott et al. 2016, Multi30K: Multilingual English-German Descriptions, W16-3210"),
        _multi30k("fr", "French", "Elliott et al. 2017, Findings of the Second Shared Task on Multimodal MT, W17-4718"),
        Corpus(
            name="wmt14_en_de",
            title="WMT 2014 English to German, the paper's training text (about 4.5 million pairs)",
            languages=("en", "de"),
            origin="local",
            vocabulary_size=37_000,
            licence="WMT's terms: research use",
            cite="Bojar et al. 2014, Findings of the 2014 Workshop on Statistical Machine Translation, W14-3302",
            advice="its text is at https://www.statmt.org/wmt14/translation-task.html (train: Europarl v7, Common "
            "Crawl and News Commentary v9 one after the other; valid: newstest2013; test: newstest2014)",
        ),
    )
}  # fmt: skip


def differing(known: Corpus, digests: Mapping[str, str]) -> list[str]:
    """The files (name -> SHA-256) that are not the known text of `known`; none when any text may stand for it."""
    return [name for name, sha in digests.items() if known.sha256 and known.sha256[name] != sha]


def paths(known: Corpus, directory: Path) -> dict[str, Path]:
    """File name -> path of the files of `known` in `directory`."""
    return {name: directory / name for name in known.file_names()}
