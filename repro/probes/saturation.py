"""`softmax-saturation`: what dividing the scores by sqrt(d_k) does to the softmax (section 3.2.1 of the paper).

For queries and keys of independent unit-variance components a score has the variance d_k; divided by sqrt(d_k) 1;
divided by d_k 1/d_k. The larger the variance, the nearer the softmax comes to picking one key, and the less gradient
passes through it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from repro.config import RunConfig
from repro.data.prepared import Prepared
from repro.decoding.beam import evaluation_mode
from repro.models.attention import Attention
from repro.models.seq2seq import Seq2Seq
from repro.probes import watching
from repro.probes.figures import Figure, each_seed, exact
from repro.probes.sentences import batches, pairs_of
from repro.seeds import derive_seed

PROBE = "softmax-saturation"

WIDTHS = tuple(2**power for power in range(11))
"""d_k from 1 to 1024."""
KEYS = 64
"""Keys that each query attends to: a long sentence."""

Scaling = Literal["sqrt", "d_k", "none"]
SCALINGS: tuple[Scaling, ...] = ("sqrt", "d_k", "none")

_COMPONENTS = 1 << 18
"""Query components drawn for a width: what queries and keys are drawn from is then known to about 0.3 %."""
_LEAST_QUERIES = 1 << 10
_AT_ONCE = 1 << 22
"""Key components held at once."""


def factor(scaling: Scaling, d_k: int) -> float:
    """What scores are multiplied with."""
    return {"sqrt": 1.0 / math.sqrt(d_k), "d_k": 1.0 / d_k, "none": 1.0}[scaling]


def closed_form(scaling: Scaling, d_k: int) -> float:
    """The variance of a score for independent components of unit variance."""
    return factor(scaling, d_k) ** 2 * d_k


@dataclass(slots=True)
class _Sums:
    """Running sums over queries of what is measured."""

    queries: int = 0
    square: float = 0.0
    square_of_means: float = 0.0
    entropy: float = 0.0
    top: float = 0.0
    gradients: list[Tensor] = field(default_factory=list)

    def add(self, scores: Tensor, generator: torch.Generator) -> None:
        """Take in `scores` [queries, KEYS]."""
        self.queries += scores.shape[0]
        squares = scores.square().mean(dim=1)
        self.square += float(squares.sum())
        self.square_of_means += float(squares.square().sum())
        found = softmax_figures(scores, generator)
        self.entropy += float(found.entropy.sum())
        self.top += float(found.top.sum())
        self.gradients.append(found.gradient)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of each query, [...]."""

    entropy: Tensor
    """Of its weights, as a share of log(number of keys): 1 uniform, 0 one key alone."""
    top: Tensor
    """Its largest weight."""
    gradient: Tensor
    """Norm of what reaches its scores when a gradient of independent unit-variance components meets its weights."""


def softmax_figures(scores: Tensor, generator: torch.Generator) -> Figures:
    """The softmax of `scores` [..., keys] and the gradient through it, by backpropagation."""
    scores = scores.detach().requires_grad_()
    with torch.enable_grad():
        weights = torch.softmax(scores, dim=-1)
        upstream = torch.empty_like(weights).normal_(generator=generator)
        (gradient,) = torch.autograd.grad(weights, scores, upstream)
    weights = weights.detach()
    entropy = -torch.special.xlogy(weights, weights).sum(dim=-1) / math.log(scores.shape[-1])
    return Figures(entropy=entropy, top=weights.amax(dim=-1), gradient=gradient.norm(dim=-1))


def at_initialisation(seed: int) -> list[dict[str, Any]]:
    """For every width and scaling, with random queries and keys:

    {"d_k", "scaling", "variance", "variance_error" (one standard error), "closed_form", "entropy", "top_weight",
    "gradient" (median of the norm), "gradient_rms"}. The same queries and keys for each scaling. The two differ where
    most queries are saturated and a few are not.
    """
    return [row for d_k in WIDTHS for row in _of_width(d_k, seed)]


def _of_width(d_k: int, seed: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(derive_seed(PROBE, seed, d_k))
    queries = max(_LEAST_QUERIES, _COMPONENTS // d_k)
    chunk = max(1, _AT_ONCE // (KEYS * d_k))
    sums = {scaling: _Sums() for scaling in SCALINGS}
    for start in range(0, queries, chunk):
        count = min(chunk, queries - start)
        q = torch.empty(count, 1, d_k).normal_(generator=generator)
        k = torch.empty(count, KEYS, d_k).normal_(generator=generator)
        scores = (q * k).sum(dim=-1)
        for scaling in SCALINGS:
            sums[scaling].add(scores * factor(scaling, d_k), generator)
    return [_row(d_k, scaling, sums[scaling]) for scaling in SCALINGS]


def _row(d_k: int, scaling: Scaling, sums: _Sums) -> dict[str, Any]:
    n, gradients = sums.queries, torch.cat(sums.gradients)
    variance = sums.square / n  # the mean is 0 by construction
    spread = max(sums.square_of_means / n - variance**2, 0.0)
    return {
        "d_k": d_k,
        "scaling": scaling,
        "variance": variance,
        "variance_error": math.sqrt(spread / n),
        "closed_form": closed_form(scaling, d_k),
        "entropy": sums.entropy / n,
        "top_weight": sums.top / n,
        "gradient": float(gradients.median()),
        "gradient_rms": float(gradients.square().mean().sqrt()),
    }


def measured(seed: int) -> dict[str, Any]:
    """What needs no trained model: {"keys", "initial": as `at_initialisation`}."""
    return {"keys": KEYS, "initial": at_initialisation(seed)}


# In trained models.

_SENTENCES = 48
"""Of the validation side, each in a batch of its own, so that no query is of padding."""


def inside(model: Seq2Seq[Any, Any], prepared: Prepared, config: RunConfig) -> dict[str, Any]:
    """The same figures for every attention of a trained Transformer, over sentences of the validation side.

    {"d_k", "scaled", "layers": [{"layer" (its name in the model), "variance" (of a query's scores over the keys that it
    may attend to), "entropy", "top_weight", "gradient"}]}: means over queries, heads and sentences; queries that may
    attend to one key alone are left out.
    """
    names = {module: name for name, module in model.named_modules() if isinstance(module, Attention)}
    sums = {name: _Layer() for name in names.values()}
    generator = torch.Generator().manual_seed(derive_seed(PROBE, "inside", config.seed))

    def saw(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> None:
        scores = torch.matmul(q * layer.scale, k.transpose(-2, -1)).cpu()
        allowed = torch.ones_like(scores, dtype=torch.bool)
        if causal:
            allowed = allowed.tril()
        elif mask is not None:
            allowed &= mask.cpu()
        sums[names[layer]].add(scores, allowed, generator)

    device = next(model.parameters()).device
    with torch.no_grad(), evaluation_mode(model), watching.attention(saw):
        for batch in batches(prepared, pairs_of(prepared, "valid", _SENTENCES), device, rows=1):
            model(batch.src, batch.src_mask, batch.tgt_in)
    assert sums, "a Transformer has attention"
    layer = next(iter(names))
    return {
        "d_k": layer.d_k,
        "scaled": layer.scale != 1.0,
        "layers": [{"layer": name, **found.means()} for name, found in sums.items()],
    }


@dataclass(slots=True)
class _Layer:
    """Running sums over the queries of one attention."""

    queries: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, scores: Tensor, allowed: Tensor, generator: torch.Generator) -> None:
        """Take in `scores` [1, n_heads, q_len, k_len], of which those `allowed` count."""
        for query in range(scores.shape[2]):
            seen = allowed[0, 0, query].nonzero().squeeze(1)
            if len(seen) > 1:
                row = scores[0, :, query, seen]
                found = softmax_figures(row, generator)
                self.queries += len(row)
                parts = {
                    "variance": row.var(dim=1, correction=0),
                    "entropy": found.entropy,
                    "top_weight": found.top,
                    "gradient": found.gradient,
                }
                for name, values in parts.items():
                    self.sums[name] = self.sums.get(name, 0.0) + float(values.sum())

    def means(self) -> dict[str, float]:
        """Over all queries."""
        return {name: total / max(self.queries, 1) for name, total in self.sums.items()}


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    measured = [row for result in results for row in result["measured"]["initial"]]
    widest = [row for row in measured if row["d_k"] == WIDTHS[-1]]
    gradient = {name: [row["gradient"] for row in widest if row["scaling"] == name] for name in SCALINGS}
    found = {
        "variance_off": exact(max(abs(row["variance"] / row["closed_form"] - 1) for row in measured)),
        "gradient_unscaled": exact(max(gradient["none"]) / min(gradient["sqrt"])),
    }
    pairs = {"": ("base", "scaling.off"), "_4x": ("scaling.dk-4x", "scaling.dk-4x-off")}
    for name, (scaled, plain) in pairs.items():
        found["entropy_lost" + name] = each_seed(
            results,
            lambda rows, a=scaled, b=plain: _entropy(rows[a]) - _entropy(rows[b]),  # type: ignore[misc]
        )
    return found


def _entropy(document: Mapping[str, Any]) -> float:
    layers = document["layers"]
    return math.fsum(layer["entropy"] for layer in layers) / len(layers)
