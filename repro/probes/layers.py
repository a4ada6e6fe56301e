"""`layers`: what one layer costs in time and memory over length and width, beside the classes of the paper's Table 1.

Two regimes. Throughput: a constant number of tokens, so that the batch shrinks as the length grows and every machine
unit stays busy. Latency: a single sequence, where operations that must follow one another show. Every size is timed in
every round, so that what disturbs a round disturbs all its sizes.

The layers are those of the models here, with their projections, at one width d: self-attention with eight heads, LSTM,
gated convolution (kernel 3); and self-attention restricted to the r = 16 positions around each.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.bench.clock import Clock, pinned
from repro.config import TransformerConfig
from repro.models.attention import SelfAttention, attend
from repro.models.convs2s import Convolution
from repro.models.dropout import RandomSource
from repro.models.recurrent import LstmLayer
from repro.probes import dependencies
from repro.probes.exponents import FITTED, Ranged, over_rounds, power_law
from repro.probes.figures import Figure, exact, ranged
from repro.runs.environment import cpu_model
from repro.training.device import choose_device

PROBE = "layers"
SCHEMA = 2
"""Of the document; 1 had no rounds one by one."""

HEADS = 8
KERNEL = 3
NEIGHBOURS = 16
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WIDTHS = (64, 128, 256, 512)
TOKENS = 4096
"""Tokens of a batch in the regime of throughput."""
ROUNDS = 5
COUNTED = 1024
"""The longest length at which steps and paths are counted, on a graph of so many positions."""
_LENGTH, _WIDTH = 256, 256
"""The length at which widths are compared, and the width at which lengths are."""


class Restricted(SelfAttention):
    """Self-attention in which position i sees only the r positions from i - r/2 (section 4 of the paper)."""

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        """[batch, length, d_model] of `x` of that shape, at a cost linear in the length."""
        q, k, v = self.project(x)
        length, before = x.shape[1], NEIGHBOURS // 2
        pad = (0, 0, before, NEIGHBOURS - 1 - before)
        keys = functional.pad(k, pad).unfold(2, NEIGHBOURS, 1)  # [batch, heads, length, d_k, r]
        values = functional.pad(v, pad).unfold(2, NEIGHBOURS, 1)
        scores = torch.einsum("bhid,bhidr->bhir", q * self.scale, keys)
        position = torch.arange(length, device=x.device)[:, None] + torch.arange(NEIGHBOURS, device=x.device) - before
        inside = (position >= 0) & (position < length)
        weights = torch.softmax(scores.masked_fill(~inside, torch.finfo(scores.dtype).min), dim=-1)
        merged: Tensor = self.out(torch.einsum("bhir,bhidr->bhid", weights, values).transpose(1, 2).flatten(2))
        return merged


class _Core(SelfAttention):
    """What is quadratic in the length, alone: scores, softmax and the mean of the values."""

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        heads = self.split(x)
        return attend(heads, heads, heads, scale=self.scale)


class _Gated(Convolution):
    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(self.gated(self.windows(x, self.kernel // 2)), -1)


class _Recurrent(LstmLayer):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of layer: how it is made at a width, and how its positions depend on each other."""

    id: str
    make: Callable[[int], nn.Module]
    wiring: Callable[[int], dependencies.Wiring]


def _attention(d: int, kind: type[SelfAttention]) -> SelfAttention:
    return kind(TransformerConfig(d_model=d, n_heads=HEADS, n_layers=1, d_ff=d), RandomSource())


def _gated(d: int) -> nn.Module:
    layer = _Gated(d, d, KERNEL)
    layer.gated.initialise(1.0, torch.Generator().manual_seed(0))
    return layer


KINDS = (
    Kind(id="self_attention", make=lambda d: _attention(d, SelfAttention), wiring=dependencies.self_attention),
    Kind(id="recurrent", make=lambda d: _Recurrent(d, d), wiring=lambda _n: dependencies.recurrent()),
    Kind(id="convolutional", make=_gated, wiring=lambda _n: dependencies.convolution(KERNEL)),
    Kind(
        id="self_attention_restricted",
        make=lambda d: _attention(d, Restricted),
        wiring=lambda _n: dependencies.restricted(NEIGHBOURS),
    ),
)
_CORE = Kind(id="self_attention_core", make=lambda d: _attention(d, _Core), wiring=dependencies.self_attention)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One kind of layer at one size, ready to be timed."""

    kind: str
    regime: str
    n: int
    d: int
    batch: int
    forward: Callable[[], Tensor]
    backward: Callable[[Tensor], None]
    saved: int
    """Bytes that the forward pass keeps for the backward pass."""


def points(device: torch.device, lengths: Sequence[int], widths: Sequence[int], tokens: int) -> list[Point]:
    """Every size, run once to warm up: all lengths at one width and all widths at one length, in both regimes."""
    width = _WIDTH if _WIDTH in widths else widths[-1]
    length = _LENGTH if _LENGTH in lengths else lengths[-1]
    sizes = dict.fromkeys([(n, width) for n in lengths] + [(length, d) for d in widths])
    return [
        _point(kind, regime, n, d, max(1, tokens // n) if regime == "throughput" else 1, device)
        for n, d in sizes
        for regime in ("throughput", "latency")
        for kind in (*KINDS, _CORE)
    ]


def _point(kind: Kind, regime: str, n: int, d: int, batch: int, device: torch.device) -> Point:
    layer = kind.make(d).to(device)
    x = torch.empty(batch, n, d, device=device).normal_(generator=torch.Generator(device).manual_seed(n * d))
    x.requires_grad_()

    def backward(y: Tensor) -> None:
        torch.autograd.backward(y, torch.ones_like(y))
        x.grad = None
        layer.zero_grad()

    saved = _saved_bytes(layer, x)
    backward(layer(x))
    return Point(
        kind=kind.id, regime=regime, n=n, d=d, batch=batch, forward=lambda: layer(x), backward=backward, saved=saved
    )


def _saved_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes of distinct storages, parameters apart, that autograd keeps between forward and backward."""
    known = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = layer(x)  # held, so that no storage is freed and its address used again
        total = sum(kept.values())
        del y
    return total


def measured(_: int) -> dict[str, Any]:
    """`measure` on this machine's device, a GPU where there is one."""
    return measure(device=choose_device())


def measure(
    *,
    lengths: Sequence[int] = LENGTHS,
    widths: Sequence[int] = WIDTHS,
    tokens: int = TOKENS,
    rounds: int = ROUNDS,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """Time every layer at every size, `rounds` times (2 or more) over all of them, and fit the exponents.

    {"schema": 2, "probe", "device", "threads", "tokens", "rounds", "lengths", "widths", "kernel", "neighbours",
    "heads", "fitted": sizes a slope is over, "points": [{"layer", "regime", "n", "d", "batch", "forward": s, "both": s,
    "each": [s of both, a round each], "saved_bytes"}], "layers": [{"layer", "exponents": {"n", "d"},
    "latency_exponents": {"n"}, "sequential": {n: steps}, "path": {n: steps}}], "attention_core": {as one of these,
    without the projections}, "dilated": {"sequential", "path"}, "overtakes": [{"regime", "pass", "n"}]}; seconds are
    medians over rounds, on a CPU of the process's CPU time, which other work moves little.
    """
    device = device or torch.device("cpu")
    with pinned():
        threads = torch.get_num_threads()
        todo = points(device, lengths, widths, tokens)
        seconds = [[_timed(point, device) for point in todo] for _ in range(rounds)]
    found = [_document(point, [row[number] for row in seconds]) for number, point in enumerate(todo)]
    counted = [n for n in lengths if n <= COUNTED]
    return {
        "schema": SCHEMA,
        "probe": PROBE,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model() or "a CPU",
        "threads": threads,
        "tokens": tokens,
        "rounds": rounds,
        "lengths": list(lengths),
        "widths": list(widths),
        "heads": HEADS,
        "kernel": KERNEL,
        "neighbours": NEIGHBOURS,
        "fitted": FITTED,
        "points": found,
        "layers": [_layer(kind, found, counted) for kind in KINDS],
        "attention_core": _layer(_CORE, found, counted),
        "dilated": _counts(lambda _n: dependencies.dilated(KERNEL), counted),
        "overtakes": [
            {"regime": regime, "pass": name, "n": overtakes(found, regime, name)}
            for regime in ("throughput", "latency")
            for name in ("forward", "both")
        ],
    }


def _timed(point: Point, device: torch.device) -> tuple[float, float]:
    """Seconds of one forward pass, and of it with the backward pass."""
    clock = Clock(device)
    with clock:
        y = point.forward()
    forward = clock.seconds
    with clock:
        point.backward(y)
    return forward, forward + clock.seconds


def _document(point: Point, seconds: Sequence[tuple[float, float]]) -> dict[str, Any]:
    both = [both for _, both in seconds]
    return {
        "layer": point.kind,
        "regime": point.regime,
        "n": point.n,
        "d": point.d,
        "batch": point.batch,
        "forward": statistics.median(forward for forward, _ in seconds),
        "both": statistics.median(both),
        "each": both,
        "saved_bytes": point.saved,
    }


def _layer(kind: Kind, found: Sequence[dict[str, Any]], counted: Sequence[int]) -> dict[str, Any]:
    mine = [point for point in found if point["layer"] == kind.id]
    throughput = [point for point in mine if point["regime"] == "throughput"]
    latency = [point for point in mine if point["regime"] == "latency"]
    return {
        "layer": kind.id,
        "exponents": {
            "n": _exponent(throughput, "n").document(),
            "d": _exponent(throughput, "d").document(),
        },
        "latency_exponents": {"n": _exponent(latency, "n").document()},
        **_counts(kind.wiring, counted),
    }


def _counts(wiring: Callable[[int], dependencies.Wiring], lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """The two last columns of Table 1 at `lengths`."""
    return {
        "sequential": {str(n): dependencies.sequential_operations(wiring(n), n) for n in lengths},
        "path": {str(n): dependencies.maximum_path(wiring(n), n) for n in lengths},
    }


def _exponent(found: Sequence[dict[str, Any]], size: str) -> Ranged:
    """The power of `size` in the seconds of forward and backward of one sequence, the other size being fixed."""
    other = {"n": "d", "d": "n"}[size]
    sizes = [point[other] for point in found]
    fixed = statistics.mode(sizes)
    line = [point for point in found if point[other] == fixed]
    each = [[seconds / point["batch"] for seconds in point["each"]] for point in line]
    return power_law([point[size] for point in line], list(zip(*each, strict=True)))


def overtakes(found: Sequence[dict[str, Any]], regime: str, name: str) -> float | None:
    """The length from which recurrence is faster than attention, between two lengths measured; None: at none."""
    width = statistics.mode(point["d"] for point in found)
    lines = {
        layer: {
            point["n"]: point[name]
            for point in found
            if point["layer"] == layer and point["regime"] == regime and point["d"] == width
        }
        for layer in ("self_attention", "recurrent")
    }
    lengths = sorted(lines["recurrent"])
    ratios = [lines["self_attention"][n] / lines["recurrent"][n] for n in lengths]
    return crossing(lengths, ratios)


def crossing(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Where the ratio passes 1 from below for good, on straight lines through the logarithms; None: it stays below."""
    if ratios[-1] < 1.0:
        return None
    last = max((i for i, ratio in enumerate(ratios) if ratio < 1.0), default=None)
    if last is None:
        return float(lengths[0])
    low, high = math.log(ratios[last]), math.log(ratios[last + 1])
    share = -low / (high - low)
    return math.exp(math.log(lengths[last]) * (1 - share) + math.log(lengths[last + 1]) * share)


def figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """What the claims are about."""
    bench = results[0]["measured"]
    layers = {layer["layer"]: layer for layer in (*bench["layers"], bench["attention_core"])}
    longest = max(layers["recurrent"]["sequential"], key=int)
    core, recurrent = layers["self_attention_core"]["exponents"]["n"], layers["recurrent"]["latency_exponents"]["n"]
    found = {
        "core_exponent": ranged(**core),
        "recurrent_latency_exponent": ranged(**recurrent),
        "sequential_attention": exact(layers["self_attention"]["sequential"][longest]),
        "sequential_recurrent_a_position": exact(layers["recurrent"]["sequential"][longest] / int(longest)),
        "path_attention": exact(layers["self_attention"]["path"][longest]),
    }
    for regime in ("throughput", "latency"):
        found[f"overtaken.{regime}"] = ranged(**over_rounds(_overtaken(bench, regime)).document())
    return found


def _overtaken(bench: Mapping[str, Any], regime: str) -> list[float]:
    """The length from which recurrence is faster, or the longest without one, as a share of the width: one a round."""
    points, longest = bench["points"], float(max(bench["lengths"]))
    width = statistics.mode(point["d"] for point in points)
    rounds = [[point | {"both": point["each"][round_]} for point in points] for round_ in range(bench["rounds"])]
    return [(overtakes(found, regime, "both") or longest) / width for found in rounds]
