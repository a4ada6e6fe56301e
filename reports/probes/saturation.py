"""The page on scaled scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from reports.figures.parts import Picture
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, compared, decimals, number
from reports.probes.records import Probed

_NAMES = {"sqrt": "divided by √d_k", "d_k": "divided by d_k", "none": "not divided"}


def words(probed: Probed) -> list[str]:
    """What was found."""
    rows = probed.alone["initial"]
    first, last = rows[0]["d_k"], rows[-1]["d_k"]
    drawn = [row for result in probed.results for row in result["measured"]["initial"]]
    off = max(abs(row["variance"] / row["closed_form"] - 1) for row in drawn)
    found = [
        f"With random queries and keys the variance of the scores is within {number(100 * off, 2)} % of its closed "
        f"form at every d_k from {first} to {last}: d_k undivided, 1 divided by √d_k, 1/d_k divided by d_k."
    ]
    for name in _NAMES:
        line = [row for row in rows if row["scaling"] == name]
        a, b = line[0], line[-1]
        found.append(
            f"Scores {_NAMES[name]}: from d_k {first} to {last} the entropy of the softmax goes from "
            f"{decimals(a['entropy'], 2)} to {decimals(b['entropy'], 2)} of the largest possible, its top weight from "
            f"{decimals(a['top_weight'], 2)} to {decimals(b['top_weight'], 2)}, the median gradient through it from "
            f"{number(a['gradient'], 2)} to {number(b['gradient'], 2)}."
        )
    for scaled, plain in (("base", "scaling.off"), ("scaling.dk-4x", "scaling.dk-4x-off")):
        if scaled in probed.rows and plain in probed.rows:
            one, other = (_mean(probed, row, "entropy") for row in (plain, scaled))
            found.append(
                f"In trained models the mean entropy over layers is {decimals(one, 2)} in {plain}, "
                f"{compared(one, other)} the {decimals(other, 2)} of {scaled}."
            )
    return found


def _mean(probed: Probed, row: str, key: str) -> float:
    return fmean(layer[key] for document in probed.of(row) for layer in document["layers"])


def chart(probed: Probed) -> Picture:
    """Entropy, gradient and the trained layers at a glance."""
    rows = probed.alone["initial"]
    panels = [
        Panel(title=title, x="d_k", y=y, lines=_lines(rows, key), log_x=True, log_y=log)
        for title, y, key, log in (
            ("variance of the scores", "variance", "variance", True),
            ("entropy of the softmax", "share of the largest", "entropy", False),
            ("gradient through it", "median norm", "gradient", True),
        )
    ]
    caption = (
        f"{probed.alone['keys']} random keys a query, components of unit variance. The same queries and keys under "
        "each scaling. Variance and gradient on logarithmic axes."
    )
    return picture("probe-saturation", "Softmax saturation over d_k", caption, panels)


def _lines(rows: Sequence[Mapping[str, Any]], key: str) -> list[Line]:
    return [
        Line(
            name=name,
            x=[row["d_k"] for row in rows if row["scaling"] == scaling],
            y=[row[key] for row in rows if row["scaling"] == scaling],
        )
        for scaling, name in _NAMES.items()
    ]


def grids(probed: Probed) -> list[Grid]:
    """All numbers."""
    rows = probed.alone["initial"]
    found = [
        Grid(
            caption="Random queries and keys: variance of the scores beside its closed form, and their softmax.",
            head=(
                "scores",
                "d_k",
                "variance",
                "closed form",
                "entropy",
                "top weight",
                "gradient, median",
                "root mean square",
            ),
            rows=[
                (
                    _NAMES[row["scaling"]],
                    str(row["d_k"]),
                    number(row["variance"]),
                    number(row["closed_form"]),
                    *(decimals(row[key], 3) for key in ("entropy", "top_weight")),
                    *(number(row[key]) for key in ("gradient", "gradient_rms")),
                )
                for row in rows
            ],
            folded="Every d_k",
        )
    ]
    if probed.rows:
        found.append(_trained(probed))
    return found


def _trained(probed: Probed) -> Grid:
    keys = ("variance", "entropy", "top_weight", "gradient")
    rows = []
    for row in probed.rows:
        for number_, layer in enumerate(probed.first(row)["layers"]):
            means = [fmean(document["layers"][number_][key] for document in probed.of(row)) for key in keys]
            texts = [number(means[0]), *(decimals(value, 3) for value in means[1:])]
            rows.append((row, layer["layer"], str(probed.first(row)["d_k"]), *texts))
    return Grid(
        caption="In trained models, means over queries, heads and sentences of the validation side: variance of a "
        "query's scores over the keys that it may attend to, and the softmax over them.",
        head=("row", "attention", "d_k", "variance", "entropy", "top weight", "gradient"),
        rows=rows,
        words=2,
    )
