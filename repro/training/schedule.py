"""The learning rate of the paper (Vaswani et al. 2017, section 5.3, eq. 3)."""

from __future__ import annotations


def learning_rate(step: int, *, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), for `step` counted from 1.

    Linear growth over the first `warmup_steps` updates, then the inverse square root; 6.99e-4 at the peak of the base
    model. Raises ValueError for a step before the first.
    """
    if step < 1:
        raise ValueError(f"step {step}: updates are counted from 1")
    rate: float = factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate
