"""Beam search of every family, half trained so that its hypotheses are worth comparing, against plain searches."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch
from baseline_toys import FAMILIES
from decoding_toys import padded
from symbol_tasks import FIRST, Sentence, batch_of, sentences, trainer_for
from test_beam import plain_beam, rerun

from repro.config import DecodeConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.decoding.beam import Hypothesis, beam_search
from repro.decoding.translate import search_all
from repro.models.seq2seq import Seq2Seq

torch.set_num_threads(1)

VOCABULARY, LONGEST, EXTRA = 12, 7, 4
EMPTY, ENDLESS = 4, 5
"""Sources that begin with these symbols have an empty translation, and one of any symbols that outgrows every cap."""
SCORES = 1e-4
UPDATES = {"transformer": 150, "lstm": 150, "lstm-attention": 300, "gnmt": 120, "convs2s": 60}
PEAKS = {"transformer": 0.01, "lstm": 0.015, "lstm-attention": 0.015, "gnmt": 0.015, "convs2s": 0.015}

Model = Seq2Seq[Any, Any]
every_family = pytest.mark.parametrize("family", FAMILIES)


def translated(source: Sentence, rng: random.Random) -> Sentence:
    if source[0] == EMPTY:
        return ()
    return tuple(rng.randrange(FIRST, VOCABULARY) for _ in range(20)) if source[0] == ENDLESS else source


@cache
def half_trained(family: str) -> Model:
    """A model after so few updates that it knows the task by halves and errs in many ways."""
    rng, trainer = random.Random(1), trainer_for(FAMILIES[family], VOCABULARY, 1, peak=PEAKS[family], warmup_steps=30)
    for _ in range(UPDATES[family]):
        pairs = [(source, translated(source, rng)) for source in sentences(rng, 48, VOCABULARY, 1, LONGEST)]
        trainer.update(batch_of(pairs, VOCABULARY))
    return trainer.model.eval()


def batch() -> list[Sentence]:
    """Eight sentences: the third ends at once, the sixth is cut, the others are like those trained on."""
    rest = [source for source in sentences(random.Random(7), 40, VOCABULARY, 2, LONGEST) if source[0] > ENDLESS][:6]
    return [*rest[:2], (EMPTY, 9, 10, 11, 8, 7), *rest[2:4], (ENDLESS, 7, 8, 9), *rest[4:]]


def searched(model: Model, sources: list[Sentence], beam: int, size: int | None = None) -> list[Hypothesis]:
    """The hypotheses of `sources`, taken `size` (None: all) at a time, in their order."""
    config, size = DecodeConfig(beam=beam, extra_length=EXTRA), size or len(sources)
    parts = [beam_search(model, padded(sources[at : at + size]), config) for at in range(0, len(sources), size)]
    return [hypothesis for part in parts for hypothesis in part]


def greedy(model: Model, source: Sentence) -> Sentence:
    """The likeliest piece again and again, source and whole prefix run anew each time."""
    src, pieces = padded([source]), [BOS]
    while len(pieces) <= len(source) + EXTRA:
        with torch.inference_mode():
            logits = model.project(model(src, src != PAD, torch.tensor([pieces]))[0, -1])
        best = EOS + int(logits[EOS:].argmax())
        if best == EOS:
            break
        pieces.append(best)
    return tuple(pieces[1:])


@every_family
def test_the_models_err_in_ways_that_a_search_can_get_wrong(family: str) -> None:
    """Or the other tests would prove little: hypotheses differ, one ends early, one is cut, and a beam changes some."""
    model = half_trained(family)
    found = searched(model, batch(), 4)
    assert len({hypothesis.ids for hypothesis in found}) >= 6
    early, cut = found[2], found[5]
    assert not early.capped
    assert early.length < 4
    assert cut.capped
    assert cut.length == 4 + EXTRA
    more = sentences(random.Random(8), 60, VOCABULARY, 2, LONGEST)
    wide, narrow = searched(model, more, 4), searched(model, more, 1)
    assert sum(a.ids != b.ids for a, b in zip(wide, narrow, strict=True)) >= 5
    assert sum(a.ids != source for a, source in zip(wide, more, strict=True)) >= 5


@every_family
@pytest.mark.parametrize("beam", [2, 4])
def test_a_beam_finds_what_running_every_prefix_anew_finds(family: str, beam: int) -> None:
    model, sources = half_trained(family), batch()
    for source, found in zip(sources, searched(model, sources, beam), strict=True):
        ids, score, capped = plain_beam(rerun(model, list(source)), beam, len(source) + EXTRA, "gnmt", 0.6)
        assert (found.ids, found.capped) == (ids, capped)
        assert found.score == pytest.approx(score, abs=SCORES)


@every_family
def test_a_beam_of_one_is_the_greedy_choice(family: str) -> None:
    sources = batch()
    expected = [greedy(half_trained(family), source) for source in sources]
    assert [found.ids for found in searched(half_trained(family), sources, 1)] == expected


@every_family
@pytest.mark.parametrize("beam", [1, 4])
def test_batches_of_one_three_and_eight_give_the_same_in_the_same_order(family: str, beam: int) -> None:
    model, sources = half_trained(family), batch()
    whole = searched(model, sources, beam, 8)
    for size in (1, 3):
        found = searched(model, sources, beam, size)
        assert [(a.ids, a.capped) for a in found] == [(b.ids, b.capped) for b in whole]
        assert [a.score for a in found] == pytest.approx([b.score for b in whole], abs=SCORES)


@every_family
def test_output_comes_in_the_order_of_the_input_whatever_the_batches(family: str) -> None:
    model, sources = half_trained(family), batch()
    whole = searched(model, sources, 4)
    order = random.Random(3).sample(range(8), 8)
    for batch_tokens in (1, 150, 8000):
        config = DecodeConfig(beam=4, extra_length=EXTRA, batch_tokens=batch_tokens)
        found = dict(search_all(model, [sources[row] for row in order], config))
        assert sorted(found) == list(range(8))
        assert [found[place].ids for place in range(8)] == [whole[row].ids for row in order]


@every_family
def test_a_score_is_the_log_probability_by_teacher_forcing_under_the_length_penalty(family: str) -> None:
    model, sources = half_trained(family), batch()
    for source, found in zip(sources, searched(model, sources, 4), strict=True):
        pieces = [*found.ids] if found.capped else [*found.ids, EOS]
        src = padded([source])
        with torch.inference_mode():
            hidden = model(src, src != PAD, torch.tensor([[BOS, *pieces[:-1]]]))
            steps = model.project(hidden)[0].double().log_softmax(-1)
        total = float(steps[torch.arange(len(pieces)), torch.tensor(pieces)].sum())
        assert found.log_probability == pytest.approx(total, abs=SCORES)
        assert found.score == pytest.approx(total / ((5 + len(pieces)) / 6) ** 0.6, abs=SCORES)
