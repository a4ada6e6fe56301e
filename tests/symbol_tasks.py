"""Small translation tasks over symbols, learned through the product's own batches and trainer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import torch

from repro.config import DecodeConfig, ModelConfig, RunConfig, TrainConfig
from repro.data.batches import collate
from repro.data.encoded import EncodedPairs, pack
from repro.data.pieces import EOS, Batch
from repro.decoding.translate import search_all
from repro.models.seq2seq import MemoryT, Seq2Seq, StateT
from repro.training.trainer import Trainer

torch.set_num_threads(1)

Sentence = tuple[int, ...]
Task = Callable[[Sentence], Sentence]
"""From a source to its translation, both in pieces without marks."""
FIRST = EOS + 1
"""The first symbol; the pieces before it are the special ones."""


def copied(source: Sentence) -> Sentence:
    return source


def turned(source: Sentence) -> Sentence:
    return source[::-1]


def sentences(rng: random.Random, count: int, vocabulary: int, shortest: int, longest: int) -> list[Sentence]:
    """`count` sentences of symbols drawn alike, their lengths drawn alike from `shortest` to `longest`."""
    return [
        tuple(rng.randrange(FIRST, vocabulary) for _ in range(rng.randint(shortest, longest))) for _ in range(count)
    ]


def encoded(pairs: Sequence[tuple[Sentence, Sentence]], vocabulary: int) -> EncodedPairs:
    """`pairs` as a corpus holds them."""
    (src, src_offsets), (tgt, tgt_offsets) = (pack([pair[side] for pair in pairs], vocabulary) for side in (0, 1))
    return EncodedPairs(
        {"src": src, "tgt": tgt}, {"src": src_offsets, "tgt": tgt_offsets}, np.arange(1, len(pairs) + 1)
    )


def batch_of(pairs: Sequence[tuple[Sentence, Sentence]], vocabulary: int) -> Batch:
    """All of `pairs` in one batch, by length, so that its micro-batches hold little padding."""
    by_length = sorted(pairs, key=lambda pair: max(len(side) for side in pair))
    return collate(encoded(by_length, vocabulary), np.arange(len(pairs)))


def trainer_for(model: ModelConfig, vocabulary: int, seed: int, *, peak: float, warmup_steps: int) -> Trainer:
    """A trainer of `model` over `vocabulary` pieces, on the CPU, whose learning rate rises to `peak`."""
    train = TrainConfig(
        batch_tokens=1_000_000,
        micro_batch_tokens=600,
        warmup_steps=warmup_steps,
        learning_rate_factor=peak * math.sqrt(model.d_model * warmup_steps),
        label_smoothing=0.0,
        clip_norm=1.0,
    )
    return Trainer(RunConfig(model=model, seed=seed, train=train), vocabulary, torch.device("cpu"))


def right(model: Seq2Seq[MemoryT, StateT], sources: Sequence[Sentence], task: Task, beam: int) -> list[bool]:
    """Of each of `sources`, whether `model` translates it exactly."""
    found = [False] * len(sources)
    for index, hypothesis in search_all(model, sources, DecodeConfig(beam=beam, extra_length=5)):
        found[index] = hypothesis.ids == task(sources[index])
    return found


def share(found: Sequence[bool]) -> float:
    """The share, 0 to 1, of what is true."""
    return sum(found) / len(found)
