"""The columns of the table in the shape of the paper's Table 3: what was changed, what came out, what was published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reports.cells import Column
from reports.formats import exponent, fixed, plain, power, signed
from reports.measures import Quantity, bleu_on_test, measure, train_flops, valid_perplexity
from reports.paper import PaperRow
from reports.records import Study


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A column that shows one key of the configuration where it is not as in base."""

    column: Column
    key: str
    shown: Callable[[object], str] = plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A column that shows the mean of one quantity over the seeds."""

    column: Column
    quantity: Quantity
    shown: Callable[[float], str]
    same_for_all_seeds: bool = False
    """It follows from the configuration, so a missing seed takes nothing from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A column that shows a number of the paper."""

    column: Column
    number: Callable[[PaperRow], float | None]
    shown: Callable[[float], str]


def _setting(key: str, symbol: str, subscript: str = "", *, hint: str, numeric: bool = True) -> Setting:
    column = Column(key=key, symbol=symbol, subscript=subscript, block="model", numeric=numeric, hint=hint)
    return Setting(column=column, key=key)


_SETTINGS = (
    _setting("model.n_layers", "N", hint="Layers of the encoder and of the decoder each."),
    _setting("model.d_model", "d", "model", hint="Width of the model."),
    _setting("model.d_ff", "d", "ff", hint="Width inside the feed-forward layers."),
    _setting("model.n_heads", "h", hint="Attention heads."),
    _setting("model.d_k", "d", "k", hint="Width of one head's queries and keys."),
    _setting("model.d_v", "d", "v", hint="Width of one head's values."),
    _setting("model.dropout", "P", "drop", hint="Dropout on sub-layer outputs and on embeddings plus positions."),
    _setting("train.label_smoothing", "ε", "ls", hint="Label smoothing."),
    _setting("model.positions", "positions", hint="How the model knows the order of words.", numeric=False),
)

_SCALING = _setting(
    "model.scale_attention", "scaling", hint="Whether attention scores are divided by the root of d_k.", numeric=False
)

BUDGET = _setting("train.budget", "budget", hint="What a run may spend on training.")


def settings_columns(study: Study) -> list[Setting]:
    """The columns of what was changed; attention scaling has one only if some row changes it."""
    varied = {key for variant in study.variants for key in variant.changes}
    return [*_SETTINGS, *([_SCALING] if _SCALING.key in varied else [])]


def quality_columns() -> list[Measured]:
    """Perplexity on the validation side, as in Table 3, and BLEU on the test side."""
    return [
        Measured(
            column=Column(
                key="perplexity",
                symbol="PPL",
                subscript="valid",
                unit="per piece",
                hint="exp of the mean negative log-likelihood a piece on the validation side, without smoothing.",
            ),
            quantity=valid_perplexity,
            shown=lambda value: fixed(value, 2),
        ),
        Measured(
            column=Column(
                key="bleu", symbol="BLEU", subscript="test", unit="13a", hint="sacreBLEU, 13a, cased, on the test side."
            ),
            quantity=bleu_on_test,
            shown=lambda value: fixed(value, 1),
        ),
    ]


DIFFERENCE = Column(
    key="difference",
    symbol="Δ BLEU",
    unit="to base",
    hint="BLEU minus that of base with the same seed, averaged over the seeds that both have.",
)


def cost_columns(study: Study) -> list[Measured]:
    """Parameters, training FLOPs, training seconds and speed, in units that suit the study."""
    flops_power = exponent(_means(study, train_flops))
    parameters = _means(study, lambda run: run.number("parameters"))
    digits = 3 if min(parameters, default=1e9) < 1e6 else 2
    return [
        Measured(
            column=Column(key="parameters", symbol="params", unit=f"×{power(6)}", hint="Trained numbers, each once."),
            quantity=lambda run: run.number("parameters"),
            shown=lambda value: fixed(value / 1e6, digits),
            same_for_all_seeds=True,
        ),
        Measured(
            column=Column(
                key="flops",
                symbol="FLOPs",
                subscript="train",
                unit=f"our count, ×{power(flops_power)}",
                hint="Operations in matrix products, forward and backward, padding left out; a multiply-add is two.",
            ),
            quantity=train_flops,
            shown=lambda value: fixed(value / 10.0**flops_power, 2),
        ),
        Measured(
            column=Column(
                key="seconds", symbol="time", subscript="train", unit="s", hint="Seconds of training; evaluation apart."
            ),
            quantity=lambda run: run.number("train_seconds"),
            shown=lambda value: fixed(value, 0 if value >= 100 else 1),
        ),
        Measured(
            column=Column(
                key="speed",
                symbol="speed",
                unit="target tokens/s",
                hint="Target tokens trained on a second, no padding.",
            ),
            quantity=lambda run: run.number("target_tokens_per_second"),
            shown=lambda value: fixed(value, 0),
        ),
    ]


def _means(study: Study, quantity: Quantity) -> list[float]:
    means = [measure(runs, quantity).mean for runs in study.by_variant.values()]
    return [mean for mean in means if mean is not None]


def paper_columns() -> list[Published]:
    """What the paper printed for the same row of its Table 3."""
    return [
        Published(
            column=Column(
                key="paper.perplexity", symbol="PPL", subscript="dev", unit="per piece", block="paper", hint=_PAPER
            ),
            number=lambda row: row.perplexity,
            shown=lambda value: fixed(value, 2),
        ),
        Published(
            column=Column(
                key="paper.bleu", symbol="BLEU", subscript="dev", unit="tokenised", block="paper", hint=_PAPER
            ),
            number=lambda row: row.bleu,
            shown=lambda value: fixed(value, 1),
        ),
        Published(
            column=Column(key="paper.difference", symbol="Δ BLEU", unit="to base", block="paper", hint=_PAPER),
            number=lambda row: row.bleu_difference,
            shown=lambda value: signed(value, 1),
        ),
        Published(
            column=Column(key="paper.parameters", symbol="params", unit=f"×{power(6)}", block="paper", hint=_PAPER),
            number=lambda row: row.parameters,
            shown=lambda value: fixed(value, 0),
        ),
    ]


_PAPER = "As printed in Table 3 of the paper: WMT 2014 English-German, newstest2013."

DIRECTION = Column(
    key="direction",
    symbol="direction",
    block="paper",
    numeric=False,
    hint="same or opposite: every seed moved from base with, or against, the published difference; mixed: seeds "
    "disagree; none: no seed moved by 0.05 BLEU.",
)
