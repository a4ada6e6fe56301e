"""The files of a report that others work with: tables as LaTeX and CSV, data as CSV and Parquet."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.exports import latex, tidy
from reports.records.paper import load_paper
from reports.records.study import Study
from reports.statistics.budgets import budgets
from reports.tables.cells import Table
from reports.tables.table1 import complexity_table
from reports.tables.table2 import cost_table, families
from reports.tables.table3 import main_table
from repro.files import write_bytes

if TYPE_CHECKING:
    import pandas as pd

DATA, TABLES, SCHEMA = "data", "tables", "SCHEMA.md"

_DOCUMENTS = {"configuration", "result"}
_ONE_FORM = "Every table is a CSV file: UTF-8, comma, header line, an empty field for what is not known."


def named_tables(
    studies: Sequence[Study], *, bench: Mapping[str, Any] | None = None, mixed: bool = False
) -> dict[str, Table]:
    """Every table of a report by the name of its file.

    For each study (with its name in that of the file where there are several) the main table ("table3"), the same at
    each equal budget ("table3-at-equal-flops"), and "table2" where there are families to compare; and "table1".
    `bench`: what `ablate bench layers` measured, see `reports.tables.table1`. Raises CheckError as `main_table` does.
    """
    paper = load_paper()
    names = file_suffixes(studies)
    tables: dict[str, Table] = {}
    for study, name in zip(studies, names, strict=True):
        tables[f"table3{name}"] = main_table(study, paper, mixed=mixed)
        for budget in budgets(study):
            tables[f"table3{name}-at-equal-{budget.axis}"] = main_table(study, paper, budget, mixed=mixed)
        if families(study):
            tables[f"table2{name}"] = cost_table([study], paper, mixed=mixed)
    tables["table1"] = complexity_table(bench, paper)
    return tables


def write_exports(
    studies: Sequence[Study], out: Path, *, tables: Mapping[str, Table] | None = None, mixed: bool = False
) -> list[str]:
    """Write `tables` into `out/tables` and the data into `out/data`; return the names of the files within `out`.

    The same studies give the same bytes.

    `tables`: those of `named_tables`, made when they are not given. Raises CheckError as `named_tables` does.
    """
    tables = named_tables(studies, mixed=mixed) if tables is None else tables
    files: dict[str, bytes] = {}
    for name, table in tables.items():
        files[f"{TABLES}/{name}.tex"] = latex.latex(table, f"tab:{name}").encode()
        files[f"{TABLES}/{name}-tabular.tex"] = latex.tabular(table, f"tab:{name}").encode()
        files[f"{TABLES}/{name}.csv"] = _csv(_displayed(table)).encode()
    frames = {
        "runs": tidy.runs_frame(studies),
        "evaluations": tidy.evaluations_frame(studies),
        "cells": tidy.cells_frame(tables),
    }
    for name, frame in frames.items():
        files[f"{DATA}/{name}.csv"] = _csv(frame).encode()
        files[f"{DATA}/{name}.parquet"] = _parquet(frame)
    files[f"{DATA}/{SCHEMA}"] = tidy.schema_text().encode()
    for name, content in files.items():
        write_bytes(out / name, content)
    return list(files)


def published_files(study: Study, tables: Mapping[str, Table]) -> dict[str, bytes]:
    """The data of one study as it is published: runs as `results.csv`, `evaluations.csv`, `cells.csv`, `SCHEMA.md`.

    The runs have the columns of `data/runs.csv` without the two that hold whole documents, which their records have;
    the cells are those of tables at whole budgets. `tables`: those of `named_tables`.
    """
    kept = [field for field in tidy.RUNS if field.name not in _DOCUMENTS]
    schemas = {"results": kept, "evaluations": tidy.EVALUATIONS, "cells": tidy.CELLS}
    shown = {name: table for name, table in tables.items() if "-at-equal-" not in name}
    frames = {
        "results": tidy.runs_frame([study])[[field.name for field in kept]],
        "evaluations": tidy.evaluations_frame([study]),
        "cells": tidy.cells_frame(shown),
    }
    files = {f"{name}.csv": _csv(frame).encode() for name, frame in frames.items()}
    return files | {SCHEMA: tidy.schema_text(schemas, _ONE_FORM).encode()}


def file_suffixes(studies: Sequence[Study]) -> list[str]:
    """What tells the studies' files apart; nothing where there is one."""
    if len(studies) == 1:
        return [""]
    safe = ["-" + (re.sub(r"[^A-Za-z0-9.]+", "-", study.name).strip("-.") or "study") for study in studies]
    counts = Counter(safe)
    return [f"{name}-{number}" if counts[name] > 1 else name for number, name in enumerate(safe, 1)]


def _displayed(table: Table) -> pd.DataFrame:
    """`table` as it is displayed, all in words."""
    import pandas as pd

    lines = [
        [row.id, "".join(row.marks), row.extra, *(cell.told if cell else "" for cell in cells)]
        for row in table.rows
        for cells in [[row.cells.get(column.key) for column in table.columns]]
    ]
    headings = [table.stub, "marks", "notes", *(column.full_heading for column in table.columns)]
    return pd.DataFrame(lines, columns=headings, dtype="string")


def _csv(frame: pd.DataFrame) -> str:
    """Numbers in the shortest form that is read back exactly; lines end in a line feed."""
    return str(frame.to_csv(index=False, lineterminator="\n"))


def _parquet(frame: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    version = {b"schema_version": str(tidy.SCHEMA_VERSION).encode()}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **version}), buffer)
    return buffer.getvalue()
