"""Tables of variants. A variant is the base with a few named, relative changes, so one table fits every scale."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from ablations.baselines import as_costly, as_large
from repro.config import RunConfig, TransformerConfig
from repro.errors import UsageError

Apply = Callable[[RunConfig], RunConfig]
Change = Callable[[TransformerConfig], TransformerConfig]

HIGHEST_DROPOUT = 0.9
"""Where multiplied probabilities end: above it hardly anything is left to learn from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One row of a table."""

    id: str
    group: str
    """The paper's letter of the row in Table 3, or the table's own name."""
    title: str
    apply: Apply
    """From the base to this row. Relative: "half the width", never "256"."""

    def of(self, base: RunConfig) -> RunConfig:
        """This row's configuration over `base`, resolved. Raises UsageError naming the row when it cannot be."""
        try:
            return replace(self.apply(base), variant=self.id).resolved()
        except UsageError as error:
            where = f"variant {self.id}, {error.where}" if error.where else f"variant {self.id}"
            raise UsageError(error.what, where=where, fix=error.fix) from error


def transformer(base: RunConfig) -> TransformerConfig:
    """The base's model, with d_k and d_v filled in. Raises UsageError for another family."""
    if not isinstance(base.model, TransformerConfig):
        raise UsageError("this row changes a Transformer, the base is another family", where="model.family")
    return base.model.resolved()


def same(base: RunConfig) -> RunConfig:
    """The base itself."""
    return base


def model(change: Change) -> Apply:
    """A row that changes the model only."""
    return lambda base: replace(base, model=change(transformer(base)))


def _heads(count: Callable[[int], int]) -> Apply:
    """Another number of heads; d_k and d_v follow as d_model / h, so that the work stays the same (rows A)."""
    return model(lambda base: replace(base, n_heads=count(base.n_heads), d_k=None, d_v=None))


def _d_k(factor: Fraction) -> Apply:
    """Another d_k; d_v and d_model stay (rows B)."""
    return model(lambda base: replace(base, d_k=_share_of_d_k(base, factor)))


def _share_of_d_k(base: TransformerConfig, factor: Fraction) -> int:
    assert base.d_k is not None, "resolved models have a d_k"
    return round(base.d_k * factor)


def _layers(factor: Fraction) -> Apply:
    return model(lambda base: replace(base, n_layers=max(1, round(base.n_layers * factor))))


def _width(factor: Fraction) -> Apply:
    """Another d_model; d_k and d_v follow as d_model / h."""
    return model(lambda base: replace(base, d_model=round(base.d_model * factor), d_k=None, d_v=None))


def _ff(factor: Fraction) -> Apply:
    return model(lambda base: replace(base, d_ff=round(base.d_ff * factor)))


def _times(probability: float, factor: int) -> float:
    """`factor` times a probability, without binary dust (0.1 * 3 is 0.3) and never above HIGHEST_DROPOUT."""
    return min(round(probability * factor, 9), HIGHEST_DROPOUT)


def _dropout(factor: int) -> Apply:
    return model(lambda base: replace(base, dropout=_times(base.dropout, factor)))


def _smoothing(factor: int) -> Apply:
    return lambda base: replace(
        base, train=replace(base.train, label_smoothing=_times(base.train.label_smoothing, factor))
    )


def _big(base: RunConfig) -> RunConfig:
    """The paper's big model: twice the width, feed-forward and heads, three times the dropout and the budget."""
    small = transformer(base)
    large = replace(
        small,
        d_model=small.d_model * 2,
        d_ff=small.d_ff * 2,
        n_heads=small.n_heads * 2,
        d_k=None,
        d_v=None,
        dropout=_times(small.dropout, 3),
    )
    return replace(base, model=large, train=replace(base.train, budget=base.train.budget * 3))


def _scores(factor: Fraction, scaled: bool) -> Apply:
    """d_k times `factor` at fixed d_model and d_v, attention scores divided by sqrt(d_k) or not."""
    return model(lambda base: replace(base, d_k=_share_of_d_k(base, factor), scale_attention=scaled))


def _row(id: str, title: str, apply: Apply, group: str = "") -> Variant:
    return Variant(id=id, group=group or id.split(".", maxsplit=1)[0], title=title, apply=apply)


_QUARTER, _THIRD, _HALF, _ONE = Fraction(1, 4), Fraction(1, 3), Fraction(1, 2), Fraction(1)

BASE = _row("base", "base", same)

TABLE3 = (
    BASE,
    _row("A.h1", "1 head", _heads(lambda _: 1)),
    _row("A.h4", "half the heads", _heads(lambda heads: max(1, heads // 2))),
    _row("A.h16", "twice the heads", _heads(lambda heads: heads * 2)),
    _row("A.h32", "four times the heads", _heads(lambda heads: heads * 4)),
    _row("B.dk-quarter", "a quarter of d_k", _d_k(_QUARTER)),
    _row("B.dk-half", "half of d_k", _d_k(_HALF)),
    _row("C.layers-third", "a third of the layers", _layers(_THIRD)),
    _row("C.layers-2third", "two thirds of the layers", _layers(2 * _THIRD)),
    _row("C.layers-4third", "four thirds of the layers", _layers(4 * _THIRD)),
    _row("C.width-half", "half the width", _width(_HALF)),
    _row("C.width-double", "twice the width", _width(2 * _ONE)),
    _row("C.ff-half", "half of d_ff", _ff(_HALF)),
    _row("C.ff-double", "twice d_ff", _ff(2 * _ONE)),
    _row("D.dropout-0", "no dropout", _dropout(0)),
    _row("D.dropout-double", "twice the dropout", _dropout(2)),
    _row("D.smoothing-0", "no label smoothing", _smoothing(0)),
    _row("D.smoothing-double", "twice the label smoothing", _smoothing(2)),
    _row("E.learned", "learned positions", model(lambda base: replace(base, positions="learned"))),
    _row("big", "big", _big),
)
"""Table 3 of the paper, in its order."""

SCALING = (
    BASE,
    _row("scaling.off", "scores not scaled", _scores(_ONE, False)),
    _row("scaling.dk-quarter", "a quarter of d_k, scaled", _scores(_QUARTER, True)),
    _row("scaling.dk-quarter-off", "a quarter of d_k, not scaled", _scores(_QUARTER, False)),
    _row("scaling.dk-4x", "four times d_k, scaled", _scores(4 * _ONE, True)),
    _row("scaling.dk-4x-off", "four times d_k, not scaled", _scores(4 * _ONE, False)),
)
"""Section 3.2.1's claim: without 1/sqrt(d_k), attention suffers as d_k grows. d_model and d_v stay."""

POSITIONS = (
    BASE,
    _row("positions.learned", "learned positions", model(lambda base: replace(base, positions="learned"))),
    _row("positions.none", "no positions", model(lambda base: replace(base, positions="none"))),
)
"""Section 3.5: sinusoids (the base), a learned table, or nothing to tell the order by."""

MASK = (
    BASE,
    _row("mask.off", "no causal mask in training", model(lambda base: replace(base, causal_mask=False))),
)
"""Section 3.1: what the decoder's mask is for. Its perplexity is that of a model that sees what it foretells."""

BASELINES = (
    BASE,
    _row("baseline.lstm", "LSTM without attention, as large as base", as_large("lstm")),
    _row("baseline.lstm-attention", "LSTM with attention, as large as base", as_large("lstm-attention")),
    _row("baseline.gnmt", "GNMT, as large as base", as_large("gnmt")),
    _row("baseline.convs2s", "ConvS2S, as large as base", as_large("convs2s")),
    _row("baseline.lstm-flops", "LSTM without attention, as costly as base", as_costly("lstm")),
    _row("baseline.lstm-attention-flops", "LSTM with attention, as costly as base", as_costly("lstm-attention")),
    _row("baseline.gnmt-flops", "GNMT, as costly as base", as_costly("gnmt")),
    _row("baseline.convs2s-flops", "ConvS2S, as costly as base", as_costly("convs2s")),
)
"""The models of Table 2, first with the base's number of parameters, then with its training FLOPs a token."""


def _pick(ids: Iterable[str], *tables: tuple[Variant, ...]) -> tuple[Variant, ...]:
    known = {variant.id: variant for table in tables for variant in table}
    return tuple(known[id] for id in ids)


DEMO = _pick(
    (
        "base",
        "A.h1",
        "B.dk-quarter",
        "C.layers-third",
        "C.width-half",
        "D.dropout-0",
        "E.learned",
        "scaling.off",
        "positions.none",
    ),
    TABLE3,
    SCALING,
    POSITIONS,
)
"""A small tour: one row or two of each question."""

TABLES: dict[str, tuple[Variant, ...]] = {
    "table3": TABLE3,
    "scaling": SCALING,
    "positions": POSITIONS,
    "mask": MASK,
    "baselines": BASELINES,
    "demo": DEMO,
}
"""Every table by name. A new family of rows is one more entry."""


def table_name(text: str) -> str:
    """The canonical name of a TABLE argument: its parts joined by "+", each once. Raises UsageError."""
    parts = list(dict.fromkeys(part.strip() for part in text.split("+")))
    for part in parts:
        if part not in TABLES:
            raise unknown("table", part, TABLES)
    return "+".join(parts)


def variants_of(table: str) -> tuple[Variant, ...]:
    """The rows of `table`, which may be several joined by "+", in order, each id once. Raises UsageError."""
    rows = (variant for part in table_name(table).split("+") for variant in TABLES[part])
    return tuple({variant.id: variant for variant in rows}.values())


def table_of(variant: str) -> str:
    """The first table that has the row `variant`. Raises UsageError when none has."""
    for name, rows in TABLES.items():
        if any(row.id == variant for row in rows):
            return name
    known = dict.fromkeys(row.id for rows in TABLES.values() for row in rows)
    raise unknown("variant", variant, known, where="--variant")


def select(table: str, only: Iterable[str] | None, skip: Iterable[str] = ()) -> tuple[Variant, ...]:
    """The rows of `table` that are named in `only` (all when None) and not in `skip`, in the table's order.

    Raises UsageError for a name that is no row, and when none is left.
    """
    rows = variants_of(table)
    known = [variant.id for variant in rows]
    wanted, unwanted = known if only is None else list(only), list(skip)
    for id in (*wanted, *unwanted):
        if id not in known:
            raise unknown("variant", id, known, where=f"table {table}")
    if not wanted:
        raise UsageError("no variant is named", where="--only", fix="known: " + ", ".join(known))
    left = tuple(variant for variant in rows if variant.id in wanted and variant.id not in unwanted)
    if not left:
        raise UsageError("no row is left", where="--skip", fix="skip fewer")
    return left


def unknown(noun: str, name: str, known: Iterable[str], where: str = "") -> UsageError:
    """The error for a name that does not exist, with the nearest that do."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    fix = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
    return UsageError(f"unknown {noun} {name!r}", where=where, fix=fix)
