"""`order`: attention is blind to order unless positions tell it (section 3.5 of the paper).

Without positions, a permuted source gives the encoder's outputs permuted alike and nothing else (they are equivariant),
so that sentences which differ in their order only have one translation. With positions both are otherwise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from repro.config import RunConfig
from repro.data import smoke
from repro.data.prepared import Prepared
from repro.decoding.beam import evaluation_mode
from repro.decoding.scores import score
from repro.decoding.translate import translate_lines
from repro.models.transformer import Transformer
from repro.probes.figures import Figure, each_seed
from repro.probes.sentences import Pair, batches, made_up, pairs_of
from repro.seeds import derive_seed

PROBE = "order"

_SENTENCES = 100
_SHOWN = 4


def order(model: Transformer, prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """What a trained Transformer makes of the order of words:

    {"positions", "equivariance_error": |E(Px) - P E(x)| / |E(x)|, mean over sentences; "shuffled": {"sentences", "same"
    (share whose translation stays when the source's words are shuffled), "bleu_between" (of the two translations)},
    "swapped" (made-up language only): {"pairs", "told_apart", "both_right", "examples": [...]}} of sentences whose
    subject and object are exchanged.
    """
    pairs = [pair for pair in pairs_of(prepared, "test", 4 * _SENTENCES) if len(pair[0].split()) > 2][:_SENTENCES]
    found: dict[str, Any] = {
        "positions": model.config.positions,
        "equivariance_error": equivariance_error(model, prepared, pairs, config.seed),
        "shuffled": _shuffled(model, prepared, config, [pair[0] for pair in pairs]),
    }
    if made_up(prepared):
        found["swapped"] = _swapped(model, prepared, config)
    return found


def equivariance_error(model: Transformer, prepared: Prepared, pairs: Sequence[Pair], seed: int) -> float:
    """See `order`; a new permutation of the whole source for each sentence."""
    generator = torch.Generator().manual_seed(derive_seed(PROBE, seed))
    device, errors = next(model.parameters()).device, []
    with torch.no_grad(), evaluation_mode(model):
        for batch in batches(prepared, pairs, device, rows=1):
            permutation = torch.randperm(batch.src.shape[1], generator=generator).to(device)
            plain = model.encode(batch.src, batch.src_mask).states
            permuted = model.encode(batch.src[:, permutation], batch.src_mask).states
            errors.append(float((permuted - plain[:, permutation]).norm() / plain.norm()))
    return math.fsum(errors) / len(errors)


def _translated(model: Transformer, prepared: Prepared, config: RunConfig, lines: Sequence[str]) -> list[str]:
    device = next(model.parameters()).device
    return translate_lines(model, prepared.vocabulary(), lines, config.decode, device=device).lines


def _shuffled(model: Transformer, prepared: Prepared, config: RunConfig, sources: list[str]) -> dict[str, Any]:
    rng = random.Random(derive_seed(PROBE, "shuffled", config.seed))
    others = [" ".join(rng.sample(words, len(words))) for words in (source.split() for source in sources)]
    plain, moved = (_translated(model, prepared, config, lines) for lines in (sources, others))
    return {
        "sentences": len(sources),
        "same": sum(a == b for a, b in zip(plain, moved, strict=True)) / len(sources),
        "bleu_between": score(moved, plain, protocols=["13a"])["bleu"],
    }


def _swapped(model: Transformer, prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    pairs = list(smoke.swapped(_SENTENCES))
    found = [_translated(model, prepared, config, [pair[side] for pair in pairs]) for side in (0, 1)]
    right = [[smoke.translate(source) for source in side] for side in zip(*pairs, strict=True)]
    examples = [
        {
            "source": pairs[number][side],
            "translation": found[side][number],
            "right": right[side][number],
        }
        for number in range(_SHOWN)
        for side in (0, 1)
    ]
    both = [a == x and b == y for a, b, x, y in zip(*found, *right, strict=True)]
    return {
        "pairs": len(pairs),
        "told_apart": sum(a != b for a, b in zip(*found, strict=True)) / len(pairs),
        "both_right": sum(both) / len(pairs),
        "examples": examples,
    }


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    return {
        "error_without": each_seed(results, lambda rows: float(rows["positions.none"]["equivariance_error"])),
        "error_with": each_seed(results, lambda rows: float(rows["base"]["equivariance_error"])),
        "apart_without": each_seed(results, lambda rows: _apart(rows["positions.none"])),
        "apart_with": each_seed(results, lambda rows: _apart(rows["base"])),
    }


def _apart(document: Mapping[str, Any]) -> float | None:
    return float(document["swapped"]["told_apart"]) if "swapped" in document else None
