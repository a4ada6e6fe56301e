"""What every baseline owes the rest: exact search states, no leaks of padding, neighbours or chance, and learning."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from baseline_toys import CONFIGS, VOCABULARY, sources, targets, toy
from decoding_toys import padded
from test_beam import plain_beam, random_sources, rerun

from repro.config import DecodeConfig
from repro.data.pieces import EOS, PAD
from repro.decoding.beam import beam_search
from repro.models.build import build_model
from repro.models.seq2seq import Seq2Seq
from repro.training.loss import smoothed_loss

torch.set_num_threads(1)
LENGTHS = [6, 9, 1, 7, 4]

every_family = pytest.mark.parametrize("name", CONFIGS)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@every_family
def test_search_sees_what_training_sees(name: str) -> None:
    model = toy(name).eval()
    src, tgt_in = sources(LENGTHS), targets(10, 8)
    with torch.inference_mode():
        memory = model.encode(src, src != PAD)
        state = model.start(memory, 2)
        steps = torch.stack([model.advance(column, state) for column in tgt_in.T], 1)
    twice = src.repeat_interleave(2, 0)
    close(steps, model(twice, twice != PAD, tgt_in))


@every_family
def test_a_reordered_state_continues_as_if_it_had_always_been_so(name: str) -> None:
    model = toy(name).eval()
    src, before, after = sources(LENGTHS), targets(10, 4), targets(6, 5, seed=9)
    kept, beams = torch.tensor([3, 0, 1]), torch.tensor([[1, 1], [0, 1], [1, 0]])
    with torch.inference_mode():
        state = model.start(model.encode(src, src != PAD), 2)
        for column in before.T:
            model.advance(column, state)
        state.reorder(kept, beams)
        state.reorder(torch.arange(3), torch.tensor([[0, 1]] * 3))
        steps = torch.stack([model.advance(column, state) for column in after.T], 1)
    prefixes = before.view(5, 2, -1)[kept[:, None], beams].flatten(0, 1)
    rows = src[kept].repeat_interleave(2, 0)
    whole = model(rows, rows != PAD, torch.cat((prefixes, after), 1))
    close(steps, whole[:, 4:])


@every_family
def test_padding_changes_nothing(name: str) -> None:
    model = toy(name).eval()
    src, wide, tgt_in = sources(LENGTHS), sources(LENGTHS, width=15), targets(5, 8)
    hidden = model(src, src != PAD, tgt_in)
    close(model(wide, wide != PAD, tgt_in), hidden)
    filled = torch.where(wide == PAD, 7, wide)
    assert torch.equal(model(filled, wide != PAD, tgt_in), model(wide, wide != PAD, tgt_in))


@every_family
def test_padding_gets_no_gradient(name: str) -> None:
    model = toy(name)
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    smoothed_loss(model(src, src != PAD, tgt_in), tgt_in, model.output()).total.backward()
    tables = model.embeddings
    table = tables.target_table if tables.source_table is None else tables.source_table
    if tables.source_table is not None:
        assert not table.grad[PAD].any()
        assert table.grad[EOS].any()


@every_family
def test_a_sentence_does_not_see_its_neighbours(name: str) -> None:
    model = toy(name).eval()
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    hidden = model(src, src != PAD, tgt_in)
    for row, length in enumerate(LENGTHS):
        alone = src[row : row + 1, :length]
        close(model(alone, alone != PAD, tgt_in[row : row + 1])[0], hidden[row])


@every_family
def test_later_pieces_change_nothing_before_them(name: str) -> None:
    model = toy(name).eval()
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    other = tgt_in.clone()
    other[:, 5:] = 11
    hidden, changed = model(src, src != PAD, tgt_in), model(src, src != PAD, other)
    assert torch.equal(hidden[:, :5], changed[:, :5])
    assert not torch.equal(hidden[:, 5:], changed[:, 5:])


@every_family
def test_a_row_of_padding_gives_no_nan(name: str) -> None:
    model = toy(name)
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    src[2] = PAD
    tgt_out = tgt_in.clone()
    tgt_out[2] = PAD
    loss = smoothed_loss(model(src, src != PAD, tgt_in), tgt_out, model.output(), smoothing=0.1)
    loss.total.backward()
    assert loss.total.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters() if parameter.grad is not None)


def ending(name: str) -> Seq2Seq[Any, Any]:
    """A toy whose end mark is likely enough for some sentences to end before their cap."""
    model = toy(name, seed=3).eval()
    with torch.no_grad():
        model.output().bias[EOS] += 3.0
    return model


@every_family
@pytest.mark.parametrize("beam", [1, 3])
def test_search_gives_what_running_every_prefix_anew_gives(name: str, beam: int) -> None:
    model = ending(name)
    sentences = random_sources(7, 4, VOCABULARY, 6)
    found = beam_search(model, padded(sentences), DecodeConfig(beam=beam, extra_length=3))
    for sentence, hypothesis in zip(sentences, found, strict=True):
        ids, score, capped = plain_beam(rerun(model, sentence), beam, len(sentence) + 3, "gnmt", 0.6)
        assert (hypothesis.ids, hypothesis.capped) == (ids, capped)
        assert hypothesis.score == pytest.approx(score, abs=1e-4)


@every_family
def test_search_gives_the_same_in_batches_of_one_three_and_eight(name: str) -> None:
    model = ending(name)
    sentences = random_sources(9, 8, VOCABULARY, 10)
    config = DecodeConfig(extra_length=5)
    whole = beam_search(model, padded(sentences), config)
    for size in (1, 3):
        parts = [beam_search(model, padded(sentences[at : at + size]), config) for at in range(0, 8, size)]
        found = [hypothesis for part in parts for hypothesis in part]
        assert [hypothesis.ids for hypothesis in found] == [hypothesis.ids for hypothesis in whole]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([h.score for h in whole], abs=1e-4)


def gradients(model: Seq2Seq[Any, Any], seed: int) -> list[torch.Tensor]:
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    model.random.seed(seed)
    smoothed_loss(model(src, src != PAD, tgt_in), tgt_in, model.output()).total.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@every_family
def test_one_seed_gives_one_set_of_bits_whatever_torchs_own_generator_does(name: str) -> None:
    config = dataclasses.replace(CONFIGS[name], dropout=0.3)
    results = []
    for seed, mask_seed, noise in ((1, 5, 0), (1, 5, 1), (2, 5, 0), (1, 6, 0)):
        torch.manual_seed(noise)
        model = build_model(config, VOCABULARY, seed)
        results.append([*model.parameters(), *gradients(model, mask_seed)])
    first, same, other_weights, other_masks = results
    assert len(first) == 2 * len(list(model.parameters())), "a parameter had no gradient"
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other_weights, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other_masks, strict=True))


@every_family
def test_products_in_bfloat16_stay_near_those_in_single_precision(name: str) -> None:
    model = toy(name)
    src, tgt_in = sources(LENGTHS), targets(5, 8)
    exact = model(src, src != PAD, tgt_in).detach()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(src, src != PAD, tgt_in)
        loss = smoothed_loss(hidden, tgt_in, model.output(), normaliser=40)
    loss.total.backward()
    assert (hidden.float() - exact).norm() < 0.02 * exact.norm()


@pytest.mark.parametrize("name", ["lstm-tied", "lstm-attention", "gnmt", "convs2s"])
def test_each_family_learns_a_few_pairs_by_heart(name: str) -> None:
    model = build_model(CONFIGS[name], VOCABULARY, 1)
    src, tgt = sources([6, 9, 3, 7]), sources([5, 9, 7, 4], seed=3)
    tgt_in = torch.cat((torch.full((4, 1), 2), tgt[:, :-1]), 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    for _ in range(150):
        optimizer.zero_grad()
        loss = smoothed_loss(model(src, src != PAD, tgt_in), tgt, model.output(), normaliser=25)
        loss.total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert float(loss.nll) / 25 < 0.1
