"""Formulas of training and decoding: smoothing, loss, perplexity, learning rate, length penalty, BLEU."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import torch
from torch import Tensor

from repro.config import DecodeConfig, TrainConfig, TransformerConfig
from repro.data.encoded import EncodedPairs, pack
from repro.data.pieces import EOS, PAD
from repro.data.prepare import Prepared
from repro.decoding import penalty, scores, tokenise
from repro.models.seq2seq import Output
from repro.training import evaluation, loss, schedule
from repro.verify.check import Claim, at_most, equal, near
from repro.verify.toys import VOCABULARY, largest, padded, sentences, targets, toy

_TWO = {"A": (5, -3.0), "B": (10, -4.2)}
"""Two hypotheses: length and log probability."""


def _claims() -> tuple[Claim, ...]:
    return (*_loss_claims(), *_rate_claims(), *_decoding_claims())


def _loss_claims() -> tuple[Claim, ...]:
    return (
        near(
            "loss.smoothing-uniform",
            "label smoothing 0.1 over 5 pieces, uniform: targets of the gold piece and the others, from the gradient",
            source="mixed with the uniform distribution: 1 - 0.1 + 0.1/5 and 0.1/5",
            expected=[0.92, 0.02, 0.02, 0.02, 0.02],
            got=lambda: _targets("uniform"),
            within=1e-6,
        ),
        near(
            "loss.smoothing-exclude-gold",
            "the same, the rest shared by the other pieces only",
            source="tensor2tensor: 1 - 0.1 and 0.1/4",
            expected=[0.9, 0.025, 0.025, 0.025, 0.025],
            got=lambda: _targets("exclude_gold"),
            within=1e-6,
        ),
        near(
            "loss.cross-entropy",
            "smoothed loss of a padded batch, a token",
            source="torch.nn.functional.cross_entropy",
            expected=lambda: _torchs_loss(0.1),
            got=lambda: _our_loss(0.1)[0],
            within=1e-5,
        ),
        near(
            "loss.perplexity",
            "perplexity of a model on a split",
            source="exp of the unsmoothed mean -log p a piece, sentence by sentence",
            expected=_perplexity_by_hand,
            got=_our_perplexity,
            within=0.2,
        ),
        near(
            "loss.nll-unsmoothed",
            "the logged negative log-likelihood does not depend on the smoothing trained with",
            source="torch.nn.functional.cross_entropy, not smoothed",
            expected=lambda: _torchs_loss(0.0),
            got=lambda: _our_loss(0.1)[1],
            within=1e-5,
        ),
        at_most(
            "loss.accumulation",
            "gradients of four accumulated micro-batches of unequal lengths against those of the one batch",
            source="the loss is divided by the tokens of the whole effective batch",
            limit=1e-6,
            got=_effect_of_accumulation,
        ),
    )


def _rate_claims() -> tuple[Claim, ...]:
    return (
        near(
            "rate.peak",
            "base: learning rate at the end of the warm-up",
            source="section 5.3, eq. 3: 512^-0.5 * 4000^-0.5",
            expected=6.99e-4,
            got=lambda: _rate(4000),
            within=5e-7,
        ),
        equal(
            "rate.peak-step",
            "base: the update with the highest rate",
            source="section 5.3: warm-up of 4000 steps",
            expected=4000,
            got=lambda: max(range(1, 20_001), key=_rate),
        ),
        near(
            "rate.first",
            "base: rate of the first update, counted from 1",
            source="eq. 3: 512^-0.5 * 4000^-1.5",
            expected=1.7469e-7,
            got=lambda: _rate(1),
            within=1e-11,
        ),
    )


def _rate(step: int) -> float:
    train, width = TrainConfig(), TransformerConfig().d_model
    return schedule.learning_rate(
        step, d_model=width, warmup_steps=train.warmup_steps, factor=train.learning_rate_factor
    )


def _decoding_claims() -> tuple[Claim, ...]:
    alpha = DecodeConfig().alpha
    return (
        near(
            "decoding.penalty-gnmt",
            "scores of A (5 pieces, log p -3.0) and B (10, -4.2): A wins",
            source="Wu et al. 2016, eq. 14: ((5 + length) / 6)^0.6",
            expected=[-2.208, -2.424],
            got=lambda: _scores("gnmt", alpha),
            within=5e-4,
        ),
        near(
            "decoding.penalty-power",
            "the same two: B wins",
            source="length^0.6",
            expected=[-1.142, -1.055],
            got=lambda: _scores("power", alpha),
            within=5e-4,
        ),
        near(
            "decoding.bleu",
            "BLEU (13a) of 'the cat sat on the mat' against 'the cat sat on a mat'",
            source="by hand: (5/6 * 3/5 * 2/4 * 1/3)^(1/4)",
            expected=53.728,
            got=lambda: float(
                scores.score(["the cat sat on the mat"], ["the cat sat on a mat"], protocols=["13a"])["bleu"]
            ),
            within=1e-3,
        ),
        equal(
            "decoding.compounds",
            "a hyphenated word as the paper's BLEU counts it",
            source="the authors' script for English-German",
            expected="ein ##AT##-##AT## mal ist kein - mal",
            got=lambda: tokenise.split_compounds("ein-mal ist kein - mal"),
        ),
    )


def _scores(kind: penalty.PenaltyKind, alpha: float) -> list[float]:
    return [total / penalty.length_penalty(kind, length, alpha) for length, total in _TWO.values()]


def _targets(kind: loss.SmoothingKind) -> list[float]:
    """With all logits zero, the gradient of the logits is 1/5 minus the target distribution."""
    hidden = torch.zeros(1, 1, 5, requires_grad=True)
    found = loss.smoothed_loss(hidden, torch.tensor([[1]]), Output(torch.eye(5)), smoothing=0.1, kind=kind)
    (gradient,) = torch.autograd.grad(found.total, hidden)
    wanted = [0.2 - number for number in gradient.flatten().tolist()]
    return [wanted[1], wanted[0], *wanted[2:]]


def _example() -> tuple[Tensor, Tensor, Output]:
    """Hidden states [4, 6, 8], targets with padding and an output layer over 30 pieces."""
    generator = torch.Generator().manual_seed(11)
    hidden, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((4, 6, 8), (30, 8), (30,)))
    tgt_out = torch.randint(1, 30, (4, 6), generator=generator)
    for row, length in enumerate((6, 3, 1, 5)):
        tgt_out[row, length:] = PAD
    return hidden.requires_grad_(), tgt_out, Output(weight.requires_grad_(), bias.requires_grad_())


def _torchs_loss(smoothing: float) -> float:
    hidden, tgt_out, output = _example()
    logits = torch.nn.functional.linear(hidden, *output).flatten(0, 1)
    found = torch.nn.functional.cross_entropy(logits, tgt_out.flatten(), ignore_index=PAD, label_smoothing=smoothing)
    return float(found.detach())


def _our_loss(smoothing: float) -> tuple[float, float]:
    """Smoothed and unsmoothed, both a real target position."""
    hidden, tgt_out, output = _example()
    found, tokens = loss.smoothed_loss(hidden, tgt_out, output, smoothing=smoothing), int((tgt_out != PAD).sum())
    return float(found.smoothed) / tokens, float(found.nll) / tokens


def _effect_of_accumulation() -> float:
    hidden, tgt_out, output = _example()
    normaliser = float((tgt_out != PAD).sum())
    inputs = [part for part in (hidden, *output) if part is not None]
    whole = loss.smoothed_loss(hidden, tgt_out, output, smoothing=0.1, normaliser=normaliser).total
    expected = torch.autograd.grad(whole, inputs)
    total = torch.zeros((), dtype=torch.float64)
    for row, length in enumerate((6, 3, 1, 5)):
        part, answer = hidden[row : row + 1, :length], tgt_out[row : row + 1, :length]
        total = total + loss.smoothed_loss(part, answer, output, smoothing=0.1, normaliser=normaliser).total
    found = torch.autograd.grad(total, inputs)
    return max(largest(a - b) for a, b in zip(expected, found, strict=True))


def _pairs() -> tuple[list[list[int]], list[list[int]]]:
    return sentences(6, 9, seed=21), sentences(6, 9, seed=22)


class _Pairs:
    """As much of a prepared corpus as perplexity looks at."""

    def encoded(self, split: str) -> EncodedPairs:
        """The six pairs, whatever the split."""
        del split
        sides = [pack(rows, VOCABULARY) for rows in _pairs()]
        pieces = {"src": sides[0][0], "tgt": sides[1][0]}
        offsets = {"src": sides[0][1], "tgt": sides[1][1]}
        return EncodedPairs(pieces, offsets, np.arange(1, 7))  # type: ignore[arg-type]


def _our_perplexity() -> float:
    prepared = cast(Prepared, _Pairs())
    return evaluation.perplexity(toy("transformer"), prepared, "valid", torch.device("cpu"))


def _perplexity_by_hand() -> float:
    model, total, count = toy("transformer"), 0.0, 0
    with torch.no_grad():
        for source, target in zip(*_pairs(), strict=True):
            src = padded([source])
            logits = model.project(model(src, src != PAD, targets([target])))[0].double()
            wanted = torch.tensor([*target, EOS])
            total -= float(logits.log_softmax(-1).gather(1, wanted[:, None]).sum())
            count += len(wanted)
    return math.exp(total / count)


CLAIMS: tuple[Claim, ...] = _claims()
