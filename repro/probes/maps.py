"""`attention-maps`: where a trained model of any family looks, and how much hangs on it.

Weights are what a model averages with. They are no explanation of what it says: other weights can give the same output,
and what is averaged has been mixed by the layers below.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from repro.config import RunConfig
from repro.data.pieces import BOS, EOS, Batch
from repro.data.prepared import Prepared
from repro.decoding.beam import evaluation_mode
from repro.decoding.scores import score
from repro.decoding.translate import translate_lines
from repro.models.attention import Attention
from repro.models.seq2seq import Seq2Seq
from repro.models.transformer import Transformer
from repro.probes import watching
from repro.probes.figures import Figure, each_seed
from repro.probes.sentences import Pair, batches, pairs_of
from repro.training.evaluation import greedy

PROBE = "attention-maps"

_SENTENCES, _REMOVED, _SHOWN = 40, 60, 2
"""Of the validation side: for the figures of heads, for what a head's removal costs, and to be shown whole."""
_DIGITS = 4

Maps = dict[str, list[Tensor]]
"""Kind of attention to the weights [heads, q_len, k_len] of its layers."""


def attention_maps(model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """Where a trained model looks:

    {"family", "heads": [{"kind" ("encoder", "decoder", "cross", "alignment"), "layer", "head", "entropy" (share of the
    largest over the keys that a query may attend to), "distance" (pieces between a query and what it looks at, in the
    mean; of cross-attention along the diagonal), "likeness" (to the layer's other heads), "bleu_lost" (when it is taken
    away; None: it is the only one or not a Transformer's)}], "bleu" (of the sentences that this is measured on,
    greedy), "sentences": [as `looked_at`]}

    Likeness is 1 - the Jensen-Shannon divergence in units of log 2: 1 for equal weights, 0 for none in common. Entropy
    and likeness leave out queries that may attend to one key alone.
    """
    device = next(model.parameters()).device
    pairs = pairs_of(prepared, "valid", _SENTENCES)
    sums: dict[tuple[str, int, int], _Head] = {}
    for batch in batches(prepared, pairs, device, rows=1):
        for kind, layers in maps_of(model, batch).items():
            for layer, weights in enumerate(layers):
                causal = kind == "decoder" and isinstance(model, Transformer) and model.config.causal_mask
                for head, found in enumerate(figures_of(weights, causal=causal)):
                    sums.setdefault((kind, layer, head), _Head()).add(found)
    costs, bleu = _costs(model, prepared, config)
    heads = [
        {"kind": kind, "layer": layer, "head": head, **found.means(), "bleu_lost": costs.get((kind, layer, head))}
        for (kind, layer, head), found in sums.items()
    ]
    shown = looked_at(model, prepared, config, [pair[0] for pair in _chosen(pairs)])
    return {"family": config.model.family, "heads": heads, "bleu": bleu, "sentences": shown}


def _chosen(pairs: Sequence[Pair]) -> list[Pair]:
    """Sentences to show: of middling length, so that they can be read."""
    by_length = sorted(pairs, key=lambda pair: (len(pair[0].split()), pair))
    return by_length[len(by_length) // 2 :][:_SHOWN]


def looked_at(
    model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig, sources: Sequence[str]
) -> list[dict[str, Any]]:
    """The weights with which the model translates `sources`, blank lines left out:

    [{"source", "translation", "src": [pieces], "tgt": [pieces], "maps": {kind: [layer: [head: [query: [key: weight]]]]}
    }]. Encoder queries and keys are "src", decoder queries "tgt", a step later than what they read; a row sums to 1.
    """
    device, vocabulary = next(model.parameters()).device, prepared.vocabulary()
    lines = [source for source in sources if source.strip()]
    translated = translate_lines(model, vocabulary, lines, config.decode, device=device)
    found = []
    for source, line, hypothesis in zip(lines, translated.lines, translated.hypotheses, strict=True):
        assert hypothesis is not None, "a line that is not blank is translated"
        src, ids = vocabulary.encode([source])[0], list(hypothesis.ids)
        batch = _one(src, ids, device)
        maps = {kind: [_rounded(layer) for layer in layers] for kind, layers in maps_of(model, batch).items()}
        found.append(
            {
                "source": source,
                "translation": line,
                "src": [*vocabulary.texts(src), "</s>"],
                "tgt": [*vocabulary.texts(ids), "</s>"],
                "maps": maps,
            }
        )
    return found


def _one(src: Sequence[int], tgt: Sequence[int], device: torch.device) -> Batch:
    rows = [[*src, EOS], [BOS, *tgt], [*tgt, EOS]]
    source, tgt_in, tgt_out = (torch.tensor([row], dtype=torch.int64, device=device) for row in rows)
    return Batch(source, tgt_in, tgt_out, torch.tensor([len(rows[0])]), torch.tensor([len(rows[2])]))


def _rounded(weights: Tensor) -> list[Any]:
    rows: list[Any] = [
        [[round(value, _DIGITS) for value in row] for row in head] for head in weights.to(torch.float64).tolist()
    ]
    return rows


def maps_of(model: Seq2Seq[Any, Any], batch: Batch) -> Maps:
    """All weights while the model reads `batch`, of one pair without padding. A model without attention has none."""
    assert len(batch.src) == 1
    with torch.no_grad(), evaluation_mode(model):
        if isinstance(model, Transformer):
            maps = model.attention_maps(batch.src, batch.src_mask, batch.tgt_in)._asdict()
            return {kind: [layer[0].float().cpu() for layer in layers] for kind, layers in maps.items()}
        with watching.alignments() as found:
            model(batch.src, batch.src_mask, batch.tgt_in)
    return {"alignment": [weights.cpu() for weights in found]} if found else {}


@dataclass(slots=True)
class _Head:
    """What was found in each sentence that has it."""

    values: dict[str, list[float]] = field(default_factory=lambda: {"entropy": [], "distance": [], "likeness": []})

    def add(self, found: Mapping[str, float | None]) -> None:
        for name, value in found.items():
            if value is not None:
                self.values[name].append(value)

    def means(self) -> dict[str, float | None]:
        return {name: fmean(values) if values else None for name, values in self.values.items()}


def figures_of(weights: Tensor, *, causal: bool) -> list[dict[str, float | None]]:
    """Of each head of one layer's `weights` [heads, q_len, k_len]; see `attention_maps`.

    `causal`: query t may attend to the first t keys only.
    """
    heads, queries, keys = weights.shape
    allowed = torch.arange(1, queries + 1).clamp(max=keys) if causal else torch.full((queries,), keys)
    choosing = allowed > 1
    largest = allowed[choosing].to(weights.dtype).log()
    entropy = (_entropies(weights)[:, choosing] / largest).mean(-1)
    places = torch.arange(keys, dtype=weights.dtype)
    diagonal = torch.arange(queries, dtype=weights.dtype) * ((keys - 1) / max(queries - 1, 1))
    distance = (weights * (places - diagonal[:, None]).abs()).sum(-1).mean(-1)
    likeness = likenesses(weights[:, choosing])
    some = bool(choosing.any())
    return [
        {
            "entropy": float(entropy[head]) if some else None,
            "distance": float(distance[head]),
            "likeness": float(likeness[head]) if some and likeness is not None else None,
        }
        for head in range(heads)
    ]


def likenesses(weights: Tensor) -> Tensor | None:
    """How like each head is to the others of its layer in the mean, [heads] of [heads, q_len, k_len]; None of one."""
    heads = weights.shape[0]
    if heads < 2:
        return None
    total: Tensor = torch.zeros(heads, dtype=torch.float64)
    for one, other in combinations(range(heads), 2):
        p, q = weights[one].double(), weights[other].double()
        middle = (p + q) / 2
        divergence = _entropies(middle) - (_entropies(p) + _entropies(q)) / 2
        alike = 1.0 - divergence.mean() / math.log(2.0)
        total[one] += alike
        total[other] += alike
    return total / (heads - 1)


def _entropies(weights: Tensor) -> Tensor:
    entropies: Tensor = -torch.special.xlogy(weights, weights).sum(-1)
    return entropies


def _costs(
    model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig
) -> tuple[dict[tuple[str, int, int], float], float]:
    """BLEU lost on a part of the validation side when a head is taken away, and the BLEU with all of them."""
    device, pairs = next(model.parameters()).device, pairs_of(prepared, "valid", _REMOVED)
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def bleu() -> float:
        found = translate_lines(model, prepared.vocabulary(), sources, greedy(config.decode), device=device)
        return float(score(found.lines, references, protocols=["13a"])["bleu"])

    whole = bleu()
    costs: dict[tuple[str, int, int], float] = {}
    if isinstance(model, Transformer):
        for kind, layers in attentions(model).items():
            for layer, attention in enumerate(layers):
                for head in range(attention.n_heads):
                    with removed(attention, head):
                        costs[kind, layer, head] = whole - bleu()
    return costs, whole


def attentions(model: Transformer) -> dict[str, list[Attention]]:
    """The attentions of each kind, layer by layer."""
    return {
        "encoder": [layer.attention for layer in model.encoder],  # type: ignore[misc]
        "decoder": [layer.attention for layer in model.decoder],  # type: ignore[misc]
        "cross": [layer.cross for layer in model.decoder],  # type: ignore[misc]
    }


@contextmanager
def removed(attention: Attention, head: int) -> Iterator[None]:
    """While inside, nothing of `head` reaches the layer's output: its columns of W^O are zero."""
    columns = slice(head * attention.d_v, (head + 1) * attention.d_v)
    with torch.no_grad():
        before = attention.out.weight[:, columns].clone()
        attention.out.weight[:, columns] = 0.0
        try:
            yield
        finally:
            attention.out.weight[:, columns] = before


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    return {
        "likeness": each_seed(results, lambda rows: _mean_of(rows["base"], "likeness")),
        "largest_cost": each_seed(results, lambda rows: _largest_cost(rows["base"])),
        "typical_cost": each_seed(results, lambda rows: _median_cost(rows["base"])),
    }


def _mean_of(document: Mapping[str, Any], name: str) -> float | None:
    values = [head[name] for head in document["heads"] if head[name] is not None]
    return math.fsum(values) / len(values) if values else None


def _costs_of(document: Mapping[str, Any]) -> list[float]:
    return sorted(head["bleu_lost"] for head in document["heads"] if head["bleu_lost"] is not None)


def _largest_cost(document: Mapping[str, Any]) -> float | None:
    costs = _costs_of(document)
    return costs[-1] if costs else None


def _median_cost(document: Mapping[str, Any]) -> float | None:
    costs = _costs_of(document)
    return costs[len(costs) // 2] if costs else None
