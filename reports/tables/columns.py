"""The columns of the table in the shape of the paper's Table 3: what was changed, what came out, what was published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from reports.formats import DASH, exponent, fixed, plain, power, signed
from reports.records.machines import kind
from reports.records.paper import PaperRow
from reports.records.study import Run, Study
from reports.statistics.budgets import Budget, difference_at, measure_at
from reports.statistics.measures import (
    Measure,
    Quantity,
    bleu_on_test,
    difference,
    measure,
    train_flops,
    valid_perplexity,
)
from reports.tables.cells import Cell, Column
from reports.tables.marks import MACHINES


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
    of: Callable[[Sequence[Run]], Measure]
    """The quantity over the planned runs of a row."""
    shown: Callable[[float], str]
    spread: bool = False
    """The interval of the mean stands beside it."""
    same_for_all_seeds: bool = False
    """It follows from the configuration, so a missing seed takes nothing from it."""
    of_machine: bool = False
    """It follows from what computed, so a mean over several kinds of machine bears the mark MACHINES."""

    def cell(self, runs: Sequence[Run]) -> Cell:
        """The mean over `runs`, never bare when a planned run is missing from it."""
        cell = mean_cell(self.of(runs), self.shown, spread=self.shown if self.spread else None)
        if self.of_machine and len({kind(run) for run in runs if run.id in cell.runs}) > 1:
            cell = replace(cell, marks=MACHINES)
        return replace(cell, note="", hint="", interval=None) if self.same_for_all_seeds else cell


def mean_cell(values: Measure, shown: Callable[[float], str], *, spread: Callable[[float], str] | None = None) -> Cell:
    """The mean of `values`, never bare when a planned run is missing; its interval too where `spread` can show it."""
    if values.mean is None:
        return Cell(text=DASH, kind="absent", n=0)
    each = ", ".join(shown(value) for value in values.values)
    interval = values.interval
    hints = [f"seeds: {each}"] if values.n > 1 else []
    if interval is not None:
        level = f"{interval.level:.0%}".replace("%", " %")
        hints.append(f"{level} interval {shown(interval.low)} to {shown(interval.high)}, n = {values.n}")
    return Cell(
        value=values.mean,
        text=shown(values.mean),
        spread=f"±{spread(interval.half)}" if spread is not None and interval is not None else "",
        note=values.partial,
        hint="; ".join(hints),
        runs=values.runs,
        interval=interval,
        n=values.n,
    )


def _over_runs(quantity: Quantity) -> Callable[[Sequence[Run]], Measure]:
    return lambda runs: measure(runs, quantity)


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

_MASK = _setting("model.causal_mask", "mask", hint="Whether training hides later target pieces.", numeric=False)

BUDGET = _setting("train.budget", "budget", hint="What a run may spend on training.")


def settings_columns(study: Study) -> list[Setting]:
    """The columns of what was changed; attention scaling and the mask have one only if some row changes them."""
    varied = {key for variant in study.variants for key in variant.changes}
    return [*_SETTINGS, *(setting for setting in (_SCALING, _MASK) if setting.key in varied)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """What a table compares rows by: perplexity, BLEU, and BLEU's difference to base."""

    columns: tuple[Measured, Measured]
    difference: Column
    difference_of: Callable[[Sequence[Run], Sequence[Run]], Measure]
    """Of a row's planned runs and those of base, paired by seed."""


_PERPLEXITY = Column(
    key="perplexity",
    symbol="PPL",
    subscript="valid",
    unit="per piece",
    hint="exp of the mean negative log-likelihood a piece on the validation side, without smoothing.",
)

_BLEU = Column(key="bleu", symbol="BLEU", subscript="test", unit="13a", hint="sacreBLEU, 13a, cased, on the test side.")

DIFFERENCE = Column(
    key="difference",
    symbol="Δ BLEU",
    unit="to base",
    hint="BLEU minus that of base with the same seed, averaged over the seeds that both have.",
)


def final_scores() -> Scores:
    """Scores of the trained models: perplexity on the validation side, as in Table 3, and BLEU on the test side."""
    return Scores(
        columns=(_scores(_PERPLEXITY, _over_runs(valid_perplexity), 2), _scores(_BLEU, _over_runs(bleu_on_test), 1)),
        difference=DIFFERENCE,
        difference_of=lambda runs, base: difference(runs, base, bleu_on_test),
    )


def scores_at(budget: Budget) -> Scores:
    """Scores on the validation side when `budget` was spent, read off the learning curves."""
    bleu = replace(_BLEU, subscript="valid", hint=f"sacreBLEU, 13a, cased, on the validation side {budget.label}.")
    perplexity = replace(_PERPLEXITY, hint=f"{_PERPLEXITY.hint} Read off the learning curve {budget.label}.")
    return Scores(
        columns=(
            _scores(perplexity, lambda runs: measure_at(runs, "valid/perplexity", budget), 2),
            _scores(bleu, lambda runs: measure_at(runs, "valid/bleu", budget), 1),
        ),
        difference=DIFFERENCE,
        difference_of=lambda runs, base: difference_at(runs, base, "valid/bleu", budget),
    )


def _scores(column: Column, of: Callable[[Sequence[Run]], Measure], digits: int) -> Measured:
    return Measured(column=column, of=of, shown=lambda value: fixed(value, digits), spread=True)


def cost_columns(study: Study) -> list[Measured]:
    """Parameters, training FLOPs, training seconds and speed, in units that suit the study."""
    return [parameters_column([study]), flops_column([study]), SECONDS, SPEED]


def parameters_column(studies: Sequence[Study]) -> Measured:
    """Trained parameters, in millions."""
    digits = 3 if min(means(studies, lambda run: run.number("parameters")), default=1e9) < 1e6 else 2
    return Measured(
        column=Column(key="parameters", symbol="params", unit=f"×{power(6)}", hint="Trained numbers, each once."),
        of=_over_runs(lambda run: run.number("parameters")),
        shown=lambda value: fixed(value / 1e6, digits),
        same_for_all_seeds=True,
    )


def flops_column(studies: Sequence[Study]) -> Measured:
    """Training FLOPs by our count, in the power of ten that suits."""
    flops_power = exponent(means(studies, train_flops))
    return Measured(
        column=Column(
            key="flops",
            symbol="FLOPs",
            subscript="train",
            unit=f"our count, ×{power(flops_power)}",
            hint="Operations in matrix products, forward and backward, padding left out; a multiply-add is two.",
        ),
        of=_over_runs(train_flops),
        shown=lambda value: fixed(value / 10.0**flops_power, 2),
    )


SECONDS = Measured(
    column=Column(
        key="seconds", symbol="time", subscript="train", unit="s", hint="Seconds of training; evaluation apart."
    ),
    of=_over_runs(lambda run: run.number("train_seconds")),
    shown=lambda value: fixed(value, 0 if value >= 100 else 1),
    of_machine=True,
)

SPEED = Measured(
    column=Column(
        key="speed", symbol="speed", unit="target tokens/s", hint="Target tokens trained on a second, no padding."
    ),
    of=_over_runs(lambda run: run.number("target_tokens_per_second")),
    shown=lambda value: fixed(value, 0),
    of_machine=True,
)


def means(studies: Sequence[Study], quantity: Quantity) -> list[float]:
    """The mean of `quantity` in every row that has one."""
    found = [measure(runs, quantity).mean for study in studies for runs in study.by_variant.values()]
    return [mean for mean in found if mean is not None]


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
