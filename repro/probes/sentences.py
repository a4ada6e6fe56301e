"""Sentences for probes: taken from a prepared corpus, or drawn anew from the made-up language where it has too few."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from repro.data import smoke
from repro.data.batches import collate
from repro.data.encoded import EncodedPairs, pack
from repro.data.pieces import Batch
from repro.data.prepared import Prepared
from repro.data.text import is_blank

Pair = tuple[str, str]
"""A source and its translation."""

_DRAWS = 60_000
"""Sentences of the made-up language that are looked through for those that are wanted."""


def pairs_of(prepared: Prepared, split: str, most: int) -> list[Pair]:
    """The first `most` pairs of valid or test without blank lines."""
    pairs = zip(prepared.raw(split, "src"), prepared.raw(split, "tgt"), strict=True)
    return list(islice((pair for pair in pairs if not (is_blank(pair[0]) or is_blank(pair[1]))), most))


def made_up(prepared: Prepared) -> bool:
    """Whether the corpus is of the made-up language, of which there are always more sentences."""
    return prepared.corpus == "smoke"


def drawn_by(group_of: Callable[[Pair], str | None], groups: Sequence[str], each: int) -> dict[str, list[Pair]]:
    """New pairs of the made-up language, in none of its splits, by the group that `group_of` tells: at most `each`."""
    found: dict[str, list[Pair]] = {group: [] for group in groups}
    for pair in islice(smoke.more(), _DRAWS):
        group = group_of(pair)
        if group is not None and len(found[group]) < each:
            found[group].append(pair)
        if all(len(pairs) == each for pairs in found.values()):
            break
    return {group: pairs for group, pairs in found.items() if pairs}


def batches(prepared: Prepared, pairs: Sequence[Pair], device: torch.device, rows: int = 32) -> Iterator[Batch]:
    """`pairs` in batches of `rows` in their order, on `device`."""
    vocabulary = prepared.vocabulary()
    for start in range(0, len(pairs), rows):
        part = pairs[start : start + rows]
        (src, src_offsets), (tgt, tgt_offsets) = (
            pack(vocabulary.encode([pair[side] for pair in part]), vocabulary.size) for side in (0, 1)
        )
        encoded = EncodedPairs(
            {"src": src, "tgt": tgt}, {"src": src_offsets, "tgt": tgt_offsets}, np.arange(1, len(part) + 1)
        )
        yield collate(encoded, np.arange(len(part))).to(device)
