"""Scales: what is frozen there and what the issue asks of them."""

from __future__ import annotations

import pytest

from ablations.scales import SCALES, scale_of
from repro.config import RunConfig, TransformerConfig
from repro.errors import UsageError


def test_the_paper_scale_is_the_paper() -> None:
    base = scale_of("paper").base
    assert base.model == TransformerConfig()
    assert base.train == RunConfig().train
    assert (base.train.batch_tokens, base.train.budget, base.train.warmup_steps) == (25_000, 100_000, 4000)
    assert base.data.vocabulary_size == 40_960
    assert (base.decode.beam, base.decode.alpha, base.decode.extra_length) == (4, 0.6, 50)


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_carries_its_own_name_and_no_seed_or_variant(name: str) -> None:
    base = scale_of(name).base
    assert (base.scale, base.variant, base.seed, base.data.digest) == (name, "base", 1, "")


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_is_read_back_from_its_document(name: str) -> None:
    base = scale_of(name).base
    assert RunConfig.read(base.document()) == base


@pytest.mark.parametrize("name", SCALES)
def test_lengths_are_consistent(name: str) -> None:
    text = scale_of(name).statistics
    assert text.src_src >= text.src**2, "a mean square is at least the square of the mean"
    assert text.tgt_tgt >= text.tgt**2
    assert text.src_tgt**2 <= text.src_src * text.tgt_tgt, "Cauchy-Schwarz"
    assert 0.5 < text.fill <= 1.0


def test_the_nearest_scale_is_named() -> None:
    with pytest.raises(UsageError, match="multi30k"):
        scale_of("multi30")
