"""Encoded sentence pairs: each side one flat, memory-mapped array of piece ids, with the place where each starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from repro.data.corpora import SIDES, Side
from repro.files import write_whole

Ids = NDArray[np.uint16 | np.int32]
"""Piece ids as they are stored: two bytes each where the vocabulary allows it."""
Integers = NDArray[np.int64]


class EncodedPairs:
    """The pairs of one split as piece ids, without start and end marks. Arrays stay on disk until they are read."""

    def __init__(self, pieces: dict[Side, Ids], offsets: dict[Side, Integers], lines: Integers) -> None:
        """`pieces` [total pieces] and `offsets` [pairs + 1] of each side; `lines` [pairs], each pair's line number."""
        self.pieces, self.offsets = pieces, offsets
        self.lines = lines
        """[pairs] The line, from 1, on which each pair stands in the split's files."""

    @staticmethod
    def open(directory: Path, split: str) -> EncodedPairs:
        """The pairs that `store` wrote for `split` in `directory`."""
        pieces = {side: _mapped(directory / f"{split}.{side}.pieces.npy") for side in SIDES}
        offsets = {side: _mapped(directory / f"{split}.{side}.offsets.npy") for side in SIDES}
        return EncodedPairs(pieces, offsets, _mapped(directory / f"{split}.lines.npy"))

    def __len__(self) -> int:
        return len(self.lines)

    def src(self, index: int) -> Ids:
        """The pieces of source `index` [src_len]."""
        return self._row("src", index)

    def tgt(self, index: int) -> Ids:
        """The pieces of target `index` [tgt_len]."""
        return self._row("tgt", index)

    def _row(self, side: Side, index: int) -> Ids:
        start, end = self.offsets[side][index], self.offsets[side][index + 1]
        return self.pieces[side][start:end]

    @cached_property
    def src_lengths(self) -> Integers:
        """[pairs] Pieces of each source, without the end mark."""
        return np.diff(self.offsets["src"])

    @cached_property
    def tgt_lengths(self) -> Integers:
        """[pairs] Pieces of each target, without the end mark."""
        return np.diff(self.offsets["tgt"])


def pack(rows: Iterable[Sequence[int]], vocabulary_size: int) -> tuple[Ids, Integers]:
    """Encoded lines as one flat array [total pieces] and its offsets [lines + 1]."""
    kind: type[np.uint16 | np.int32] = np.uint16 if vocabulary_size <= 2**16 else np.int32
    parts = [np.asarray(row, dtype=kind) for row in rows]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    flat: Ids = np.concatenate(parts) if parts else np.zeros(0, dtype=kind)
    return flat, offsets


def keep(pieces: Ids, offsets: Integers, chosen: NDArray[np.bool_]) -> tuple[Ids, Integers]:
    """The rows `chosen` [lines] of packed lines, packed."""
    lengths = np.diff(offsets)
    kept = np.zeros(int(chosen.sum()) + 1, dtype=np.int64)
    np.cumsum(lengths[chosen], out=kept[1:])
    return pieces[np.repeat(chosen, lengths)], kept


def store(directory: Path, split: str, encoded: EncodedPairs) -> None:
    """Write `encoded` to `directory`. Raises CheckError when the disk is full."""
    for side in SIDES:
        _write_array(directory / f"{split}.{side}.pieces.npy", encoded.pieces[side])
        _write_array(directory / f"{split}.{side}.offsets.npy", encoded.offsets[side])
    _write_array(directory / f"{split}.lines.npy", encoded.lines)


def _mapped(path: Path) -> Any:
    # A plain array over the mapped pages: numpy's own class for these slows every slice down.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _write_array(path: Path, array: NDArray[np.generic]) -> None:
    def write(file: IO[bytes]) -> None:
        # Not np.save: on a full disk it raises an error that does not say so.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(np.ascontiguousarray(array).data)

    write_whole(path, write)
