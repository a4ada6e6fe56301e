"""`long-range`: what models keep of words that stand far apart.

A model without attention hands the whole source on through one vector of fixed size, and a recurrent one passes the
first word through every step; sections 1 and 4 of the paper say what that costs. Measured as translation (BLEU by
length), as grammar (agreement of verbs with their subjects, by distance, on the made-up language) and as the gradient
that comes back to the first words from the last output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from repro.config import RunConfig
from repro.data import smoke
from repro.data.pieces import Batch
from repro.data.prepared import Prepared
from repro.decoding.beam import evaluation_mode
from repro.decoding.scores import bleu_by_length
from repro.decoding.translate import translate_lines
from repro.models.seq2seq import Seq2Seq
from repro.probes import watching
from repro.probes.figures import Figure, each_seed
from repro.probes.sentences import Pair, batches, drawn_by, made_up, pairs_of

PROBE = "long-range"

LENGTH_EDGES = (6, 10, 15, 20)
"""Where groups of length end, in words of the source; the last one is open."""
_SENTENCES, _EACH = 500, 100
"""Of the test side; and of each class of distance, where there are always more sentences."""
_GRADIENTS = 200
DISTANCE_EDGES = (0, 5, 10, 15, 20, 25)
"""Where groups of distance begin, in pieces from a source piece to the source's last one."""

LSTM, BASE = "baseline.lstm", "base"
LEAST_AGREEMENT = 0.5
"""At the shortest distance, for what is lost from there on to say anything: endings are three, a guess gets a third."""


def long_range(model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """What a trained model of any family keeps over distance:

    {"sentences", "bleu_by_length": as `scores.bleu_by_length`, "agreement": as `smoke.analyse` (made-up language only),
    "gradient": [{"from", "to" (None: open), "pieces", "relative"}]}. "relative" is the mean norm of the gradient of the
    last piece's log probability with respect to the vectors of source pieces so far from the source's end, in units of
    the mean over its sentence's pieces.
    """
    pairs = _pairs(prepared)
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    device = next(model.parameters()).device
    lines = translate_lines(model, prepared.vocabulary(), sources, config.decode, device=device).lines
    found = {
        "sentences": len(pairs),
        "bleu_by_length": bleu_by_length(lines, references, sources=sources, edges=LENGTH_EDGES),
        "gradient": gradient_by_distance(model, prepared, sorted(pairs, key=_length)[-_GRADIENTS:]),
    }
    if made_up(prepared):
        found["agreement"] = smoke.analyse(sources, references, lines)
    return found


def _pairs(prepared: Prepared) -> list[Pair]:
    if not made_up(prepared):
        return pairs_of(prepared, "test", _SENTENCES)
    drawn = drawn_by(lambda pair: smoke.distance_class(pair[0]), smoke.DISTANCES, _EACH)
    return [pair for group in drawn.values() for pair in group]


def _length(pair: Pair) -> int:
    return len(pair[0].split())


def gradient_by_distance(model: Seq2Seq[Any, Any], prepared: Prepared, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """See `long_range`."""
    values: dict[int, list[float]] = {start: [] for start in DISTANCE_EDGES}
    device = next(model.parameters()).device
    with watching.differentiable(), evaluation_mode(model):
        for batch in batches(prepared, pairs, device, rows=1):
            norms = last_gradient(model, batch)[:-1].norm(dim=-1)
            shares = (norms / norms.mean().clamp_min(torch.finfo(norms.dtype).tiny)).tolist()
            for position, share in enumerate(shares):
                distance = len(shares) - 1 - position
                values[max(start for start in DISTANCE_EDGES if start <= distance)].append(share)
    ends = [*(start - 1 for start in DISTANCE_EDGES[1:]), None]
    return [
        {"from": start, "to": end, "pieces": len(found), "relative": math.fsum(found) / len(found)}
        for (start, found), end in zip(values.items(), ends, strict=True)
        if found
    ]


def last_gradient(model: Seq2Seq[Any, Any], batch: Batch) -> Tensor:
    """The gradient [src_len, width] of the log probability of the target's last piece before the end mark with respect
    to the vectors of the source's pieces, for a batch of one pair."""
    assert len(batch.src) == 1
    with watching.Embedded() as embedded:
        memory = model.encode(batch.src, batch.src_mask)
    pieces, vectors = embedded.found[0]
    last = max(int(batch.tgt_lengths[0]) - 2, 0)
    logits = model.project(model.decode(batch.tgt_in, memory)[0, last])
    chosen = torch.log_softmax(logits, dim=-1)[batch.tgt_out[0, last]]
    gradient: Tensor = torch.autograd.grad(chosen, vectors)[0]
    if torch.equal(pieces, batch.src):
        return gradient[0]
    assert torch.equal(pieces, batch.src.flip(1)), "read forwards, or from the end"
    return gradient[0].flip(0)


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    rows = list(dict.fromkeys(row for result in results for row in result["rows"]))
    found: dict[str, Figure] = {}
    able = any("agreement" in result["rows"][row] for result in results for row in result["rows"])
    low = f"below {LEAST_AGREEMENT:g} even at the shortest distance"
    unknown = "" if able else "agreement is measured on the made-up language only"
    for row in rows:
        found[f"agreement_lost.{row}"] = each_seed(
            results,
            lambda of, row=row: _lost(of[row]),  # type: ignore[misc]
            lacking=unknown or f"its agreement is {low}",
        )
        found[f"bleu_lost.{row}"] = each_seed(results, lambda of, row=row: _bleu_lost(of[row]))  # type: ignore[misc]
    found["lstm_agreement_beyond_base"] = each_seed(
        results,
        lambda of: _minus(_lost(of[LSTM]), _lost(of[BASE])),
        lacking=unknown or f"agreement of one of the two is {low}",
    )
    found["lstm_bleu_beyond_base"] = each_seed(results, lambda of: _bleu_lost(of[LSTM]) - _bleu_lost(of[BASE]))
    return found


def _lost(document: Mapping[str, Any]) -> float | None:
    """Agreement at the shortest distance less that at the longest; None where it was not measured or is none."""
    if "agreement" not in document:
        return None
    shares = document["agreement"]["agreement_by_distance"]
    near, far = (float(shares[smoke.DISTANCES[end]]) for end in (0, -1))
    return near - far if near >= LEAST_AGREEMENT else None


def _bleu_lost(document: Mapping[str, Any]) -> float:
    """BLEU of the shortest sentences less that of the longest."""
    groups = document["bleu_by_length"]
    return float(groups[0]["bleu"] - groups[-1]["bleu"])


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b
