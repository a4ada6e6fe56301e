"""Decoding of every family: independent of the batch, equal to greedy at beam 1, equal to re-running every prefix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repro.config import DecodeConfig
from repro.data.pieces import BOS, EOS, PAD
from repro.decoding.beam import Hypothesis, beam_search
from repro.models.seq2seq import Seq2Seq
from repro.verify.check import Claim, at_most, equal
from repro.verify.toys import FAMILIES, VOCABULARY, largest, padded, sentences, toy

_COUNT = 8
"""Sentences that are translated."""
_EXTRA = 5
"""Pieces by which a translation may be longer than its source."""
Next = Callable[[tuple[int, ...]], list[float]]
"""Log probabilities of every next piece after some pieces."""


def _claims() -> tuple[Claim, ...]:
    claims: list[Claim] = []
    for family in FAMILIES:
        claims += [
            equal(
                f"search.{family}-beam-4",
                f"{family}: sentences of {_COUNT} that beam 4 translates as a search that runs every prefix anew",
                source="the search written out plainly, sentence by sentence",
                expected=_COUNT,
                got=partial(_like_a_plain_search, family),
            ),
            equal(
                f"search.{family}-beam-1",
                f"{family}: sentences of {_COUNT} that beam 1 translates as greedy choice does",
                source="the likeliest next piece, running every prefix anew",
                expected=_COUNT,
                got=partial(_like_greedy, family),
            ),
            *(
                equal(
                    f"search.{family}-batches-of-{size}",
                    f"{family}: sentences of {_COUNT} that are translated alike in batches of {size}, in order",
                    source=f"the same {_COUNT} in one batch",
                    expected=_COUNT,
                    got=partial(_like_one_batch, family, size),
                )
                for size in (1, 3)
            ),
            at_most(
                f"search.{family}-batch-scores",
                f"{family}: scores in batches of 1 and 3 against one batch of 8",
                source="a sentence's result does not depend on its batch",
                limit=1e-4,
                got=partial(_spread_of_scores, family),
            ),
            at_most(
                f"search.{family}-scores",
                f"{family}: score of each hypothesis against log p / ((5 + length) / 6)^0.6",
                source="section 6.1; log p by teacher forcing",
                limit=1e-4,
                got=partial(_distance_of_scores, family),
            ),
            at_most(
                f"search.{family}-incremental-states",
                f"{family}: states one piece at a time against the whole target at once",
                source="teacher-forced decoding",
                limit=2e-5,
                got=partial(_distance_of_states, family),
            ),
        ]
    return tuple(claims)


def _sources() -> list[list[int]]:
    return sentences(_COUNT, 7, seed=9)


def _found(family: str, beam: int, size: int = _COUNT) -> list[Hypothesis]:
    model, sources = toy(family), _sources()
    config = DecodeConfig(beam=beam, extra_length=_EXTRA)
    parts = [beam_search(model, padded(sources[start : start + size]), config) for start in range(0, _COUNT, size)]
    return [hypothesis for part in parts for hypothesis in part]


def _like_a_plain_search(family: str) -> int:
    model, found = toy(family), _found(family, 4)
    plain = [_plain(_rerun(model, source), 4, len(source) + _EXTRA) for source in _sources()]
    return sum(a.ids == b for a, b in zip(found, plain, strict=True))


def _like_greedy(family: str) -> int:
    model, found = toy(family), _found(family, 1)
    greedy = [_greedy(_rerun(model, source), len(source) + _EXTRA) for source in _sources()]
    return sum(a.ids == b for a, b in zip(found, greedy, strict=True))


def _like_one_batch(family: str, size: int) -> int:
    return sum(a.ids == b.ids for a, b in zip(_found(family, 4), _found(family, 4, size), strict=True))


def _spread_of_scores(family: str) -> float:
    whole = _found(family, 4)
    return max(abs(a.score - b.score) for size in (1, 3) for a, b in zip(whole, _found(family, 4, size), strict=True))


def _distance_of_scores(family: str) -> float:
    model = toy(family)
    distances: list[float] = []
    for source, hypothesis in zip(_sources(), _found(family, 4), strict=True):
        after = _rerun(model, source)
        pieces = hypothesis.ids if hypothesis.capped else (*hypothesis.ids, EOS)
        total = sum(after(pieces[:position])[piece] for position, piece in enumerate(pieces))
        distances.append(abs(hypothesis.score - total / ((5 + len(pieces)) / 6) ** 0.6))
    return max(distances)


def _distance_of_states(family: str) -> float:
    """Two hypotheses a sentence; after four pieces the first sentence leaves and the beams change places."""
    model, src = toy(family), padded(_sources()[:3])
    generator = torch.Generator().manual_seed(4)
    pieces = torch.randint(EOS + 1, VOCABULARY, (3, 2, 9), generator=generator)
    pieces[:, :, 0] = BOS
    kept, beams = torch.tensor([2, 1]), torch.tensor([[1, 1], [1, 0]])
    moved = torch.cat((pieces[kept[:, None], beams, :4], pieces[kept, :, 4:]), 2)
    with torch.inference_mode():
        state = model.start(model.encode(src, src != PAD), 2)
        for position in range(4):
            model.advance(pieces[:, :, position].flatten(), state)
        state.reorder(kept, beams)
        found = torch.stack([model.advance(moved[:, :, position].flatten(), state) for position in range(4, 9)], 1)
        rows = src[kept].repeat_interleave(2, 0)
        right: Tensor = model(rows, rows != PAD, moved.flatten(0, 1))[:, 4:]
    return largest(found - right)


def _rerun(model: Seq2Seq[Any, Any], source: list[int]) -> Next:
    """The log probabilities after a prefix, by running source and whole prefix anew."""
    src = padded([source])

    def after(prefix: tuple[int, ...]) -> list[float]:
        with torch.inference_mode():
            hidden = model.decode(torch.tensor([[BOS, *prefix]]), model.encode(src, src != PAD))
            found: list[float] = model.project(hidden[:, -1])[0].double().log_softmax(0).tolist()
        return found

    return after


def _greedy(after: Next, cap: int) -> tuple[int, ...]:
    prefix: tuple[int, ...] = ()
    while len(prefix) < cap:
        found = after(prefix)
        best = max(range(EOS, len(found)), key=found.__getitem__)
        if best == EOS:
            break
        prefix = (*prefix, best)
    return prefix


def _plain(after: Next, beam: int, cap: int) -> tuple[int, ...]:
    """Beam search of one sentence written out plainly, always to its cap; the pieces of the best hypothesis."""
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
        penalty = ((5 + length) / 6) ** 0.6
        finished += [(total / penalty, prefix) for total, prefix, piece in found[:beam] if piece == EOS]
        live = [(total, (*prefix, piece)) for total, prefix, piece in found if piece != EOS][:beam]
    return max(finished, key=lambda item: item[0])[1] if finished else live[0][1]


CLAIMS: tuple[Claim, ...] = _claims()
