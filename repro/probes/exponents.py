"""Powers in measured costs: the slope of the logarithms, with its interval. Needs no library beyond Python's own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

_T975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""The 97.5 % points of Student's t at 1 to 10 degrees of freedom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exponent:
    """The p of cost = c * size^p, with its 95 % interval by Student's t."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        """As JSON."""
        return asdict(self)


def power_law(sizes: Sequence[float], costs: Sequence[float]) -> Exponent:
    """Least squares on the logarithms of `costs` over those of `sizes`. Raises ValueError with fewer than three."""
    n = len(sizes)
    if n < 3:
        raise ValueError(f"{n} sizes, an exponent with an interval needs three")
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = math.fsum(x) / n, math.fsum(y) / n
    spread = math.fsum((a - mean_x) ** 2 for a in x)
    slope = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / spread
    left = math.fsum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y, strict=True))
    half = _t975(n - 2) * math.sqrt(left / (n - 2) / spread)
    return Exponent(value=slope, low=slope - half, high=slope + half)


def _t975(degrees: int) -> float:
    return _T975[degrees - 1] if degrees <= len(_T975) else 1.96 + 2.4 / degrees
