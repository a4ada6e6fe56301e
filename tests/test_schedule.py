"""The learning rate against numbers worked out by hand from the paper's formula."""

from __future__ import annotations

import pytest

from repro.training.schedule import learning_rate


def test_the_base_models_rate_peaks_at_the_end_of_the_warm_up() -> None:
    rates = {step: learning_rate(step, d_model=512, warmup_steps=4000) for step in (1, 2, 3999, 4000, 4001, 100_000)}
    assert rates[4000] == pytest.approx(6.9877e-4, rel=1e-4)
    assert rates[4000] == max(rates.values())
    assert rates[1] == pytest.approx(1.7469e-7, rel=1e-4)
    assert rates[2] == pytest.approx(2 * rates[1])
    assert rates[100_000] == pytest.approx(1.39754e-4, rel=1e-4)


def test_width_and_factor_scale_the_rate() -> None:
    base = learning_rate(300, d_model=512, warmup_steps=400)
    assert learning_rate(300, d_model=128, warmup_steps=400) == pytest.approx(2 * base)
    assert learning_rate(300, d_model=512, warmup_steps=400, factor=0.5) == pytest.approx(base / 2)


def test_steps_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        learning_rate(0, d_model=512, warmup_steps=4000)
