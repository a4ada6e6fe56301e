"""Length penalties: what a hypothesis's log probability is divided by before hypotheses are compared."""

from __future__ import annotations

from typing import Literal, TypeVar

from torch import Tensor

Length = TypeVar("Length", float, Tensor)

PenaltyKind = Literal["gnmt", "power"]


def length_penalty(kind: PenaltyKind, length: Length, alpha: float) -> Length:
    """The penalty of hypotheses of `length` pieces, end mark included; 1 everywhere when `alpha` is 0.

    gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, section 7, equation 14; used by Vaswani et al. 2017, section 6.1);
    power: length^alpha. The two can rank a pair of hypotheses differently.
    """
    if kind == "gnmt":
        length = (5.0 + length) / 6.0
    penalty: Length = length**alpha
    return penalty
