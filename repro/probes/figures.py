"""The few numbers of a probe that a claim is about: one value a seed, a value with its interval, or an exact one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figure = dict[str, Any]
"""{"values": [one a seed], "lacking" (why there is none)}, {"value", "low", "high"} or {"value", "exact": true}."""


def exact(value: float) -> Figure:
    """What is counted, computed or known well enough: another seed would not change what it says."""
    return {"value": value, "exact": True}


def ranged(value: float, low: float, high: float) -> Figure:
    """A value with its 95 % interval."""
    return {"value": value, "low": low, "high": high}


LEAST_BLEU = 10.0
"""BLEU of a model that translates well enough for what it loses to say anything; as for the claims on tables."""


def each_seed(
    results: Sequence[Mapping[str, Any]], value_of: Callable[[Mapping[str, Any]], float | None], *, lacking: str = ""
) -> Figure:
    """`value_of` the rows of each seed's result; seeds that lack a row, or give None, are left out.

    `lacking` says why `value_of` gives None; it is told where no seed has a value and not all lack a row.
    """
    values, refused = [], False
    for result in results:
        try:
            value = value_of(result["rows"])
        except KeyError:
            continue
        if value is not None:
            values.append(value)
        refused |= value is None
    return {"values": values, "lacking": lacking} if refused and not values and lacking else {"values": values}
