"""`extrapolation`: sentences longer than any in training (section 3.5 of the paper: sinusoids may allow for them)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from repro.config import RunConfig
from repro.data.prepared import Prepared
from repro.decoding.beam import evaluation_mode
from repro.decoding.scores import score
from repro.decoding.translate import translate_lines
from repro.models.seq2seq import Seq2Seq
from repro.probes.figures import LEAST_BLEU, Figure, each_seed
from repro.probes.sentences import Pair, batches, drawn_by, made_up, pairs_of
from repro.training.loss import smoothed_loss

PROBE = "extrapolation"

TIMES = 4
"""Tested up to so many times the longest sentence of training."""
_EACH = 100
BASE, LEARNED = "base", "positions.learned"


def extrapolation(model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """How well a model that was trained on sentences of up to `data.max_pieces` does on longer ones:

    {"longest" (L), "groups": [{"times": k, "from", "to" (pieces with the end mark, of the longer side; from (k - 1) L
    + 1 to k L), "sentences", "bleu", "exact", "perplexity"}]}. Groups without sentences are left out.
    """
    longest = config.data.max_pieces
    return {
        "longest": longest,
        "groups": [_group(model, prepared, config, times, pairs) for times, pairs in _pairs(prepared, longest).items()],
    }


def _pairs(prepared: Prepared, longest: int) -> dict[int, list[Pair]]:
    """Pairs by how many times `longest` they are at most."""
    vocabulary = prepared.vocabulary()

    def times_of(pair: Pair) -> str | None:
        times = math.ceil((max(len(pieces) for pieces in vocabulary.encode(pair)) + 1) / longest)
        return str(times) if times <= TIMES else None

    if made_up(prepared):
        drawn = drawn_by(times_of, [str(times) for times in range(1, TIMES + 1)], _EACH)
        return {int(times): pairs for times, pairs in drawn.items()}
    found: dict[int, list[Pair]] = {}
    for pair in pairs_of(prepared, "test", 1 << 20):
        times = times_of(pair)
        if times is not None and len(found.setdefault(int(times), [])) < _EACH:
            found[int(times)].append(pair)
    return dict(sorted(found.items()))


def _group(
    model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig, times: int, pairs: Sequence[Pair]
) -> dict[str, Any]:
    device = next(model.parameters()).device
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    lines = translate_lines(model, prepared.vocabulary(), sources, config.decode, device=device).lines
    return {
        "times": times,
        "from": (times - 1) * config.data.max_pieces + 1,
        "to": times * config.data.max_pieces,
        "sentences": len(pairs),
        "bleu": score(lines, references, protocols=["13a"])["bleu"],
        "exact": sum(line == right for line, right in zip(lines, references, strict=True)) / len(pairs),
        "perplexity": _perplexity(model, prepared, pairs, device),
    }


def _perplexity(model: Seq2Seq[Any, Any], prepared: Prepared, pairs: Sequence[Pair], device: torch.device) -> float:
    total, tokens = 0.0, 0
    with torch.inference_mode(), evaluation_mode(model):
        for batch in batches(prepared, pairs, device):
            hidden = model(batch.src, batch.src_mask, batch.tgt_in)
            loss = smoothed_loss(hidden, batch.tgt_out, model.output())
            total, tokens = total + float(loss.nll), tokens + int(batch.tgt_lengths.sum())
    return math.exp(min(total / tokens, 700.0))


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about: BLEU of sentences up to twice as long as any in training."""
    lacking = f"no longer sentences, or less than {LEAST_BLEU:g} BLEU at the lengths of training"
    return {
        "sinusoids_beyond_learned": each_seed(results, _beyond, lacking=lacking),
        "kept_by_sinusoids": each_seed(results, lambda rows: _kept(rows[BASE]), lacking=lacking),
        "kept_by_learned": each_seed(results, lambda rows: _kept(rows[LEARNED]), lacking=lacking),
    }


def _beyond(rows: Mapping[str, Any]) -> float | None:
    """What sinusoids have more than learned positions there, of models that both translate at trained lengths."""
    ours, theirs = _bleu(rows[BASE], 2), _bleu(rows[LEARNED], 2)
    able = all((_bleu(rows[row], 1) or 0.0) >= LEAST_BLEU for row in (BASE, LEARNED))
    return None if ours is None or theirs is None or not able else ours - theirs


def _kept(document: Mapping[str, Any]) -> float | None:
    """BLEU of these as a share of that of sentences as long as in training."""
    longer, usual = _bleu(document, 2), _bleu(document, 1)
    return None if longer is None or usual is None or usual < LEAST_BLEU else longer / usual


def _bleu(document: Mapping[str, Any], times: int) -> float | None:
    """None where there was no sentence so long."""
    return next((float(group["bleu"]) for group in document["groups"] if group["times"] == times), None)
