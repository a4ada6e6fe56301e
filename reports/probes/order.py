"""The page on the order of words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reports.figures.parts import Picture
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, decimals, number
from reports.probes.records import Probed

Document = Mapping[str, Any]

_POSITIONS = {"sinusoidal": "sinusoidal positions", "learned": "learned positions", "none": "no positions"}
_SHARES: dict[str, Callable[[Document], float | None]] = {
    "translation stays\nwhen shuffled": lambda of: float(of["shuffled"]["same"]),
    "pairs\ntold apart": lambda of: float(of["swapped"]["told_apart"]) if "swapped" in of else None,
    "both of a\npair right": lambda of: float(of["swapped"]["both_right"]) if "swapped" in of else None,
}


def words(probed: Probed) -> list[str]:
    """What was found, a row each."""
    found = []
    for row in probed.rows:
        error = probed.mean(row, lambda of: float(of["equivariance_error"]))
        told = (
            f"{row} ({_POSITIONS[probed.first(row)['positions']]}): when the words of a source are permuted, the "
            "encoder's "
            f"outputs are {number(error, 2)} of their size away from being permuted alike"
        )
        same = probed.mean(row, lambda of: float(of["shuffled"]["same"]))
        told += f"; {decimals(100 * (same or 0.0), 0)} % of translations stay the same when the source is shuffled"
        apart, right = (probed.mean(row, value) for value in list(_SHARES.values())[1:])
        if apart is not None and right is not None:
            told += (
                f"; of sentences with subject and object exchanged it tells {decimals(100 * apart, 0)} % of pairs "
                "apart and "
                f"translates both right in {decimals(100 * right, 0)} %"
            )
        found.append(told + ".")
    return found


def chart(probed: Probed) -> Picture:
    """Shares of sentences, and the encoder's error."""
    shares = []
    for row in probed.rows:
        known = {name: mean for name, value in _SHARES.items() if (mean := probed.mean(row, value)) is not None}
        shares.append(Line(name=row, x=list(known), y=list(known.values()), joined=False))
    errors = [
        Line(
            name=row,
            x=["permuted\nsources"],
            y=[probed.mean(row, lambda of: float(of["equivariance_error"])) or 0.0],
            joined=False,
        )
        for row in probed.rows
    ]
    panels = [
        Panel(title="distance from permuting alike", x="", y="share of the outputs' size", lines=errors, log_y=True),
        Panel(title="translations", x="", y="share", lines=shares),
    ]
    caption = (
        "Left: |E(Px) − P E(x)| / |E(x)| of the encoder's outputs E for a permuted source Px, on a logarithmic axis. "
        "Right: shares of sentences. Means over seeds."
    )
    return picture("probe-order", "The order of words, with and without positions", caption, panels)


def grids(probed: Probed) -> list[Grid]:
    """Sentences that differ in order only, and what was made of them."""
    examples = {row: probed.first(row)["swapped"]["examples"] for row in probed.rows if "swapped" in probed.first(row)}
    if not examples:
        return []
    first = next(iter(examples.values()))
    return [
        Grid(
            caption="Sentences that differ in their order only, with the first seed's translations.",
            head=("source", "right", *examples),
            rows=[
                (example["source"], example["right"], *(found[place]["translation"] for found in examples.values()))
                for place, example in enumerate(first)
            ],
            words=2 + len(examples),
        )
    ]
