"""Claims about mechanisms (kind "probe" in `claims.yaml`), and what the figures of a probe say of them.

A figure has a value a seed, a value with its interval, or one that is exact. A part is reproduced when all of the
95 % interval (or the exact value) lies on the claimed side of a number, contradicted when all of it lies on the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import yaml

from reports.claims.catalogue import CLAIMS
from reports.claims.verdicts import State
from reports.formats import counted, significant
from reports.statistics.intervals import mean_interval
from repro.errors import CheckError

Side = Literal["below", "above"]
_KEYS = {"id", "probe", "kind", "sentence", "source", "note", "parts"}
_PART = {"says", "figure", "expect", "of"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One figure of a probe, and on which side of a number it must lie."""

    says: str
    figure: str
    expect: Side
    of: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Mechanism:
    """A statement on why the model works; it holds when all its parts do."""

    id: str
    probe: str
    sentence: str
    source: str
    note: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What became of one part."""

    part: Part
    state: State
    shown: str
    """The figure in words; empty without one."""
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a probe says of one claim."""

    claim: Mechanism
    state: State
    found: tuple[Found, ...]


def load_mechanisms(path: Path = CLAIMS) -> list[Mechanism]:
    """The claims of kind "probe" in `path`. Raises CheckError that names the claim when one is not sound."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [_read(entry, path) for entry in document.get("mechanisms", [])]


def _read(entry: Mapping[str, Any], path: Path) -> Mechanism:
    name = str(entry.get("id", "without an id"))
    wrong = [key for key in entry if key not in _KEYS] + [key for key in sorted(_KEYS - {"note"}) if key not in entry]
    parts = entry.get("parts") or [{}]
    wrong += [key for part in parts for key in _PART.symmetric_difference(part)]
    if not wrong and entry["kind"] != "probe":
        wrong = ["kind"]
    wrong += ["expect" for part in parts if part.get("expect") not in get_args(Side)]
    if wrong:
        raise CheckError(f"claim {name}: {wrong[0]!r} is unknown or missing", where=str(path), fix="correct the claim")
    return Mechanism(
        id=name,
        probe=entry["probe"],
        sentence=entry["sentence"],
        source=entry["source"],
        note=entry.get("note", ""),
        parts=tuple(Part(**{**part, "of": float(part["of"])}) for part in parts),
    )


def judged(probe: str, figures: Mapping[str, Any], claims: Sequence[Mechanism] | None = None) -> list[Judged]:
    """The verdicts on the claims of `probe` from its document's `figures`."""
    return [_judge(claim, figures) for claim in (claims or load_mechanisms()) if claim.probe == probe]


def _judge(claim: Mechanism, figures: Mapping[str, Any]) -> Judged:
    found = tuple(_weigh(part, figures.get(part.figure)) for part in claim.parts)
    states = [part.state for part in found]
    state: State = "inconclusive"
    if "contradicted" in states:
        state = "contradicted"
    elif len(set(states)) == 1:
        state = states[0]
    return Judged(claim=claim, state=state, found=found)


def _weigh(part: Part, figure: Mapping[str, Any] | None) -> Found:
    if figure is None or figure.get("values") == []:
        reason = (figure or {}).get("lacking", "its rows were not measured")
        return Found(part=part, state="not tested", shown="", reason=reason)
    if figure.get("exact"):
        value = float(figure["value"])
        return _decided(part, value, value, _number(value), "taken as it is, without an interval")
    if "value" in figure:
        low, high = float(figure["low"]), float(figure["high"])
        shown = f"{_number(figure['value'])}, 95 % interval {_number(low)} to {_number(high)}"
        return _decided(part, low, high, shown, "over repeated measurements")
    values = [float(value) for value in figure["values"]]
    mean, interval = fmean(values), mean_interval(values)
    if interval is None:
        side = "lies" if _holds(part, mean, mean) else "does not lie"
        reason = f"one run each, so no spread is known; this one {side} on the claimed side"
        return Found(part=part, state="inconclusive", shown=_number(mean), reason=reason)
    shown = f"{_number(mean)}, 95 % interval {_number(interval.low)} to {_number(interval.high)}"
    return _decided(part, interval.low, interval.high, f"{shown}, {counted(len(values), 'seed')}", "over seeds")


def _decided(part: Part, low: float, high: float, shown: str, reason: str) -> Found:
    state: State = "inconclusive"
    if _holds(part, low, high):
        state = "reproduced"
    elif (low >= part.of) if part.expect == "below" else (high <= part.of):
        state = "contradicted"
    else:
        reason = f"the interval holds {_number(part.of)}"
    return Found(part=part, state=state, shown=shown, reason=reason)


def _holds(part: Part, low: float, high: float) -> bool:
    return high < part.of if part.expect == "below" else low > part.of


def _number(value: float) -> str:
    return significant(value)
