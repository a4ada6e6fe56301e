"""Length penalties: what a hypothesis's log probability is divided by before hypotheses are compared."""

from __future__ import annotations

from typing import Literal

PenaltyKind = Literal["gnmt", "power"]


def length_penalty(kind: PenaltyKind, length: int, alpha: float) -> float:
    """The penalty of a hypothesis of `length` pieces, at least 1, end mark included; 1 for any when `alpha` is 0.

    gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, section 7, equation 14; used by Vaswani et al. 2017, section 6.1);
    power: length^alpha. The two can rank a pair of hypotheses differently.
    """
    base = (5 + length) / 6 if kind == "gnmt" else length
    penalty: float = base**alpha
    return penalty
