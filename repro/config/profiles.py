"""Named sets of options: the base as the authors' own code had it, where that is not the paper's text.

A profile sets every option on which paper, first code and toolkits disagree, the ones that are the paper's included.
Sizes, dropout, batch and budget stay the scale's; a warm-up is a multiple of the scale's, which at the scale `paper` is
the published 4000 steps. Each value was read in the code named as its source.

No option covers this: that code also adds one learned vector, which names the target language, to every source
position; and the first code draws the packed matrices of self-attention's queries, keys and values, and of the memory's
keys and values, as one matrix each, from a range narrower by the root of 2 and of 1.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repro.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One option of a profile."""

    key: str
    """Dotted, as `--set` takes it."""
    value: str = ""
    """As `--set` takes it; empty where `times` says it."""
    times: float | None = None
    """The base's own value times this."""
    source: str
    """Where the authors' code says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Options that are set together."""

    name: str
    title: str
    settings: tuple[Setting, ...]


_LAYERS = "common_layers.py"
_ATTENTION = "common_attention.py"
_TRANSFORMER = "transformer.py"
_BEAM = "beam_search.py"

_COMMON = (
    Setting(key="model.positions", value="sinusoidal", source=f'{_TRANSFORMER}: pos = "timing"'),
    Setting(
        key="model.sinusoid_layout",
        value="concatenated",
        source=f"{_ATTENTION}, add_timing_signal_1d: sines, then cosines, log-spaced over d/2 - 1 steps",
    ),
    Setting(
        key="model.scale_attention",
        value="true",
        source=f"{_ATTENTION}, multihead_attention: queries times key_depth_per_head ** -0.5",
    ),
    Setting(key="model.attention_bias", value="true", source=f"{_ATTENTION}: projections are conv1d with its bias"),
    Setting(
        key="train.label_smoothing_kind",
        value="exclude_gold",
        source=f"{_LAYERS}, smoothing_cross_entropy: the rest shared by vocab_size - 1 pieces",
    ),
    Setting(key="train.adam_beta1", value="0.9", source=f"{_TRANSFORMER}: optimizer_adam_beta1"),
    Setting(key="train.adam_beta2", value="0.98", source=f"{_TRANSFORMER}: optimizer_adam_beta2"),
    Setting(key="train.adam_eps", value="1e-9", source=f"{_TRANSFORMER}: optimizer_adam_epsilon"),
    Setting(key="train.clip_norm", value="0", source=f"{_TRANSFORMER}: clip_grad_norm"),
    Setting(key="decode.length_penalty", value="gnmt", source=f"{_BEAM}: ((5 + length) / 6) ** alpha, its own formula"),
)

_FIRST = Profile(
    name="tensor2tensor-2017-06",
    title="the authors' first code, tensor2tensor of 15 June 2017 (transformer_base)",
    settings=(
        Setting(key="model.norm", value="post", source=f"{_TRANSFORMER}, residual_fn: layer_norm(x + dropout(y))"),
        Setting(key="model.attention_dropout", value="0", source=f"{_TRANSFORMER}: attention_dropout = 0.0"),
        Setting(key="model.activation_dropout", value="0", source=f"{_TRANSFORMER}: relu_dropout = 0.0"),
        *_COMMON,
    ),
)

_V2 = Profile(
    name="tensor2tensor-v2",
    title="tensor2tensor's second set of options (transformer_base_v2)",
    settings=(
        Setting(
            key="model.norm",
            value="pre",
            source=f'{_TRANSFORMER}, transformer_base_v2: layer_preprocess_sequence = "n", postprocess "da"',
        ),
        Setting(
            key="model.attention_dropout",
            value="0.1",
            source=f"{_TRANSFORMER}, transformer_base_v2: attention_dropout = 0.1",
        ),
        Setting(
            key="model.activation_dropout",
            value="0.1",
            source=f"{_TRANSFORMER}, transformer_base_v2: relu_dropout = 0.1",
        ),
        *_COMMON,
        Setting(
            key="train.warmup_steps",
            times=2,
            source=f"{_TRANSFORMER}, transformer_base_v2: learning_rate_warmup_steps = 8000, 4000 before",
        ),
        Setting(
            key="train.learning_rate_factor",
            times=2,
            source=f"{_TRANSFORMER}, transformer_base_v2: learning_rate = 0.2, 0.1 before (which is the paper's 1)",
        ),
    ),
)

PROFILES: dict[str, Profile] = {profile.name: profile for profile in (_FIRST, _V2)}
"""Every profile by name."""


def profile_settings(name: str, base: Mapping[str, Any]) -> tuple[str, ...]:
    """The `key=value` texts of the profile `name`, to be laid over the configuration whose document is `base`.

    Raises UsageError for a name that there is not.
    """
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}", where="--profile", fix="known: " + ", ".join(PROFILES))
    return tuple(_text(setting, base) for setting in PROFILES[name].settings)


def _text(setting: Setting, base: Mapping[str, Any]) -> str:
    if setting.times is None:
        return f"{setting.key}={setting.value}"
    value: Any = base
    for part in setting.key.split("."):
        value = value[part]
    return f"{setting.key}={value * setting.times:g}"
