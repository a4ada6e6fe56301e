"""Table 1: how a layer's cost grows with length and width, by the paper's classes and as measured here.

What is read of `ablate bench layers --json`:

    {"schema": 1, "device": str, "threads": int,
     "lengths": [int, ...], "widths": [int, ...],                        the n and d that were measured
     "layers": [{"layer": "self_attention" | "recurrent" | "convolutional" | "self_attention_restricted",
                 "exponents": {"n": {"value": float, "low": float, "high": float}, "d": {the same}}}]}

An exponent is the slope of log seconds against log n (or log d) with its 95 % interval; over how many of the largest
sizes it was taken stands in "fitted", where it is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reports.formats import DASH, counted, fixed
from reports.records.paper import Paper, PaperLayer
from reports.statistics.intervals import Interval
from reports.tables.cells import Cell, Column, Group, Row, Table
from repro.errors import CheckError

_NAMES = {
    "self_attention": "self-attention",
    "recurrent": "recurrent",
    "convolutional": "convolutional",
    "self_attention_restricted": "self-attention, restricted to r neighbours",
}

_PUBLISHED = (
    Column(
        key="complexity",
        symbol="complexity",
        unit="per layer",
        block="paper",
        numeric=False,
        hint="Operations of one layer; n length, d width, k kernel, r neighbourhood.",
    ),
    Column(
        key="sequential",
        symbol="sequential",
        unit="operations",
        block="paper",
        numeric=False,
        hint="Operations that must follow one another.",
    ),
    Column(
        key="path",
        symbol="path",
        unit="steps, longest",
        block="paper",
        numeric=False,
        hint="Steps between two positions of the sequence, at most.",
    ),
)

_SIZES = {"n": "length n", "d": "width d"}


def complexity_table(bench: Mapping[str, Any] | None, paper: Paper) -> Table:
    """The classes of Table 1, and beside them the exponents that `bench` measured; classes alone without it.

    Raises CheckError when `bench` is not of the shape that this module describes.
    """
    measured = {} if bench is None else _exponents(bench)
    columns = [] if bench is None else [column for size in _SIZES for column in _exponent_columns(size)]
    rows = tuple(_row(layer, measured.get(layer.layer, {})) for layer in paper.layers)
    return Table(
        title="Cost of a layer, in the shape of the paper's Table 1",
        caption=_caption(bench),
        columns=(*_PUBLISHED, *columns),
        groups=(Group(label="layers", title="", rows=rows),),
        stub="layer",
        blocks={"row": "", "model": "", "ours": "measured here", "paper": "the paper, Table 1"},
    )


def _exponent_columns(size: str) -> tuple[Column, Column]:
    return (
        Column(
            key=f"expected.{size}",
            symbol="exponent",
            subscript=size,
            unit="of the class",
            block="paper",
            hint=f"The power of {size} in the class of the complexity.",
        ),
        Column(
            key=f"measured.{size}",
            symbol="exponent",
            subscript=size,
            unit="of the seconds",
            hint=f"Slope of log seconds against log {_SIZES[size]}, with half of its 95 % interval.",
        ),
    )


def _row(layer: PaperLayer, measured: Mapping[str, tuple[float, Interval]]) -> Row:
    cells = {
        column.key: Cell(value=text, text=in_symbols(text))
        for column, text in zip(_PUBLISHED, (layer.complexity, layer.sequential, layer.path), strict=True)
    }
    for size in _SIZES:
        expected = power_of(size, layer.complexity)
        cells[f"expected.{size}"] = Cell(value=expected, text=str(expected))
        cells[f"measured.{size}"] = Cell(text=DASH, kind="absent")
        if size in measured:
            value, interval = measured[size]
            cells[f"measured.{size}"] = Cell(
                value=value, text=fixed(value, 2), spread=f"±{fixed(interval.half, 2)}", interval=interval
            )
    return Row(id=_NAMES[layer.layer], title=_NAMES[layer.layer], cells=cells)


def power_of(size: str, complexity: str) -> int:
    """The power of `size` in a class such as "O(n^2 d)"."""
    found = re.search(rf"\b{size}(?:\^(\d+))?\b", complexity)
    return int(found.group(1) or 1) if found else 0


def in_symbols(text: str) -> str:
    """O(n^2 d) as O(n² d), log_k n as logₖ n."""
    return text.replace("^2", "²").replace("log_k", "logₖ")


def _caption(bench: Mapping[str, Any] | None) -> str:
    text = (
        "Cost of one layer by the paper's Table 1: operations, operations that must follow one another, and the "
        "longest path between two positions; n is the length, d the width, k the kernel, r the neighbourhood."
    )
    if bench is None:
        return f"{text} Nothing of it was measured here."
    lengths, widths = bench["lengths"], bench["widths"]
    return (
        f"{text} Measured on {bench['device']} with {counted(bench['threads'], 'thread')}, n from {min(lengths)} to "
        f"{max(lengths)} and d from {min(widths)} to {max(widths)}: exponents of the seconds{_over(bench)} with half "
        "of their 95 % intervals. A class is what the cost comes to as sizes grow without end; at these sizes other "
        "terms have a part in it, so an exponent may well lie below its class."
    )


def _over(bench: Mapping[str, Any]) -> str:
    return f" over the {bench['fitted']} largest sizes" if "fitted" in bench else ""


def _exponents(bench: Mapping[str, Any]) -> dict[str, dict[str, tuple[float, Interval]]]:
    """Layer to size to the exponent and its interval."""
    try:
        if not (bench["lengths"] and bench["widths"] and bench["device"] and bench["threads"]):
            raise ValueError("nothing measured")
        return {
            entry["layer"]: {
                size: (float(found["value"]), Interval(low=float(found["low"]), high=float(found["high"])))
                for size, found in entry["exponents"].items()
            }
            for entry in bench["layers"]
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckError(
            f"not a document of ablate bench layers ({error!r})", where="Table 1", fix="measure again"
        ) from error
