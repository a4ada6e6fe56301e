"""What was measured as plain data: a row a run, a row an evaluation, a row a cell of a table; the schema is fixed.

Columns are only ever added, at the end, and `SCHEMA_VERSION` is then raised. The same study gives the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reports.records.study import BudgetAxis, Run, Study, Variant, at
from reports.tables.cells import Table

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1

Kind = Literal["text", "whole", "number", "truth"]

_DTYPES: Mapping[Kind, Any] = {"text": "string", "whole": "Int64", "number": "Float64", "truth": "boolean"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One column of a table of data."""

    name: str
    kind: Kind
    says: str
    """What stands in it, with its unit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _RunField:
    """A column of the runs, and where its value comes from."""

    field: Field
    of: Callable[[Study, Variant, Run], Any]


def _f(name: str, kind: Kind, says: str) -> Field:
    return Field(name=name, kind=kind, says=says)


def _plan(name: str, kind: Kind, says: str, of: Callable[[Study, Variant, Run], Any]) -> _RunField:
    return _RunField(field=_f(name, kind, says), of=of)


def _result(name: str, kind: Kind, says: str, *path: str) -> _RunField:
    """A value of result.json, by default at the key `name`."""
    place = path or (name,)
    return _plan(name, kind, says, lambda _study, _variant, run: run.value(*place))


def _machine(name: str, kind: Kind, says: str, *path: str) -> _RunField:
    """A value of environment.json."""
    return _plan(name, kind, says, lambda _study, _variant, run: at(run.environment, *path))


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _scores(split: str, side: str) -> Iterable[_RunField]:
    """The scores of one side."""
    numbers = {
        "bleu": "BLEU by sacreBLEU 13a, cased, 0 to 100",
        "bleu_intl": "BLEU by sacreBLEU intl, cased, 0 to 100",
        "bleu_compound": "BLEU on Moses tokens with compounds split, 0 to 100",
        "chrf": "chrF by sacreBLEU, 0 to 100",
        "perplexity": "perplexity per piece, unsmoothed",
        "capped_share": "share of translations cut at the length cap, 0 to 1",
        "unknown_share": "share of source pieces unknown to the vocabulary, 0 to 1",
    }
    for name, says in numbers.items():
        yield _result(f"{split}_{name}", "number", f"{says}; {side}", split, name)
    yield _result(f"{split}_sentences", "whole", f"sentences of the {side}", split, "sentences")
    for name in ("bleu", "bleu_intl", "bleu_compound", "chrf"):
        signature = f"sacreBLEU's signature of {split}_{name}"
        yield _result(f"{split}_{name}_signature", "text", signature, split, "signatures", name)
    digest = f"SHA-256 of the references of the {side}"
    yield _result(f"{split}_reference_sha256", "text", digest, split, "reference_sha256")
    for name, says in (
        ("bleu_by_length", "BLEU by length in words, of the source or (by) of the reference"),
        ("smoke", "shares of right translations in the smoke language"),
        ("warnings", "what the scorer warned of"),
    ):
        yield _plan(f"{split}_{name}", "text", f"{says}, as JSON; {side}", _as_json(split, name))


def _as_json(*path: str) -> Callable[[Study, Variant, Run], Any]:
    return lambda _study, _variant, run: _json(run.value(*path))


_RUN_FIELDS: tuple[_RunField, ...] = (
    _plan("schema_version", "whole", "version of this schema", lambda *_: SCHEMA_VERSION),
    _plan("study", "text", "name of the study's directory", lambda _study, _variant, run: run.study),
    _plan("run", "text", "the run's id", lambda _study, _variant, run: run.id),
    _plan("table", "text", "tables of the study", lambda study, *_: study.table),
    _plan("scale", "text", "scale of the study", lambda study, *_: study.scale),
    _plan("variant", "text", "row", lambda _study, variant, _run: variant.id),
    _plan("group", "text", "group of the row, the paper's letter", lambda _study, variant, _run: variant.group),
    _plan("title", "text", "the row in words", lambda _study, variant, _run: variant.title),
    _plan("seed", "whole", "seed", lambda _study, _variant, run: run.seed),
    _plan(
        "state", "text", "done, failed, diverged, stopped, running, missing, unreadable", lambda _s, _v, run: run.state
    ),
    _plan("reason", "text", "why it did not finish", lambda _study, _variant, run: run.reason or None),
    _plan("same_as", "text", "the run of another row that this one is", lambda _study, _variant, run: run.same_as),
    _plan("attempts", "whole", "attempts so far", lambda _study, _variant, run: run.attempts),
    _plan(
        "progress", "number", "share of the budget spent, 0 to 1", lambda _s, _v, run: 1.0 if run.done else run.progress
    ),
    _plan("hash", "text", "hash of configuration, data and code semantics", lambda _study, _variant, run: run.hash),
    _plan(
        "directory",
        "text",
        "run directory, in the directory of the study",
        lambda _s, _v, run: f"{run.path.parent.name}/{run.path.name}",
    ),
    _plan("mlflow_run", "text", "run in MLflow", lambda _study, _variant, run: run.mlflow or None),
    _plan(
        "changes", "text", "what is not as in base, as JSON", lambda _study, variant, _run: _json(dict(variant.changes))
    ),
    _plan(
        "configuration",
        "text",
        "resolved configuration, as JSON",
        lambda _s, _v, run: _json(dict(run.settings)) if run.settings else None,
    ),
    _result("parameters", "whole", "trained numbers, each once"),
    _result("steps", "whole", "updates applied"),
    _result("skipped_steps", "whole", "updates left out as not finite"),
    _result("epochs", "number", "times the training text was gone through"),
    _result("budget_unit", "text", "unit of the budget: steps, tokens, flops, seconds", "budget", "unit"),
    _result("budget_amount", "number", "budget in that unit", "budget", "amount"),
    _result("source_tokens", "whole", "source pieces trained on, padding left out"),
    _result("target_tokens", "whole", "target pieces trained on, padding left out"),
    _result("padding_share", "number", "share of padding in the training batches, 0 to 1"),
    _result("train_flops", "number", "training FLOPs by our count: matrix products, a multiply-add is two, no padding"),
    _result("padded_flops", "number", "the same with padding"),
    *(
        _result(f"flops_{part}", "number", f"train_flops of {says}", "flops", part)
        for part, says in (
            ("source", "the encoder's tokens"),
            ("target", "the decoder's tokens"),
            ("attention", "attention between positions"),
            ("softmax", "the output layer"),
        )
    ),
    _result("train_seconds", "number", "seconds of training with its data"),
    *(
        _result(f"seconds_{part}", "number", f"seconds spent on: {part}", "seconds", part)
        for part in ("train", "data", "evaluate", "decode", "checkpoint")
    ),
    _result("target_tokens_per_second", "number", "target tokens trained on a second, padding left out"),
    *_scores("valid", "validation side"),
    *_scores("test", "test side"),
    _result("corpus", "text", "corpus"),
    _result("corpus_digest", "text", "SHA-256 of the prepared corpus", "digests", "corpus"),
    _result("vocabulary_digest", "text", "SHA-256 of the vocabulary", "digests", "vocabulary"),
    _plan(
        "differs_from_paper",
        "text",
        "options that are not the paper's, as JSON",
        lambda _s, _v, run: _json(run.value("differs_from_paper")),
    ),
    _result("threads", "whole", "threads that computed"),
    _result("precision", "text", "arithmetic of training"),
    _plan("device", "text", "what computed", lambda _s, _v, run: run.value("device") or at(run.environment, "device")),
    _machine("cpu", "text", "processor", "cpu"),
    _machine("cores", "whole", "logical cores that the process might use", "cores"),
    _machine("host", "text", "host", "host"),
    _machine("platform", "text", "operating system", "platform"),
    _machine("python", "text", "version of Python", "python"),
    _machine("commit", "text", "commit of the code", "code", "commit"),
    _machine("dirty", "truth", "whether tracked files of the code were changed", "code", "dirty"),
    _plan(
        "versions", "text", "versions of packages, as JSON", lambda _s, _v, run: _json(at(run.environment, "versions"))
    ),
    _plan(
        "slurm",
        "text",
        "variables of the SLURM job, as JSON",
        lambda _s, _v, run: _json(at(run.environment, "slurm") or None),
    ),
    _plan(
        "result",
        "text",
        "all of result.json, as JSON",
        lambda _s, _v, run: _json(dict(run.result)) if run.result else None,
    ),
)

RUNS: tuple[Field, ...] = tuple(field.field for field in _RUN_FIELDS)

_COSTS: tuple[BudgetAxis, ...] = ("tokens", "flops", "seconds")

_CURVES = {
    "valid_perplexity": "valid/perplexity",
    "valid_bleu": "valid/bleu",
    "valid_chrf": "valid/chrf",
}

EVALUATIONS: tuple[Field, ...] = (
    _f("schema_version", "whole", "version of this schema"),
    _f("study", "text", "name of the study's directory"),
    _f("run", "text", "the run's id"),
    _f("variant", "text", "row"),
    _f("seed", "whole", "seed"),
    _f("step", "whole", "updates applied when it was evaluated"),
    _f("target_tokens", "number", "target pieces trained on by then, between two log lines on a straight line"),
    _f("flops", "number", "training FLOPs by then, our count, in the same way"),
    _f("seconds", "number", "seconds of training by then, in the same way"),
    _f("valid_perplexity", "number", "perplexity per piece, unsmoothed; validation side"),
    _f("valid_bleu", "number", "BLEU by sacreBLEU 13a, cased, as decoded during training; validation side"),
    _f("valid_chrf", "number", "chrF by sacreBLEU, as decoded during training; validation side"),
)

CELLS: tuple[Field, ...] = (
    _f("schema_version", "whole", "version of this schema"),
    _f("table", "text", "name of the table's file"),
    _f("group", "text", "group of the row"),
    _f("row", "text", "row"),
    _f("column", "text", "key of the column"),
    _f("heading", "text", "heading of the column with its unit"),
    _f("text", "text", "as displayed"),
    _f("value", "number", "unrounded, in the base unit; empty for words"),
    _f("low", "number", "lower end of the 95 % interval of the mean over seeds"),
    _f("high", "number", "upper end of it"),
    _f("n", "whole", "seeds, or pairs of seeds, that the value is a mean of"),
    _f("kind", "text", "plain, same (as in base), absent (no such thing), bad (a state in place of a value)"),
    _f("detail", "text", "values by seed, and what tests say"),
    _f("runs", "text", "ids of the runs that the value comes from, with a blank between; empty for published values"),
)

SCHEMAS: Mapping[str, tuple[Field, ...]] = {"runs": RUNS, "evaluations": EVALUATIONS, "cells": CELLS}
"""The columns of each table of data, in order."""

_TITLES = {
    "runs": "a row a planned run",
    "results": "a row a planned run",
    "evaluations": "a row an evaluation",
    "cells": "a row a cell of a table",
}
_BOTH = (
    "Every table is there twice, as CSV (UTF-8, comma, header line, an empty field for what is not known) and as "
    "Parquet."
)


def runs_frame(studies: Sequence[Study]) -> pd.DataFrame:
    """A row a planned run, in the plan's order; columns `RUNS`."""
    rows = []
    for study in studies:
        variants = {variant.id: variant for variant in study.variants}
        for run in study.runs:
            rows.append([field.of(study, variants[run.variant], run) for field in _RUN_FIELDS])
    return _frame(RUNS, rows)


def evaluations_frame(studies: Sequence[Study]) -> pd.DataFrame:
    """A row for each step at which a run was evaluated, each run directory once; columns `EVALUATIONS`."""
    rows = [row for study in studies for run in study.trained for row in _evaluations(run)]
    return _frame(EVALUATIONS, rows)


def cells_frame(tables: Mapping[str, Table]) -> pd.DataFrame:
    """A row for each cell of `tables` that is displayed, with the runs that it comes from; columns `CELLS`."""
    rows = [
        [
            SCHEMA_VERSION, name, group.label, row.id, column.key, column.full_heading, cell.told,
            cell.value if isinstance(cell.value, int | float) and not isinstance(cell.value, bool) else None,
            cell.interval.low if cell.interval else None, cell.interval.high if cell.interval else None,
            cell.n, cell.kind, cell.hint or None, " ".join(dict.fromkeys(cell.runs)) or None,
        ]
        for name, table in tables.items()
        for group in table.groups
        for row in group.rows
        for column in table.columns
        if (cell := row.cells.get(column.key)) is not None and cell.kind != "same"
    ]  # fmt: skip
    return _frame(CELLS, rows)


def schema_text(schemas: Mapping[str, Sequence[Field]] = SCHEMAS, forms: str = _BOTH) -> str:
    """The schema in Markdown, as it stands beside the data; `forms` says in which forms each table is there."""
    lines = [
        f"# Data of a report, schema version {SCHEMA_VERSION}",
        "",
        f"{forms} Numbers are written so that they are read back exactly. Columns keep their order; new ones come at "
        "the end and raise `schema_version`.",
        "",
    ]
    for name, fields in schemas.items():
        lines += [f"## {name}: {_TITLES[name]}", "", "| column | type | what stands in it |", "| :--- | :--- | :--- |"]
        lines += [f"| `{field.name}` | {field.kind} | {field.says} |" for field in fields]
        lines.append("")
    return "\n".join(lines)


def _evaluations(run: Run) -> Iterable[list[Any]]:
    curves = {name: dict(run.points.get(metric, [])) for name, metric in _CURVES.items()}
    steps = sorted({step for points in curves.values() for step in points})
    spent = [run.spent(axis, steps) for axis in _COSTS]
    for place, step in enumerate(steps):
        costs = [amounts[place] for amounts in spent]
        scores = [points.get(step) for points in curves.values()]
        yield [SCHEMA_VERSION, run.study, run.id, run.variant, run.seed, step, *costs, *scores]


def _frame(fields: Sequence[Field], rows: Sequence[Sequence[Any]]) -> pd.DataFrame:
    import pandas as pd

    columns = zip(*rows, strict=True) if rows else [[] for _ in fields]
    return pd.DataFrame(
        {
            field.name: pd.array([_cast(value, field.kind) for value in column], dtype=_DTYPES[field.kind])
            for field, column in zip(fields, columns, strict=True)
        }
    )


def _cast(value: Any, kind: Kind) -> Any:
    """`value` if it is of `kind`, else None: a damaged entry is an unknown one."""
    if value is None:
        return None
    if kind == "text":
        return str(value)
    if kind == "truth":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        return None
    return float(value) if kind == "number" else int(value)
