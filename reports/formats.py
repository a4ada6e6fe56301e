"""Numbers as readers expect them: tabular, with real minus signs, narrow blanks between thousands and named units."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime

NARROW_BLANK = "\u202f"
MINUS = "\u2212"
DASH = "\u2013"
_TINY = 1e-4
"""Below this a number is told as a mantissa and a power of ten where digits count."""
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def fixed(value: float, digits: int) -> str:
    """`value` with `digits` decimals, thousands set apart, and never a negative zero: 12 345.6."""
    text = f"{value:,.{digits}f}".replace(",", NARROW_BLANK).replace("-", MINUS)
    return text.removeprefix(MINUS) if not any(digit in text for digit in "123456789") else text


def signed(value: float, digits: int) -> str:
    """`value` with its sign; what rounds to zero has none: +0.3, −1.2, 0.0."""
    text = fixed(value, digits)
    positive = value > 0 and any(digit in text for digit in "123456789")
    return f"+{text}" if positive else text


def exponent(values: Iterable[float]) -> int:
    """The power of ten that a column of `values` is given in: that of the smallest positive one, 0 without any."""
    positive = [value for value in values if value > 0]
    return math.floor(math.log10(min(positive))) if positive else 0


def power(exponent_: int) -> str:
    """10 to the power `exponent_`: 10¹⁵."""
    return "10" + str(exponent_).translate(_RAISED)


def scientific(value: float, digits: int = 2) -> str:
    """`value` as a mantissa and a power of ten: 3.28×10¹⁸. Plain below ten thousand."""
    if abs(value) < 1e4:
        return fixed(value, 0)
    mantissa, exp = f"{value:.{digits}e}".split("e")
    return f"{mantissa.replace('-', MINUS)}×{power(int(exp))}"


def plain(value: object) -> str:
    """A setting as it stands in a table: 0.1, 512, on, none, 100 000."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        number = float(value)
        if number.is_integer() and abs(number) < 1e9:
            return fixed(number, 0) if abs(number) >= 10_000 else str(int(number)).replace("-", MINUS)
        return scientific(number) if abs(number) >= 1e9 else f"{number:g}".replace("-", MINUS)
    return "none" if value is None else str(value)


def significant(value: float, digits: int = 3) -> str:
    """`value` with so many significant digits: 0.298, 12.5, 2.7×10⁻⁷."""
    if value and abs(value) < _TINY:
        mantissa, exp = f"{value:.{digits - 1}e}".split("e")
        return f"{plain(float(mantissa))}×{power(int(exp))}"
    return plain(float(f"{value:.{digits}g}"))


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it: 42 s, 3.5 min, 1.4 h, 3.5 days."""
    for unit, size, until in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if seconds < until:
            return f"{fixed(seconds / size, 0 if unit == 's' else 1)} {unit}"
    return f"{fixed(seconds / 86_400, 1)} days"


def share(value: float) -> str:
    """A share of one as per cent: 98.2 %."""
    return f"{fixed(100 * value, 1)} %"


def times(ratio: float) -> str:
    """How many times larger: two significant digits, 1.3 or 120 or 45 000."""
    if ratio < 10:
        return fixed(ratio, 1)
    digits = math.floor(math.log10(ratio)) - 1
    return fixed(round(ratio / 10**digits) * 10**digits, 0)


def counted(number: int, singular: str, plural: str = "") -> str:
    """A number with its noun: 1 run, 3 runs."""
    return f"{fixed(number, 0)} {singular if number == 1 else plural or singular + 's'}"


def listed(items: list[str]) -> str:
    """Words in a row: a, b and c."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def moment(text: str) -> str:
    """An ISO 8601 moment as a reader writes it: 2026-01-31 12:00 UTC; any other text as it is."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        return text
    if read.tzinfo is not None:
        return read.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return read.strftime("%Y-%m-%d %H:%M")
