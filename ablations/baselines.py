"""The rows that the paper compares with: other families, as large or as costly as the base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from repro.accounting.flops import forward_flops
from repro.accounting.parameters import parameters
from repro.accounting.sizing import TYPICAL, sized, sized_by_flops
from repro.config import RunConfig, TransformerConfig
from repro.config.baselines import (
    BaselineConfig,
    BaselineFamily,
    ConvS2SConfig,
    GnmtConfig,
    LstmAttentionConfig,
    LstmConfig,
    small,
)
from repro.config.tuning import recommended_training
from repro.errors import UsageError

PUBLISHED: dict[BaselineFamily, BaselineConfig] = {
    "lstm": LstmConfig(),
    "lstm-attention": LstmAttentionConfig(),
    "gnmt": GnmtConfig(),
    "convs2s": ConvS2SConfig(),
}
"""Each family as its own paper had it."""


def as_large(family: BaselineFamily) -> Callable[[RunConfig], RunConfig]:
    """The row of `family` with about as many parameters as the base; at `paper` scale with its published sizes."""

    def apply(base: RunConfig) -> RunConfig:
        if base.scale == "paper":
            return _trained_as_suits(base, PUBLISHED[family])
        pieces = base.data.vocabulary_size
        target = parameters(_transformer(base), pieces)
        return _trained_as_suits(
            base, sized(family, target_parameters=target, vocabulary_size=pieces, template=_template(base, family))
        )

    return apply


def as_costly(family: BaselineFamily) -> Callable[[RunConfig], RunConfig]:
    """The row of `family` with about as many training FLOPs a token as the base."""

    def apply(base: RunConfig) -> RunConfig:
        pieces = base.data.vocabulary_size
        target = forward_flops(_transformer(base), pieces, TYPICAL).total
        return _trained_as_suits(
            base, sized_by_flops(family, target_flops=target, vocabulary_size=pieces, template=_template(base, family))
        )

    return apply


def _template(base: RunConfig, family: BaselineFamily) -> BaselineConfig:
    """What is widened or narrowed: the published shape at `paper` scale, the small one elsewhere."""
    template = PUBLISHED[family] if base.scale == "paper" else small(family)
    if isinstance(template, ConvS2SConfig):
        return replace(template, max_positions=_transformer(base).max_positions)
    return template


def _transformer(base: RunConfig) -> TransformerConfig:
    if not isinstance(base.model, TransformerConfig):
        raise UsageError("this row is sized by a Transformer, the base is another family", where="model.family")
    return base.model.resolved()


def _trained_as_suits(base: RunConfig, model: BaselineConfig) -> RunConfig:
    return replace(base, model=model, train=recommended_training(model, base.train))
