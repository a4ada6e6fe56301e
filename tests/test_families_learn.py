"""Every family learns: pairs by heart, to copy, to reverse; and one fixed vector is too little for long copies.

All families have the Transformer's number of parameters, the product's own trainer and beam search, and seeds that are
drawn anew each time: FAMILIES_SEED repeats a failure.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

import pytest
import torch
from symbol_tasks import FIRST, Sentence, Task, batch_of, copied, encoded, right, sentences, share, trainer_for, turned

from repro.accounting.parameters import parameters
from repro.accounting.sizing import sized
from repro.config import ModelConfig, TransformerConfig
from repro.data import smoke
from repro.data.encoded import EncodedPairs
from repro.data.prepared import Prepared
from repro.training.evaluation import perplexity

SEED = int(os.environ.get("FAMILIES_SEED") or random.SystemRandom().randrange(2**31))

Family = Literal["transformer", "lstm", "lstm-attention", "gnmt", "convs2s"]
FAMILIES: tuple[Family, ...] = ("transformer", "lstm", "lstm-attention", "gnmt", "convs2s")
ATTENTIVE = tuple(family for family in FAMILIES if family != "lstm")
TASKS: dict[str, Task] = {"copy": copied, "reverse": turned}
RATES: dict[Family, tuple[float, int]] = {
    "transformer": (0.002, 200),
    "lstm": (0.006, 60),
    "lstm-attention": (0.006, 60),
    "gnmt": (0.006, 100),
    "convs2s": (0.006, 100),
}
"""The highest learning rate and the updates until it is reached."""
VOCABULARY, LONGEST = FIRST + 32, 20
LONG = range(15, LONGEST + 1)
BATCH, LOOK, CAP = 64, 100, 4000
"""Sentences an update, updates between two looks at fresh sentences, most updates."""


def model_of(family: Family, vocabulary: int) -> ModelConfig:
    """About 170 000 parameters over 36 pieces, without dropout: there is no end of fresh sentences to learn from."""
    transformer = TransformerConfig(n_layers=2, d_model=64, d_ff=128, n_heads=4, dropout=0.0)
    if family == "transformer":
        return transformer
    alike = sized(family, target_parameters=parameters(transformer, vocabulary), vocabulary_size=vocabulary)
    return dataclasses.replace(alike, dropout=0.0)


@dataclass(frozen=True, slots=True)
class Learned:
    """What a model can do after so many updates, on 300 sentences that it never saw."""

    updates: int
    exact: dict[int, list[bool]]
    """For each length, whether each sentence came out exactly, with the default beam."""

    def share(self, lengths: range) -> float:
        """Share, 0 to 1, of the sentences of these lengths that came out exactly."""
        return share([found for length, all_found in self.exact.items() if length in lengths for found in all_found])

    def told(self) -> str:
        """By length, for whoever reads a failure."""
        return ", ".join(f"{length}: {share(found):.2f}" for length, found in sorted(self.exact.items()))


def learn(family: Family, task: Task, seed: int, most: int = CAP) -> Learned:
    """Train on fresh sentences until 99 % of 200 others come out exactly, or for `most` updates."""
    rng = random.Random(seed)
    peak, warmup = RATES[family]
    trainer = trainer_for(model_of(family, VOCABULARY), VOCABULARY, seed, peak=peak, warmup_steps=warmup)
    look = sentences(rng, 200, VOCABULARY, 1, LONGEST)
    for step in range(1, most + 1):
        pairs = [(source, task(source)) for source in sentences(rng, BATCH, VOCABULARY, 1, LONGEST)]
        trainer.update(batch_of(pairs, VOCABULARY))
        if step % LOOK == 0 and share(right(trainer.model, look, task, beam=1)) >= 0.99:
            break
    test = sentences(rng, 300, VOCABULARY, 1, LONGEST)
    exact: dict[int, list[bool]] = {}
    for source, found in zip(test, right(trainer.model, test, task, beam=4), strict=True):
        exact.setdefault(len(source), []).append(found)
    return Learned(trainer.counters.step, exact)


@cache
def learned(family: Family, task: str) -> Learned:
    """The outcome with this session's seed, trained once."""
    return learn(family, TASKS[task], SEED)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("family", ATTENTIVE)
def test_a_family_with_attention_learns_to_copy_and_to_reverse_up_to_twenty_symbols(family: Family, task: str) -> None:
    found = learned(family, task)
    whole = range(1, LONGEST + 1)
    print(f"{family} {task}, FAMILIES_SEED={SEED}: {found.updates} updates, {found.share(whole):.3f} exact")
    assert found.share(whole) >= 0.95, found.told()


@pytest.mark.slow
def test_one_fixed_vector_fails_on_long_copies_where_attention_succeeds() -> None:
    """The same parameters and sentences, and as many updates as the slowest of the others took."""
    others = {family: learned(family, "copy") for family in ATTENTIVE}
    vector = learn("lstm", copied, SEED, most=max(found.updates for found in others.values()))
    print(f"FAMILIES_SEED={SEED}: the LSTM without attention after {vector.updates} updates: {vector.told()}")
    assert vector.share(range(1, 5)) >= 0.8, "it has learned to copy what fits"
    assert vector.share(LONG) <= 0.5
    for family, found in others.items():
        assert found.share(LONG) >= 0.8, f"{family}: {found.told()}"


# By heart.


def words(lines: list[str], known: dict[str, int]) -> list[Sentence]:
    """Each word a piece; new ones are added to `known`."""
    return [tuple(known.setdefault(word, FIRST + len(known)) for word in line.split()) for line in lines]


class ByHeart:
    """As much of a prepared corpus as perplexity looks at: the pairs that were trained on."""

    def __init__(self, pairs: EncodedPairs) -> None:
        self._pairs = pairs

    def encoded(self, split: str) -> EncodedPairs:
        """The pairs, whatever the split."""
        return self._pairs


def by_heart(family: Family, pairs: list[tuple[Sentence, Sentence]], vocabulary: int, seed: int) -> tuple[int, float]:
    """Updates, all of them on all of `pairs`, and the perplexity of `pairs` then."""
    peak, warmup = RATES[family]
    trainer = trainer_for(model_of(family, vocabulary), vocabulary, seed, peak=peak, warmup_steps=warmup)
    batch = batch_of(pairs, vocabulary)
    while trainer.counters.step < 1500 and trainer.update(batch).nll > math.log(1.1):
        pass
    prepared = cast(Prepared, cast(Any, ByHeart(encoded(pairs, vocabulary))))
    return trainer.counters.step, perplexity(trainer.model, prepared, "train", torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_learns_64_sentence_pairs_by_heart(family: Family) -> None:
    drawn = random.Random(SEED).sample(smoke.generate("train"), 64)
    known: dict[str, int] = {}
    sides = [words([pair[side] for pair in drawn], known) for side in (0, 1)]
    steps, found = by_heart(family, list(zip(*sides, strict=True)), FIRST + len(known), SEED)
    print(f"{family}, FAMILIES_SEED={SEED}: perplexity {found:.3f} after {steps} updates")
    assert found < 1.2
