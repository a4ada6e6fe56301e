"""What a check is: a claim about this installation, what stands for it in the paper, and what the code came to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str | Sequence[Any]
"""What is expected or found: plain numbers, words, or lists of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One claim with its outcome. `expected` and `got` are plain values, fit for JSON."""

    id: str
    """`group.name`; a group's checks stand together."""
    what: str
    expected: Value
    got: Value
    """What the code came to; an error's kind and text where it raised one."""
    source: str
    """Where `expected` comes from: never from the code under test."""
    ok: bool

    @property
    def group(self) -> str:
        """The first part of the id."""
        return self.id.split(".", maxsplit=1)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A check that has not been made yet."""

    id: str
    what: str
    source: str
    expected: Callable[[], Value]
    got: Callable[[], Value]
    agrees: Callable[[Any, Any], bool]
    """Whether what was found (second) is as expected (first)."""
    shown: Callable[[Any], Value]
    """What is expected, in the form that a reader sees."""

    def check(self) -> Check:
        """Look whether it holds. An error on the way is a failed check, with the error as what was got."""
        expected: Value = "?"
        try:
            wanted = self.expected()
            expected = plain(self.shown(wanted))
            found = self.got()
            got, ok = plain(found), bool(self.agrees(wanted, found))
        except Exception as error:
            got, ok = f"{type(error).__name__}: {error}", False
        return Check(id=self.id, what=self.what, expected=expected, got=got, source=self.source, ok=ok)


def equal(id: str, what: str, *, source: str, expected: Value | Callable[[], Value], got: Callable[[], Value]) -> Claim:
    """What is got is exactly what is expected (a value, or a function that computes it)."""
    return Claim(
        id=id, what=what, source=source, expected=_later(expected), got=got, agrees=_same, shown=lambda value: value
    )


def near(
    id: str,
    what: str,
    *,
    source: str,
    expected: Value | Callable[[], Value],
    got: Callable[[], Value],
    within: float,
) -> Claim:
    """Every number of what is got lies within `within` of the one expected."""

    def agrees(wanted: Value, found: Value) -> bool:
        pairs = list(zip(_numbers(wanted), _numbers(found), strict=True))
        return bool(pairs) and all(abs(a - b) <= within for a, b in pairs)

    return Claim(
        id=id, what=what, source=source, expected=_later(expected), got=got, agrees=agrees, shown=lambda value: value
    )


def at_most(id: str, what: str, *, source: str, limit: float, got: Callable[[], float]) -> Claim:
    """What is got (a difference, an error) is at most `limit`."""
    return Claim(
        id=id,
        what=what,
        source=source,
        expected=lambda: limit,
        got=got,
        agrees=lambda bound, found: found <= bound,
        shown=lambda bound: f"at most {bound:g}",
    )


def at_least(id: str, what: str, *, source: str, limit: float, got: Callable[[], float]) -> Claim:
    """What is got (an effect that must be seen) is at least `limit`."""
    return Claim(
        id=id,
        what=what,
        source=source,
        expected=lambda: limit,
        got=got,
        agrees=lambda bound, found: found >= bound,
        shown=lambda bound: f"at least {bound:g}",
    )


def plain(value: Value) -> Value:
    """`value` fit for JSON and for a reader: floats of seven digits, numbers that are none as words, lists as lists."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return [plain(part) for part in value]


def _later(value: Value | Callable[[], Value]) -> Callable[[], Value]:
    return value if callable(value) else lambda: value


def _same(a: Any, b: Any) -> bool:
    return bool(a == b)


def _numbers(value: Value) -> list[float]:
    if isinstance(value, str):
        raise TypeError(f"{value!r} is no number")
    if isinstance(value, bool | int | float):
        return [float(value)]
    return [number for part in value for number in _numbers(part)]
