"""`mask`: what the decoder's causal mask is for (section 3.1 of the paper).

A model that is trained without it reads, at every position, the piece that it is to foretell: it need only learn to
copy. In search there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from repro.config import RunConfig
from repro.data.prepared import Prepared
from repro.decoding.scores import score
from repro.decoding.translate import translate_lines
from repro.models.transformer import DecoderLayer, Transformer
from repro.probes.figures import LEAST_BLEU, Figure, each_seed
from repro.probes.sentences import pairs_of
from repro.training.evaluation import perplexity

PROBE = "mask"

_SENTENCES, _SHOWN = 200, 3


def mask(model: Transformer, prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """What a trained Transformer does with the target in view and without:

    {"causal_mask" (in training), "perplexity" (validation side, the target read as in training), "perplexity_masked"
    (no position sees a later piece), "bleu" (test side), "sentences", "examples": [{"source", "translation", "right"}]}
    """
    device = next(model.parameters()).device
    pairs = pairs_of(prepared, "test", _SENTENCES)
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    lines = translate_lines(model, prepared.vocabulary(), sources, config.decode, device=device).lines
    with _causal(model):
        masked = perplexity(model, prepared, "valid", device)
    return {
        "causal_mask": model.config.causal_mask,
        "perplexity": perplexity(model, prepared, "valid", device),
        "perplexity_masked": masked,
        "bleu": score(lines, references, protocols=["13a"])["bleu"],
        "sentences": len(pairs),
        "examples": [
            {"source": source, "translation": line, "right": right}
            for source, line, right in list(zip(sources, lines, references, strict=True))[:_SHOWN]
        ],
    }


@contextmanager
def _causal(model: Transformer) -> Iterator[None]:
    """`model` with the causal mask for the block."""
    layers = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    before = [layer.causal for layer in layers]
    for layer in layers:
        layer.causal = True
    try:
        yield
    finally:
        for layer, causal in zip(layers, before, strict=True):
            layer.causal = causal


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    return {
        "perplexity_ratio": each_seed(
            results, lambda rows: rows["mask.off"]["perplexity"] / rows["base"]["perplexity"]
        ),
        "bleu_share": each_seed(results, _share, lacking=f"base translates with less than {LEAST_BLEU:g} BLEU"),
    }


def _share(rows: Mapping[str, Any]) -> float | None:
    without, base = rows["mask.off"]["bleu"], rows["base"]["bleu"]
    return float(without / base) if base >= LEAST_BLEU else None
