"""Lead's stopgap: prepared corpora."""
from __future__ import annotations

import json, os, shutil, tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from repro.data import smoke
from repro.data.text import read_pairs
from repro.data.vocabulary import Vocabulary, train_vocabulary
from repro.errors import CheckError, UsageError
from repro.files import digest_of, digest_of_file, read_json, write_json, write_text

SPLITS = ("train", "valid", "test")


class EncodedPairs:
    def __init__(self, d: Path, split: str):
        self._p = {}
        self._o = {}
        for side in ("src", "tgt"):
            self._p[side] = np.load(d / f"{split}.{side}.npy", mmap_mode="r")
            self._o[side] = np.load(d / f"{split}.{side}.offsets.npy")
        self.src_lengths = np.diff(self._o["src"]); self.tgt_lengths = np.diff(self._o["tgt"])

    def src(self, i: int): return self._p["src"][self._o["src"][i]:self._o["src"][i + 1]]
    def tgt(self, i: int): return self._p["tgt"][self._o["tgt"][i]:self._o["tgt"][i + 1]]


class Prepared:
    def __init__(self, d: Path, m: dict):
        self.directory = d; self.manifest = m; self.digest = m["digest"]; self.corpus = m["corpus"]; self.languages = tuple(m["languages"])
        self.vocabulary_sha256 = m["vocabulary_sha256"]; self._v = None; self.counts = m["counts"]; self._e = {}
    @staticmethod
    def load(d: Path): return Prepared(d, read_json(d / "manifest.json"))
    def vocabulary(self):
        self._v = self._v or Vocabulary(self.directory / "vocabulary.model"); return self._v
    def raw(self, split, side): return (self.directory / f"{split}.{side}.txt").read_bytes().decode().split("\n")[:-1]
    def reference_sha256(self, split): return digest_of_file(self.directory / f"{split}.tgt.txt")
    def encoded(self, split):
        if split not in self._e: self._e[split] = EncodedPairs(self.directory, split)
        return self._e[split]


def prepare(corpus: str, *, vocabulary_size: int, data_root: Path, source: Path | None = None, max_pieces: int = 256) -> Prepared:
    if corpus == "smoke": pairs = {s: smoke.generate(s) for s in SPLITS}; languages = smoke.LANGUAGES
    else:
        languages = tuple(corpus.rsplit("_", 2)[1:]); pairs = {s: read_pairs(source / f"{s}.{languages[0]}", source / f"{s}.{languages[1]}") for s in SPLITS}
    digest = digest_of([corpus, vocabulary_size, max_pieces, pairs])
    d = data_root / corpus / f"{vocabulary_size}-{digest[:12]}"
    if (d / "manifest.json").exists(): return Prepared.load(d)
    d.mkdir(parents=True, exist_ok=True)
    train_vocabulary([x for p in pairs["train"] for x in p], vocabulary_size, d / "vocabulary.model")
    v = Vocabulary(d / "vocabulary.model")
    for s in SPLITS:
        for k, side in enumerate(("src", "tgt")):
            rows = v.encode([p[k] for p in pairs[s]])
            np.save(d / f"{s}.{side}.npy", np.array([x for r in rows for x in r], dtype=np.int32))
            np.save(d / f"{s}.{side}.offsets.npy", np.cumsum([0] + [len(r) for r in rows]))
            write_text(d / f"{s}.{side}.txt", "".join(p[k] + "\n" for p in pairs[s]))
    write_json(d / "manifest.json", {"digest": digest, "corpus": corpus, "languages": languages, "vocabulary_sha256": v.sha256, "counts": {}})
    return Prepared.load(d)
