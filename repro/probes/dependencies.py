"""The two last columns of the paper's Table 1, computed on the graph of what depends on what in a layer.

A node is a position of the input or of an output; an edge says that the one cannot be computed before the other. The
sequential operations of a layer are the longest chain of edges in it. The maximum path length is the largest number of
edges on the shortest way from an input position to an output position, through as many layers as that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Reads = Callable[[int, int], Sequence[int]]
"""Of a layer's number and an output position: the input positions that it reads, not yet cut to the sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """How the outputs of a kind of layer depend on its inputs, and on each other."""

    reads: Reads
    chained: bool = False
    """Whether each output reads the one before it, too."""


def self_attention(n: int) -> Wiring:
    """Every output reads every input."""
    everything = range(n)
    return Wiring(reads=lambda _layer, _i: everything)


def restricted(r: int) -> Wiring:
    """Every output reads the r inputs around it."""
    return Wiring(reads=lambda _layer, i: range(i - r // 2, i - r // 2 + r))


def recurrent() -> Wiring:
    """Every output reads its input and the output before it."""
    return Wiring(reads=lambda _layer, i: (i,), chained=True)


def convolution(k: int) -> Wiring:
    """Every output reads the k inputs around it."""
    return restricted(k)


def dilated(k: int) -> Wiring:
    """Layer l reads every k^l-th of the inputs up to it, k of them, so that what is seen grows as a power of k."""
    return Wiring(reads=lambda layer, i: [i - j * k**layer for j in range(k)])


def sequential_operations(wiring: Wiring, n: int) -> int:
    """The longest chain of edges in one layer over n positions."""
    depth = [0] * n
    for i in range(n):
        below = [0 for j in wiring.reads(0, i) if 0 <= j < n]
        before = [depth[i - 1]] if wiring.chained and i else []
        depth[i] = 1 + max(below + before)
    return max(depth)


def maximum_path(wiring: Wiring, n: int) -> int:
    """The largest, over all pairs of positions, of the shortest number of edges between an input and an output.

    Found layer by layer from the last input backwards and forwards: a wiring treats positions alike, so the first and
    the last one are the farthest apart. A chained layer is walked within itself, and forwards only, as a reader of one
    direction is.
    """
    steps: dict[int, int] = {0: 0}  # of the positions that the first input has come to: edges on the way
    layer = 0
    while n - 1 not in steps or layer == 0:
        steps = _next(wiring, layer, steps, n)
        layer += 1
        assert layer <= n
    return steps[n - 1]


def _next(wiring: Wiring, layer: int, steps: dict[int, int], n: int) -> dict[int, int]:
    """The positions that one more layer brings it to."""
    found: dict[int, int] = {}
    for i in range(n):
        ways = [steps[j] + 1 for j in wiring.reads(layer, i) if j in steps]
        if wiring.chained and i - 1 in found:
            ways.append(found[i - 1] + 1)
        if ways:
            found[i] = min(ways)
    return found
