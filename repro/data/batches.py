"""Batches of pairs of like length, counted in padded tokens, in an order that follows from seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from repro.data.pieces import BOS, EOS, PAD, Batch
from repro.errors import CheckError
from repro.seeds import derive_seed


class Pairs(Protocol):
    """Encoded sentence pairs, without start and end marks."""

    def src(self, index: int) -> np.ndarray:
        """Source pieces of the pair `index`."""

    def tgt(self, index: int) -> np.ndarray:
        """Target pieces of the pair `index`."""


class Sampler:
    """Splits every epoch into batches of at most `batch_tokens` padded positions a side.

    Pairs are sorted by target and source length, ties in an order drawn for the epoch, cut into batches, and the
    batches shuffled. Lengths count the end mark. Raises CheckError for a pair that is longer than a batch.
    """

    def __init__(
        self, src_lengths: np.ndarray, tgt_lengths: np.ndarray, *, batch_tokens: int, scale: str, seed: int
    ) -> None:
        self._src = np.asarray(src_lengths, dtype=np.int64)
        self._tgt = np.asarray(tgt_lengths, dtype=np.int64)
        self._batch_tokens, self._scale, self._seed = batch_tokens, scale, seed
        longest = np.maximum(self._src, self._tgt)
        if len(longest) and longest.max() > batch_tokens:
            raise CheckError(
                f"pair {int(longest.argmax()) + 1} has {int(longest.max())} pieces, a batch holds {batch_tokens}",
                fix="lower data.max_pieces or raise train.batch_tokens",
            )

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """The batches of `epoch` as arrays of pair indices; every pair comes once."""
        random = np.random.Generator(np.random.PCG64(derive_seed(self._scale, self._seed, "data", epoch)))
        order = random.permutation(len(self._src))
        order = order[np.lexsort((self._src[order], self._tgt[order]))]
        batches: list[np.ndarray] = []
        start, src, tgt = 0, 0, 0
        for end, pair in enumerate(order):
            longer_src, longer_tgt = max(src, int(self._src[pair])), max(tgt, int(self._tgt[pair]))
            if max(longer_src, longer_tgt) * (end - start + 1) > self._batch_tokens:
                batches.append(order[start:end])
                start, longer_src, longer_tgt = end, int(self._src[pair]), int(self._tgt[pair])
            src, tgt = longer_src, longer_tgt
        if start < len(order):
            batches.append(order[start:])
        return [batches[index] for index in random.permutation(len(batches))]

    def batches_from(self, epoch: int, index: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """(epoch, index, pair indices) from that position on, for ever."""
        while True:
            batches = self.epoch(epoch)
            for number in range(index, len(batches)):
                yield epoch, number, batches[number]
            epoch, index = epoch + 1, 0


def collate(pairs: Pairs, indices: np.ndarray) -> Batch:
    """The batch of the pairs `indices`, in that order."""
    sources = [pairs.src(int(index)) for index in indices]
    targets = [pairs.tgt(int(index)) for index in indices]
    src_lengths = np.array([len(row) + 1 for row in sources], dtype=np.int64)
    tgt_lengths = np.array([len(row) + 1 for row in targets], dtype=np.int64)
    src = np.full((len(sources), src_lengths.max()), PAD, dtype=np.int64)
    tgt_in = np.full((len(targets), tgt_lengths.max()), PAD, dtype=np.int64)
    tgt_out = np.full_like(tgt_in, PAD)
    tgt_in[:, 0] = BOS
    for row, (source, target) in enumerate(zip(sources, targets, strict=True)):
        src[row, : len(source)] = source
        src[row, len(source)] = EOS
        tgt_in[row, 1 : len(target) + 1] = target
        tgt_out[row, : len(target)] = target
        tgt_out[row, len(target)] = EOS
    return Batch(*(torch.from_numpy(part) for part in (src, tgt_in, tgt_out, src_lengths, tgt_lengths)))


def split_batch(batch: Batch, micro_batch_tokens: int) -> list[Batch]:
    """`batch` in parts of at most `micro_batch_tokens` padded positions a side (one row at least), in order."""
    longest = max(batch.src.shape[1], batch.tgt_out.shape[1])
    rows = max(1, micro_batch_tokens // longest)
    if rows >= batch.src.shape[0]:
        return [batch]
    parts = zip(*(part.split(rows) for part in (batch.src, batch.tgt_in, batch.tgt_out, batch.src_lengths, batch.tgt_lengths)), strict=True)
    return [Batch(*part) for part in parts]
