"""Batches: bounded, full, in an order that seed and epoch decide; padded rows with their marks."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from repro.data.batches import Sampler, collate, split_batch
from repro.data.encoded import EncodedPairs, pack
from repro.data.pieces import BOS, EOS, PAD
from repro.errors import CheckError

Lengths = NDArray[np.int64]


def caption_lengths(pairs: int = 29_000) -> tuple[Lengths, Lengths]:
    """Source and target lengths as in image captions: log-normal around 15, sides correlated, some long."""
    draw = np.random.default_rng(7)
    src = np.exp(draw.normal(2.65, 0.32, pairs))
    tgt = src * np.exp(draw.normal(0.04, 0.18, pairs))
    return np.clip(src, 3, 60).astype(np.int64) + 1, np.clip(tgt, 3, 70).astype(np.int64) + 1


def sampler(batch_tokens: int = 1024, scale: str = "s", seed: int = 1, pairs: int = 29_000) -> Sampler:
    return Sampler(*caption_lengths(pairs), batch_tokens=batch_tokens, scale=scale, seed=seed)


def encoded(rows: list[tuple[list[int], list[int]]]) -> EncodedPairs:
    src, src_offsets = pack([row[0] for row in rows], 100)
    tgt, tgt_offsets = pack([row[1] for row in rows], 100)
    return EncodedPairs({"src": src, "tgt": tgt}, {"src": src_offsets, "tgt": tgt_offsets}, np.arange(1, len(rows) + 1))


def as_lists(batches: list[NDArray[np.int64]]) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


@pytest.mark.parametrize("batch_tokens", [71, 1024, 25_000])
def test_every_pair_comes_once_and_no_batch_is_over_its_size(batch_tokens: int) -> None:
    src, tgt = caption_lengths()
    batches = Sampler(src, tgt, batch_tokens=batch_tokens, scale="s", seed=1).epoch(0)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(src)))
    assert max(len(batch) * max(src[batch].max(), tgt[batch].max()) for batch in batches) <= batch_tokens


def test_little_of_a_batch_is_padding() -> None:
    src, tgt = caption_lengths()
    sampled = sampler()
    batches = sampled.epoch(0)
    positions = sum(len(batch) * int(src[batch].max() + tgt[batch].max()) for batch in batches)
    padding = 1 - (src.sum() + tgt.sum()) / positions
    assert sampled.padding_share(0) == pytest.approx(padding)
    assert padding < 0.05
    target_positions = sum(len(batch) * int(tgt[batch].max()) for batch in batches)
    assert tgt.sum() / target_positions > 0.99


def test_batches_are_nearly_as_few_as_they_can_be() -> None:
    src, tgt = caption_lengths()
    assert len(sampler().epoch(0)) <= 1.1 * np.maximum(src, tgt).sum() / 1024


def test_order_depends_on_scale_seed_and_epoch_and_nothing_else() -> None:
    first = as_lists(sampler().epoch(3))
    fresh = sampler()
    list(islice(fresh.batches_from(0, 0), 2000))
    assert as_lists(fresh.epoch(3)) == first
    for other in (sampler().epoch(4), sampler(seed=2).epoch(3), sampler(scale="t").epoch(3)):
        assert as_lists(other) != first


def test_an_epoch_groups_pairs_anew_and_does_not_go_from_short_to_long() -> None:
    _, tgt = caption_lengths()
    first, second = (sampler().epoch(epoch) for epoch in (0, 1))
    groups = [{frozenset(batch.tolist()) for batch in batches} for batches in (first, second)]
    assert len(groups[0] & groups[1]) < 0.1 * len(groups[0])
    means = np.array([tgt[batch].mean() for batch in first])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.15


def test_training_goes_on_from_any_position_with_the_same_rest() -> None:
    sampled = sampler(pairs=2000)
    size = len(sampled.epoch(0))
    whole = [(epoch, index, batch.tolist()) for epoch, index, batch in islice(sampled.batches_from(0, 0), 2 * size + 5)]
    for place in (0, 1, size // 2, size - 1, size, size + 3):
        position = (0, 0) if place == 0 else (whole[place - 1][0], whole[place - 1][1] + 1)
        rest = islice(sampler(pairs=2000).batches_from(*position), 2 * size + 5 - place)
        assert [(epoch, index, batch.tolist()) for epoch, index, batch in rest] == whole[place:]


def test_a_pair_longer_than_a_batch_is_refused_with_its_line_and_the_knob() -> None:
    with pytest.raises(CheckError, match=r"line 40 .*31 pieces, a batch holds 30.*data.max_pieces"):
        Sampler([5, 31, 6], [4, 9, 7], batch_tokens=30, scale="s", seed=1, lines=[10, 40, 41])


def test_in_evaluation_a_longer_pair_is_a_batch_of_its_own() -> None:
    batches = Sampler([5, 31, 6], [4, 9, 7], batch_tokens=30, scale="s", seed=1, longer_alone=True).epoch(0)
    assert [1] in as_lists(batches)
    assert sorted(index for batch in as_lists(batches) for index in batch) == [0, 1, 2]


def test_no_pairs_make_no_batches() -> None:
    with pytest.raises(CheckError, match="no pairs"):
        Sampler([], [], batch_tokens=30, scale="s", seed=1)


def test_rows_carry_marks_and_padding_and_keep_their_order() -> None:
    pairs = encoded([([7, 8, 9], [11]), ([], [12, 13]), ([10], [])])
    batch = collate(pairs, np.array([2, 0, 1]))
    assert batch.src.tolist() == [[10, EOS, PAD, PAD], [7, 8, 9, EOS], [EOS, PAD, PAD, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, PAD, PAD], [BOS, 11, PAD], [BOS, 12, 13]]
    assert batch.tgt_out.tolist() == [[EOS, PAD, PAD], [11, EOS, PAD], [12, 13, EOS]]
    assert batch.src_lengths.tolist() == [2, 4, 1]
    assert batch.tgt_lengths.tolist() == [1, 2, 3]
    assert batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == torch.int64
    assert batch.src_mask.sum(1).tolist() == [2, 4, 1]


def test_collating_equals_padding_row_by_row() -> None:
    draw = np.random.default_rng(1)
    rows = [
        (
            [*map(int, draw.integers(4, 100, draw.integers(0, 30)))],
            [*map(int, draw.integers(4, 100, draw.integers(0, 30)))],
        )
        for _ in range(200)
    ]
    pairs = encoded(rows)
    indices = draw.permutation(200)[:60]
    batch = collate(pairs, indices)
    for row, index in enumerate(indices):
        src, tgt = rows[index]
        assert batch.src[row].tolist() == [*src, EOS] + [PAD] * (batch.src.shape[1] - len(src) - 1)
        assert batch.tgt_in[row].tolist() == [BOS, *tgt] + [PAD] * (batch.tgt_in.shape[1] - len(tgt) - 1)
        assert batch.tgt_out[row].tolist() == [*tgt, EOS] + [PAD] * (batch.tgt_out.shape[1] - len(tgt) - 1)


def test_pieces_above_two_bytes_are_stored_whole() -> None:
    flat, offsets = pack([[70_000, 5], [], [65_536]], 80_000)
    assert flat.tolist() == [70_000, 5, 65_536]
    assert offsets.tolist() == [0, 2, 2, 3]
    assert pack([[65_535]], 65_536)[0].tolist() == [65_535]


@pytest.mark.parametrize("size", [40, 64, 100, 10_000])
def test_parts_of_a_batch_hold_its_rows_in_order_and_no_more_than_their_size(size: int) -> None:
    draw = np.random.default_rng(2)
    rows = [([5] * int(draw.integers(1, 20)), [6] * int(draw.integers(1, 20))) for _ in range(33)]
    batch = collate(encoded(rows), np.arange(33))
    parts = split_batch(batch, size)
    assert [length for part in parts for length in part.src_lengths.tolist()] == batch.src_lengths.tolist()
    assert sum(int((part.tgt_out != PAD).sum()) for part in parts) == int((batch.tgt_out != PAD).sum())
    first = 0
    for part in parts:
        assert part.src.numel() <= size
        assert part.tgt_in.numel() <= size
        assert part.src.shape[1] == part.src_lengths.max()
        assert part.tgt_out.shape[1] == part.tgt_in.shape[1] == part.tgt_lengths.max()
        rows_here = slice(first, first + len(part.src))
        assert torch.equal(part.tgt_in, batch.tgt_in[rows_here, : part.tgt_in.shape[1]])
        assert int(batch.src[rows_here, part.src.shape[1] :].sum()) == 0
        first += len(part.src)


def test_a_row_longer_than_a_part_is_a_part_of_its_own() -> None:
    batch = collate(encoded([([5], [6]), ([5] * 50, [6]), ([5], [6])]), np.arange(3))
    assert [len(part.src) for part in split_batch(batch, 20)] == [1, 1, 1]
