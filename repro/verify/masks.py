"""Masks and padding, of every family: nothing is seen from later target pieces, from padding or from neighbours."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from repro.data.pieces import EOS, PAD
from repro.models.seq2seq import Seq2Seq
from repro.verify.check import Claim, at_least, at_most, equal
from repro.verify.toys import FAMILIES, VOCABULARY, largest, padded, sentences, targets, toy

_CHANGED_FROM = 3
"""Target positions from here on are changed."""
_MASK = "section 3.1: position i depends on outputs before i only"
_PADDING = "padding is no part of a sentence"


def _claims() -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for family in FAMILIES:
        claims += [
            at_most(
                f"masks.{family}-past",
                f"{family}: other target pieces after a position change no state up to it",
                source=_MASK,
                limit=1e-6,
                got=partial(_effect_of_later_pieces, family, after=False),
            ),
            at_least(
                f"masks.{family}-future",
                f"{family}: they do change the states after it",
                source=_MASK,
                limit=1e-3,
                got=partial(_effect_of_later_pieces, family, after=True),
            ),
            equal(
                f"masks.{family}-padding",
                f"{family}: what stands in padding changes no bit",
                source=_PADDING,
                expected=0.0,
                got=partial(_effect_of_what_stands_in_padding, family),
            ),
            at_most(
                f"masks.{family}-width",
                f"{family}: more padding changes nothing",
                source=_PADDING,
                limit=1e-5,
                got=partial(_effect_of_more_padding, family),
            ),
            at_most(
                f"masks.{family}-neighbours",
                f"{family}: a sentence alone and among others",
                source="a batch is a set of independent sentences",
                limit=1e-5,
                got=partial(_effect_of_neighbours, family),
            ),
            equal(
                f"masks.{family}-all-padding",
                f"{family}: a row of padding alone gives finite states and gradients",
                source="no sentence, no NaN",
                expected=True,
                got=partial(_finite_with_an_empty_row, family),
            ),
        ]
    return tuple(claims)


def _pairs() -> tuple[list[list[int]], list[list[int]]]:
    """Four sources and four targets, the targets longer than _CHANGED_FROM."""
    return sentences(4, 8, seed=1), [row + row for row in sentences(4, 4, seed=2)]


def _states(model: Seq2Seq[Any, Any], src: Tensor, tgt: Tensor) -> Tensor:
    with torch.no_grad():
        states: Tensor = model(src, src != PAD, tgt)
    return states


def _effect_of_later_pieces(family: str, *, after: bool) -> float:
    model, src = toy(family), padded(_pairs()[0])
    tgt = torch.randint(EOS + 1, VOCABULARY, (4, 7), generator=torch.Generator().manual_seed(3))
    other = tgt.clone()
    other[:, _CHANGED_FROM:] = EOS + 1 + (other[:, _CHANGED_FROM:] + 7) % (VOCABULARY - EOS - 1)
    moved = _states(model, src, other) - _states(model, src, tgt)
    return largest(moved[:, _CHANGED_FROM:] if after else moved[:, :_CHANGED_FROM])


def _effect_of_what_stands_in_padding(family: str) -> float:
    model, (sources, answers) = toy(family), _pairs()
    src, tgt = padded(sources), targets(answers)
    mask, real = src != PAD, tgt != PAD
    with torch.no_grad():
        plain = model(src, mask, tgt)
        wild = model(src.masked_fill(~mask, 9), mask, tgt.masked_fill(~real, 11))
    return largest((wild - plain)[real])


def _effect_of_more_padding(family: str) -> float:
    model, (sources, answers) = toy(family), _pairs()
    tgt = targets(answers)
    wide = torch.nn.functional.pad(tgt, (0, 4), value=PAD)
    moved = _states(model, padded(sources, more=5), wide)[:, : tgt.shape[1]] - _states(model, padded(sources), tgt)
    return largest(moved[tgt != PAD])


def _effect_of_neighbours(family: str) -> float:
    model, (sources, answers) = toy(family), _pairs()
    together = _states(model, padded(sources), targets(answers))
    return max(
        largest(together[row, : len(answer) + 1] - _states(model, padded([source]), targets([answer]))[0])
        for row, (source, answer) in enumerate(zip(sources, answers, strict=True))
    )


def _finite_with_an_empty_row(family: str) -> bool:
    model, (sources, answers) = toy(family), _pairs()
    src, tgt = padded(sources), targets(answers)
    src[1], tgt[1] = PAD, PAD
    states = model(src, src != PAD, tgt)
    states.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return bool(states.isfinite().all()) and all(bool(gradient.isfinite().all()) for gradient in gradients)


CLAIMS: tuple[Claim, ...] = _claims()
