"""Batches of pairs of like length, counted in padded tokens, in an order that follows from seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from repro.data.corpora import Side
from repro.data.encoded import EncodedPairs
from repro.data.pieces import BOS, EOS, PAD, Batch
from repro.errors import CheckError
from repro.seeds import derive_seed

Indices = NDArray[np.int64]


class Sampler:
    """Splits every epoch into batches of at most `batch_tokens` padded positions a side.

    Pairs are sorted by target and source length, ties in an order drawn for the epoch, cut into batches where they are
    full, and the batches shuffled. Each epoch's order depends on `scale`, `seed`, the epoch and the lengths only, so
    two variants of a study see the same batches, and a position (epoch, index) is all that a checkpoint needs.
    """

    def __init__(
        self,
        src_lengths: ArrayLike,
        tgt_lengths: ArrayLike,
        *,
        batch_tokens: int,
        scale: str,
        seed: int,
        lines: ArrayLike | None = None,
        longer_alone: bool = False,
    ) -> None:
        """`src_lengths` and `tgt_lengths` [pairs] count the end mark; `lines` [pairs]: line numbers, for errors.

        A pair longer than `batch_tokens` raises CheckError, or with `longer_alone` (for evaluation, where no pair may
        be missing) makes a batch of its own.
        """
        self._src = np.asarray(src_lengths, dtype=np.int64)
        self._tgt = np.asarray(tgt_lengths, dtype=np.int64)
        self._batch_tokens, self._scale, self._seed = batch_tokens, scale, seed
        self._latest: tuple[int, list[Indices]] | None = None
        if len(self._src) == 0:
            raise CheckError("there are no pairs to make batches of")
        longest = np.maximum(self._src, self._tgt)
        if longest.max() > batch_tokens and not longer_alone:
            pair = int(longest.argmax())
            line = pair + 1 if lines is None else int(np.asarray(lines)[pair])
            raise CheckError(
                f"line {line} of the training text has {int(longest[pair])} pieces, a batch holds {batch_tokens}",
                where="train.batch_tokens",
                fix="lower data.max_pieces or raise train.batch_tokens",
            )

    def epoch(self, epoch: int) -> list[Indices]:
        """The batches of `epoch` (from 0) as arrays of pair indices; every pair comes exactly once."""
        if self._latest is None or self._latest[0] != epoch:
            # Raw 64-bit draws: their stream is the same in every numpy version, unlike permutation's.
            draws = np.random.PCG64(derive_seed(self._scale, self._seed, "data", epoch))
            batches = self._cut(self._sorted(draws.random_raw(len(self._src))))
            shuffled = np.argsort(draws.random_raw(len(batches)), kind="stable")
            self._latest = epoch, [batches[index] for index in shuffled]
        return self._latest[1]

    def batches_from(self, epoch: int, index: int) -> Iterator[tuple[int, int, Indices]]:
        """(epoch, index, pair indices) of every batch from that position on, for ever.

        After the batch at (epoch, index) the position is (epoch, index + 1), in the last batch of an epoch too.
        """
        while True:
            batches = self.epoch(epoch)
            for number in range(index, len(batches)):
                yield epoch, number, batches[number]
            epoch, index = epoch + 1, 0

    def padding_share(self, epoch: int = 0) -> float:
        """The share of padding in all positions of both sides in `epoch`'s batches."""
        padded = sum(len(batch) * int(self._src[batch].max() + self._tgt[batch].max()) for batch in self.epoch(epoch))
        return 1.0 - float(self._src.sum() + self._tgt.sum()) / padded

    def _sorted(self, ties: NDArray[np.uint64]) -> Indices:
        """Pair indices by target length, then by source length, up and down in turn: lengths never jump."""
        up_and_down = np.where(self._tgt % 2 == 0, self._src, -self._src)
        return np.lexsort((ties, up_and_down, self._tgt))

    def _cut(self, order: Indices) -> list[Indices]:
        starts, longest = [0], 0
        for place, length in enumerate(np.maximum(self._src, self._tgt)[order].tolist()):
            longest = max(longest, length)
            if longest * (place + 1 - starts[-1]) > self._batch_tokens and place > starts[-1]:
                starts.append(place)
                longest = length
        return np.split(order, starts[1:])


def collate(encoded: EncodedPairs, indices: Indices) -> Batch:
    """The pairs `indices` [batch] as one padded batch, row i being pair `indices[i]`."""
    src, src_lengths = _padded(encoded, "src", indices)
    tgt_out, tgt_lengths = _padded(encoded, "tgt", indices)
    tgt_in = np.empty_like(tgt_out)
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = np.where(tgt_out[:, :-1] == EOS, PAD, tgt_out[:, :-1])
    return Batch(*(torch.from_numpy(part) for part in (src, tgt_in, tgt_out, src_lengths, tgt_lengths)))


def _padded(encoded: EncodedPairs, side: Side, indices: Indices) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows [batch, longest] of pieces, EOS and padding, and their lengths [batch] with EOS."""
    offsets = encoded.offsets[side]
    starts = offsets[indices]
    lengths = offsets[indices + 1] - starts
    columns = np.arange(int(lengths.max()) + 1)
    real = columns < lengths[:, None]
    rows = np.full(real.shape, PAD, dtype=np.int64)
    rows[real] = encoded.pieces[side][(starts[:, None] + columns)[real]]
    rows[np.arange(len(indices)), lengths] = EOS
    return rows, lengths + 1


def split_batch(batch: Batch, micro_batch_tokens: int, *, least: int = 1) -> list[Batch]:
    """`batch` in parts of at most `micro_batch_tokens` padded positions a side, in order, padding cut to each part.

    A single row longer than that is a part of its own. Where that makes fewer than `least` parts, each is cut further
    into equal numbers of rows; a batch of too few rows gives fewer.
    """
    longest = np.maximum(batch.src_lengths.numpy(), batch.tgt_lengths.numpy()).tolist()
    starts, longest_here = [0], 0
    for row, length in enumerate(longest):
        longest_here = max(longest_here, length)
        if longest_here * (row + 1 - starts[-1]) > micro_batch_tokens and row > starts[-1]:
            starts.append(row)
            longest_here = length
    if len(starts) < least:
        starts = _cut_further([*starts, len(longest)], -(-least // len(starts)))
    if len(starts) == 1:
        return [batch]
    return [_rows(batch, slice(start, end)) for start, end in zip(starts, [*starts[1:], len(longest)], strict=True)]


def _cut_further(bounds: list[int], pieces: int) -> list[int]:
    """The starts of the parts between `bounds` when each is cut into `pieces` of equal size, or into single rows."""
    cuts: list[int] = []
    for start, end in pairwise(bounds):
        count = min(pieces, end - start)
        cuts += [start + (end - start) * piece // count for piece in range(count)]
    return cuts


def _rows(batch: Batch, rows: slice) -> Batch:
    src_lengths, tgt_lengths = batch.src_lengths[rows], batch.tgt_lengths[rows]
    src, tgt = int(src_lengths.max()), int(tgt_lengths.max())
    return Batch(batch.src[rows, :src], batch.tgt_in[rows, :tgt], batch.tgt_out[rows, :tgt], src_lengths, tgt_lengths)
