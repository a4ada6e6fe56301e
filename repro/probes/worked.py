"""`worked-example`: attention on three tokens, every number on the way, as a page that a teacher can use.

Computed in float64 with plain tensor operations, step by step, and not by the model's own code, which a test holds
against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from repro.models.attention import attend, attention_weights
from repro.probes.figures import Figure, exact

PROBE = "worked-example"

D_K = 2
_TOKENS = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0))
_CHANGED = ((1.0, 0.0), (0.0, 2.0), (1.0, 1.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    id: str
    title: str
    tokens: tuple[tuple[float, ...], ...]
    scaled: bool
    causal: bool = False


_CASES = (
    _Case(id="scaled", title="as in the paper: scores divided by sqrt(d_k)", tokens=_TOKENS, scaled=True),
    _Case(id="unscaled", title="scores not divided", tokens=_TOKENS, scaled=False),
    _Case(id="changed", title="the second embedding doubled: row 2 is [0, 2]", tokens=_CHANGED, scaled=True),
    _Case(
        id="masked",
        title="with the decoder's mask: no token sees a later one",
        tokens=_TOKENS,
        scaled=True,
        causal=True,
    ),
)


def worked_example() -> dict[str, Any]:
    """Every case with its steps.

    {"probe", "d_k", "cases": [{"id", "title", "scale", "steps": [{"id", "symbol", "says", "rows"}]}]}: rows of numbers,
    with None for what the mask takes away.
    """
    return {"probe": PROBE, "d_k": D_K, "cases": [_worked(case) for case in _CASES]}


def measured(_: int) -> dict[str, Any]:
    """The example, and how far the model's own attention is from it: {..., "distance": {case: largest difference}}."""
    found = worked_example()
    return found | {"distance": {case["id"]: _distance(case) for case in found["cases"]}}


def _distance(case: dict[str, Any]) -> float:
    """The largest difference of a weight or an output between the steps and the code that models run."""
    steps = {step["id"]: step["rows"] for step in case["steps"]}
    x, weights_there, outputs_there = (torch.tensor(steps[name]) for name in ("x", "weights", "outputs"))
    causal = "masked" in steps
    weights = attention_weights(x, x, scale=case["scale"], causal=causal)
    outputs = attend(x, x, x, scale=case["scale"], causal=causal)
    return max(float((weights - weights_there).abs().max()), float((outputs - outputs_there).abs().max()))


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    return {"distance": exact(max(results[0]["measured"]["distance"].values()))}


def _worked(case: _Case) -> dict[str, Any]:
    x = torch.tensor(case.tokens, dtype=torch.float64)
    n = x.shape[0]
    scale = 1.0 / math.sqrt(D_K) if case.scaled else 1.0
    steps: list[dict[str, Any]] = []

    def step(id: str, symbol: str, says: str, matrix: torch.Tensor) -> None:
        rows = [[value if math.isfinite(value) else None for value in row] for row in matrix.tolist()]
        steps.append({"id": id, "symbol": symbol, "says": says, "rows": rows})

    step("x", "Q = K = V = X", "one row a token; queries, keys and values are the embeddings themselves", x)
    scores = x @ x.T
    step("scores", "Q K^T", "row i, column j: how well the query of token i fits the key of token j", scores)
    if case.scaled:
        scores = scores * scale
        step("scaled", "Q K^T / sqrt(d_k)", f"every score divided by sqrt({D_K}) = {math.sqrt(D_K):.6f}", scores)
    if case.causal:
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)
        step("masked", "mask", "scores of later tokens are taken away", scores)
    exponentials = torch.exp(scores)
    step("exponentials", "exp", "every score as a power of e", exponentials)
    sums = exponentials.sum(dim=1, keepdim=True)
    step("sums", "row sums", "what each row comes to", sums)
    weights = exponentials / sums
    step("weights", "A = softmax", "each row divided by its sum: from token i to token j, rows add up to 1", weights)
    step("outputs", "A V", "each row the mean of the values by its weights", weights @ x)
    return {"id": case.id, "title": case.title, "scale": scale, "steps": steps}
