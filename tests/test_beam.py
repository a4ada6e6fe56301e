"""Beam search against searches written out plainly, and against scripts whose answer is known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
from decoding_toys import Scripted, ToyRecurrent, padded

from repro.config import DecodeConfig, TransformerConfig
from repro.data.pieces import BOS, EOS, PAD, UNK
from repro.decoding.beam import beam_search, best_continuations
from repro.decoding.penalty import length_penalty
from repro.errors import CheckError
from repro.models.build import build_model

Next = Callable[[tuple[int, ...]], list[float]]
"""Log probabilities of every next piece after some pieces."""


def penalty(kind: str, length: int, alpha: float) -> float:
    return ((5 + length) / 6) ** alpha if kind == "gnmt" else length**alpha


def rerun(model, source: list[int]) -> Next:
    """The log probabilities after a prefix, by running the whole prefix anew."""

    def after(prefix: tuple[int, ...]) -> list[float]:
        with torch.inference_mode():
            src = padded([source])
            hidden = model.decode(torch.tensor([[BOS, *prefix]]), model.encode(src, src != PAD))
            return model.project(hidden[:, -1])[0].double().log_softmax(0).tolist()

    return after


def plain_beam(after: Next, beam: int, cap: int, kind: str, alpha: float) -> tuple[tuple[int, ...], float, bool]:
    """The search as `repro.decoding.beam` describes it, one sentence, always to the cap: pieces, score, capped."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, cap + 1):
        found = [
            (total + step, prefix, piece)
            for total, prefix in live
            for piece, step in enumerate(after(prefix))
            if piece >= EOS
        ]
        found.sort(key=lambda item: -item[0])
        ends = [(total / penalty(kind, length, alpha), prefix) for total, prefix, piece in found[:beam] if piece == EOS]
        finished += ends
        if beam == 1 and ends:
            break
        live = [(total, (*prefix, piece)) for total, prefix, piece in found if piece != EOS][:beam]
    if finished:
        score, ids = max(finished, key=lambda item: item[0])
        return ids, score, False
    return live[0][1], live[0][0] / penalty(kind, cap, alpha), True


def random_sources(seed: int, count: int, vocabulary: int, longest: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(4, vocabulary) for _ in range(rng.randint(1, longest))] for _ in range(count)]


SCRIPTED_END = {EOS: 1.0}


def dense(table: dict[int, float], size: int = 10) -> list[float]:
    return [table.get(piece, 0.0) for piece in range(size)]


# -- length penalty ---------------------------------------------------------------------------------------------------


def test_length_penalties_give_the_worked_example():
    scores = {
        (kind, name): total / length_penalty(kind, length, 0.6)
        for kind in ("gnmt", "power")
        for name, length, total in (("A", 5, -3.0), ("B", 10, -4.2))
    }
    assert scores["gnmt", "A"] == pytest.approx(-2.208, abs=5e-4)
    assert scores["gnmt", "B"] == pytest.approx(-2.424, abs=5e-4)
    assert scores["power", "A"] == pytest.approx(-1.142, abs=5e-4)
    assert scores["power", "B"] == pytest.approx(-1.055, abs=5e-4)
    assert length_penalty("gnmt", 1, 0.6) == length_penalty("power", 9, 0.0) == 1.0


@pytest.mark.parametrize(("kind", "winner"), [("gnmt", 5), ("power", 10)])
def test_a_hypothesis_competes_by_its_own_length(kind, winner):
    """Two ways, of 5 pieces with log probability -3.0 and of 10 with -4.2, each without a choice after the first."""
    short, long = math.exp(-3.0), math.exp(-4.2)

    def script(first, prefix):
        if not prefix:
            return dense({4: short, 5: long, PAD: 1 - short - long})
        return dense(SCRIPTED_END if len(prefix) == (4 if prefix[0] == 4 else 9) else {prefix[0]: 1.0})

    for beam in (2, 4):
        config = DecodeConfig(beam=beam, length_penalty=kind)
        (found,) = beam_search(Scripted(script), padded([[4]]), config)
        assert found.length == winner
        assert found.score == pytest.approx({"gnmt": -2.208, "power": -1.055}[kind], abs=5e-4)


# -- against plain searches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [-0.7, 0.0, 0.6, 1.5])
@pytest.mark.parametrize("kind", ["gnmt", "power"])
def test_a_beam_as_wide_as_the_space_finds_the_best_of_all_hypotheses(kind, alpha):
    sources = random_sources(1, 6, 7, 3)
    caps = [3, 4, 2, 4, 3, 4]
    model = ToyRecurrent(7, seed=5, sharpness=1.0)
    config = DecodeConfig(beam=27, alpha=alpha, length_penalty=kind)
    found = beam_search(model, padded(sources), config, caps=caps)
    for source, cap, hypothesis in zip(sources, caps, found, strict=True):
        after = rerun(model, source)
        every = []
        for pieces in range(cap):
            for ids in itertools.product(range(EOS + 1, 7), repeat=pieces):
                total = sum(after(ids[:i])[piece] for i, piece in enumerate((*ids, EOS)))
                every.append((total / penalty(kind, pieces + 1, alpha), ids))
        score, ids = max(every)
        assert hypothesis.ids == ids
        assert hypothesis.score == pytest.approx(score, abs=1e-4)
        assert not hypothesis.capped


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 1.0, 3.0])
@pytest.mark.parametrize("beam", [1, 2, 4, 7])
def test_stopping_early_and_batching_change_nothing_against_a_plain_search_to_the_cap(beam, alpha):
    sources = random_sources(beam, 5, 80, 6)
    model = ToyRecurrent(80, seed=beam)
    for kind in ("gnmt", "power"):
        config = DecodeConfig(beam=beam, alpha=alpha, length_penalty=kind, extra_length=8)
        for source, found in zip(sources, beam_search(model, padded(sources), config), strict=True):
            ids, score, capped = plain_beam(rerun(model, source), beam, len(source) + 8, kind, alpha)
            assert (found.ids, found.capped) == (ids, capped)
            assert found.score == pytest.approx(score, abs=1e-4)
            assert found.score == found.log_probability / penalty(kind, found.length, alpha)


def test_a_beam_of_one_is_greedy():
    sources = random_sources(3, 12, 150, 9)
    model = ToyRecurrent(150, seed=8)
    greedy = []
    for source in sources:
        after, ids = rerun(model, source), []
        for _ in range(len(source) + 20):
            step = after(tuple(ids))
            ids.append(max(range(EOS, 150), key=step.__getitem__))
            if ids[-1] == EOS:
                break
        greedy.append((tuple(piece for piece in ids if piece != EOS), ids[-1] != EOS))
    found = beam_search(model, padded(sources), DecodeConfig(beam=1, extra_length=20))
    assert [(hypothesis.ids, hypothesis.capped) for hypothesis in found] == greedy
    assert {capped for _, capped in greedy} == {True, False}


# -- independence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 4])
def test_batches_of_one_three_and_eight_and_any_order_agree(beam):
    """Fidelity vector 11, with one sentence that ends early and one that is cut."""
    sources = [[9, 8, 7], [5], *random_sources(11, 5, 60, 12), [4] * 30]
    model = ToyRecurrent(60, seed=2)
    config = DecodeConfig(beam=beam, extra_length=25)
    whole = beam_search(model, padded(sources), config)
    order = list(range(len(sources)))
    random.Random(0).shuffle(order)
    for size, rows in itertools.product((1, 3, 8), (list(range(len(sources))), order)):
        for start in range(0, len(rows), size):
            chosen = rows[start : start + size]
            found = beam_search(model, padded([sources[row] for row in chosen]), config)
            for row, hypothesis in zip(chosen, found, strict=True):
                assert hypothesis.ids == whole[row].ids
                assert hypothesis.capped == whole[row].capped
                assert hypothesis.score == pytest.approx(whole[row].score, abs=1e-4)
    lengths = sorted(hypothesis.length for hypothesis in whole)
    assert lengths[0] < 10 < lengths[-1]
    assert any(hypothesis.capped for hypothesis in whole)


def test_finished_sentences_leave_the_batch():
    """Source n ends by itself after n pieces: no row of it is computed any more after that."""

    def script(first, prefix):
        return dense(SCRIPTED_END if len(prefix) == first - 4 else {4: 0.9, 5: 0.1})

    model = Scripted(script)
    found = beam_search(model, padded([[9], [4], [6]]), DecodeConfig(beam=1))
    assert [hypothesis.ids for hypothesis in found] == [(4,) * 5, (), (4,) * 2]
    assert model.states[0].rows_seen == [3, 2, 2, 1, 1, 1]


# -- ends and caps ----------------------------------------------------------------------------------------------------


def test_a_finished_hypothesis_is_frozen_and_a_better_later_one_still_wins():
    """Ending at once has log probability -0.7; going on is worth more a piece under a strong penalty."""

    def script(first, prefix):
        if not prefix:
            return dense({EOS: 0.5, 4: 0.4, 5: 0.1})
        return dense(SCRIPTED_END if len(prefix) == 6 else {4: 1.0})

    alone = beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=4, alpha=0.0))[0]
    assert (alone.ids, alone.log_probability) == ((), pytest.approx(math.log(0.5)))
    later = beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=4, alpha=1.0))[0]
    assert later.ids == (4,) * 6
    assert later.score == pytest.approx(math.log(0.4) / 2.0)


def test_each_sentence_is_closed_at_its_own_cap_and_marked():
    def script(first, prefix):
        return dense(SCRIPTED_END if first == 9 and len(prefix) == 2 else {4: 0.75, 5: 0.25})

    found = beam_search(Scripted(script), padded([[4], [9, 4], [4, 4, 4]]), DecodeConfig(beam=3, extra_length=5))
    assert [hypothesis.ids for hypothesis in found] == [(4,) * 6, (4, 4), (4,) * 8]
    assert [hypothesis.capped for hypothesis in found] == [True, False, True]
    assert [hypothesis.length for hypothesis in found] == [6, 3, 8]
    assert found[0].log_probability == pytest.approx(6 * math.log(0.75))
    assert found[0].score == pytest.approx(6 * math.log(0.75) / (11 / 6) ** 0.6)


def test_what_ended_within_the_cap_goes_before_what_was_cut():
    """An endless repetition is likelier by far, but it is no translation."""

    def script(first, prefix):
        if not prefix:
            return dense({4: 0.9, 5: 0.1})
        return dense({4: 1.0} if prefix[0] == 4 else SCRIPTED_END)

    found = beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=2))[0]
    assert (found.ids, found.capped) == ((5,), False)


def test_ending_on_the_last_piece_of_the_cap_is_no_cut():
    def script(first, prefix):
        return dense(SCRIPTED_END if len(prefix) == 3 else {4: 1.0})

    for beam in (1, 4):
        found = beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=beam), caps=[4])[0]
        assert (found.ids, found.capped, found.length) == ((4, 4, 4), False, 4)


def test_no_hypothesis_outgrows_the_positions_of_the_model():
    model = Scripted(lambda first, prefix: dense({4: 1.0}))
    model.max_positions = 7
    found = beam_search(model, padded([[4, 4]]), DecodeConfig(beam=2))[0]
    assert (len(found.ids), found.capped) == (7, True)


# -- what is generated ------------------------------------------------------------------------------------------------


def test_padding_unknown_and_start_mark_are_never_generated():
    def script(first, prefix):
        return dense(
            {PAD: 0.3, UNK: 0.3, BOS: 0.3, 7: 0.0999, EOS: 0.0001} if len(prefix) < 3 else {BOS: 0.9, EOS: 0.1}
        )

    for beam in (1, 2, 4):
        found = beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=beam, alpha=2.0))[0]
        assert found.ids == (7, 7, 7)
        assert found.log_probability == pytest.approx(3 * math.log(0.0999) + math.log(0.1))


def test_equal_candidates_are_taken_from_the_lowest_piece_on():
    def script(first, prefix):
        return dense({6: 0.2, 5: 0.2, 4: 0.2, 9: 0.2, 8: 0.2} if len(prefix) < 2 else SCRIPTED_END)

    for beam in (1, 2, 4):
        assert beam_search(Scripted(script), padded([[4]]), DecodeConfig(beam=beam))[0].ids == (4, 4)


@pytest.mark.parametrize("vocabulary", [4, 5, 66, 67, 68, 82, 83, 84, 131, 163, 1000])
def test_the_best_continuations_are_those_of_a_full_sort(vocabulary):
    """Whole-numbered logits, so that most candidates have equals; every kind of zero; slots that hold nothing."""
    generator = torch.Generator().manual_seed(vocabulary)
    n, beam = 5, 3
    logits = torch.randint(-2, 3, (n * beam, vocabulary), generator=generator).float()
    logits[0] *= -0.0
    live = torch.tensor([[-1.0, -1.0, -2.0]] * n, dtype=torch.float64)
    live[1, 2] = live[2, 1] = live[2, 2] = -torch.inf
    before = logits.clone()
    slots, pieces, totals = best_continuations(logits, live, 2 * beam)
    assert torch.equal(logits, before)
    exact = logits.double().log_softmax(1).view(n, beam, vocabulary)
    for row in range(n):
        offset = live[row] - logits[row * beam : (row + 1) * beam].double().logsumexp(0 + 1)
        keys = sorted(
            (-round(float(logits[row * beam + slot, piece] + offset[slot]), 4), slot, piece)
            for slot in range(beam)
            for piece in range(EOS, vocabulary)
            if live[row, slot] > -torch.inf
        )[: 2 * beam]
        found = list(zip(slots[row].tolist(), pieces[row].tolist(), strict=True))
        assert [tuple(key[1:]) for key in keys] == found[: len(keys)]
        expected = [float(live[row, slot] + exact[row, slot, piece]) for _, slot, piece in keys]
        assert totals[row, : len(keys)].tolist() == pytest.approx(expected, abs=1e-5)
        assert all(total == -math.inf for total in totals[row, len(keys) :].tolist())


def test_small_differences_still_decide_far_down_a_long_hypothesis():
    """After log probability -1e6 single precision would see steps of 0.06 only."""
    logits = torch.zeros(1, 50)
    logits[0, 40] = 1e-6
    _, pieces, _ = best_continuations(logits, torch.tensor([[-1e6]], dtype=torch.float64), 2)
    assert pieces.tolist() == [[40, EOS]]


# -- the model's own state --------------------------------------------------------------------------------------------


def test_the_model_is_evaluated_and_then_in_its_mode_again():
    model = ToyRecurrent(20, seed=1)
    seen = []
    model.cell.register_forward_pre_hook(lambda *_: seen.append((model.training, torch.is_inference_mode_enabled())))
    for training in (True, False):
        model.train(training)
        beam_search(model, padded([[5, 6]]), DecodeConfig(beam=2))
        assert model.training is training
    assert set(seen) == {(False, True)}


def test_probabilities_that_are_not_finite_are_an_error():
    model = ToyRecurrent(20, seed=1)
    with torch.no_grad():
        model.weight[7] = math.nan
    with pytest.raises(CheckError, match="not finite"):
        beam_search(model, padded([[5, 6]]), DecodeConfig())
    assert model.training


def test_no_sentences_give_no_hypotheses():
    assert beam_search(ToyRecurrent(20, seed=1), torch.zeros(0, 3, dtype=torch.int64), DecodeConfig()) == []


# -- the Transformer --------------------------------------------------------------------------------------------------


def sharp_transformer(seed: int, **changes):
    """Random, but scaled up so that its choices are clear and its sentences end."""
    config = TransformerConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2, **changes)
    model = build_model(config, 40, seed=seed)
    with torch.no_grad():
        model.embedding.mul_(3.0)
    return model


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_transformer_is_searched_as_if_every_prefix_were_run_anew(beam, positions):
    model = sharp_transformer(3, positions=positions).eval()
    sources = random_sources(7, 4, 40, 7)
    config = DecodeConfig(beam=beam, extra_length=6)
    for source, found in zip(sources, beam_search(model, padded(sources), config), strict=True):
        ids, score, capped = plain_beam(rerun(model, source), beam, len(source) + 6, "gnmt", 0.6)
        assert (found.ids, found.capped) == (ids, capped)
        assert found.score == pytest.approx(score, abs=1e-4)


def test_the_transformer_gives_the_same_in_batches_of_one_three_and_eight():
    model = sharp_transformer(4)
    sources = random_sources(9, 8, 40, 12)
    config = DecodeConfig(extra_length=10)
    whole = beam_search(model, padded(sources), config)
    for size in (1, 3):
        parts = [beam_search(model, padded(sources[start : start + size]), config) for start in range(0, 8, size)]
        found = [hypothesis for part in parts for hypothesis in part]
        assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in whole]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([h.score for h in whole], abs=1e-4)


def test_the_transformer_trains_on_after_a_search():
    model = sharp_transformer(5)
    src = padded(random_sources(1, 3, 40, 5))
    beam_search(model, src, DecodeConfig(extra_length=3))
    model.project(model(src, src != PAD, src)).sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_below_the_end_mark_is_an_error_and_no_longer_hypothesis(cap):
    with pytest.raises(ValueError, match="the least is 1"):
        beam_search(
            Scripted(lambda first, prefix: dense({4: 1.0})), padded([[4], [4, 4]]), DecodeConfig(), caps=[3, cap]
        )


def test_caps_of_another_number_than_sentences_are_an_error():
    with pytest.raises(ValueError, match="1 caps for 2 rows"):
        beam_search(Scripted(lambda first, prefix: dense({4: 1.0})), padded([[4], [4, 4]]), DecodeConfig(), caps=[3])


@pytest.mark.parametrize("source", [[], [5]])
@pytest.mark.parametrize("beam", [6, 7, 50])
def test_a_beam_wider_than_the_vocabulary_and_sources_without_pieces_are_searched(beam, source):
    """With every hypothesis kept, the answer is the best of all there are."""
    model, cap = ToyRecurrent(6, seed=3, sharpness=1.0), 2
    (found,) = beam_search(model, padded([source]), DecodeConfig(beam=beam, alpha=0.0), caps=[cap])
    after = rerun(model, source)
    every = {
        ids: sum(after(ids[:i])[piece] for i, piece in enumerate((*ids, EOS)))
        for pieces in range(cap)
        for ids in itertools.product(range(EOS + 1, 6), repeat=pieces)
    }
    best = max(every, key=every.__getitem__)
    assert found.ids == best
    assert found.log_probability == pytest.approx(every[best], abs=1e-5)
