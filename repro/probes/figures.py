"""The few numbers of a probe that a claim is about: one value a seed, a value with its interval, or an exact one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figure = dict[str, Any]
"""{"values": [one a seed]}, {"value", "low", "high"} or {"value", "exact": true}."""


def exact(value: float) -> Figure:
    """What is counted, computed or known well enough: another seed would not change what it says."""
    return {"value": value, "exact": True}


def ranged(value: float, low: float, high: float) -> Figure:
    """A value with its 95 % interval."""
    return {"value": value, "low": low, "high": high}


def each_seed(results: Sequence[Mapping[str, Any]], value_of: Callable[[Mapping[str, Any]], float | None]) -> Figure:
    """`value_of` the rows of each seed's result; seeds that lack a row, or give None, are left out."""
    values = []
    for result in results:
        try:
            value = value_of(result["rows"])
        except KeyError:
            continue
        if value is not None:
            values.append(value)
    return {"values": values}
