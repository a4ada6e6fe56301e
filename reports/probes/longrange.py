"""The page on words that stand far apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from reports.figures.parts import Picture
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, decimals
from reports.probes.records import Probed

Document = Mapping[str, Any]

_MARGIN = 0.02
"""Agreement that the LSTM must lose beyond base for its fall to count, as in the claim."""


def words(probed: Probed) -> list[str]:
    """What was found, a model each."""
    found = []
    for row in probed.rows:
        first, last = _ends(probed, row, _bleu_groups(probed), _bleu)
        told = f"{row}: BLEU is {decimals(first, 1)} at the shortest and {decimals(last, 1)} at the longest sentences"
        distances = _distances(probed)
        if distances:
            near, far = _ends(probed, row, distances, _agreement)
            told += (
                f"; agreement of verbs with their subjects from {decimals(near, 3)} at a distance of "
                f"{distances[0]} words to {decimals(far, 3)} at {distances[-1]}"
            )
        near, far = _ends(probed, row, _gradient_groups(probed), _gradient)
        told += (
            f"; the last output's gradient is {decimals(near, 2)} times its sentence's mean at the source's "
            f"last pieces and {decimals(far, 2)} times at the farthest."
        )
        found.append(told)
    found.append(_agreed(probed))
    return [line for line in found if line]


def _agreed(probed: Probed) -> str:
    """Whether the expected difference came out, in words."""
    distances = _distances(probed)
    if not distances or not {"base", "baseline.lstm"} <= set(probed.rows):
        return ""
    lost = {}
    for row in ("base", "baseline.lstm"):
        near, far = _ends(probed, row, distances, _agreement)
        lost[row] = (near or 0.0) - (far or 0.0)
    told = (
        "From the shortest to the longest distance the LSTM without attention loses "
        f"{decimals(lost['baseline.lstm'], 3)} of "
        f"its agreement, base {decimals(lost['base'], 3)}."
    )
    beyond = probed.document["figures"].get("lstm_agreement_beyond_base", {})
    if not beyond.get("values"):
        return f"{told} That says nothing of distance here: {beyond.get('lacking', 'it was not measured')}."
    if fmean(beyond["values"]) > _MARGIN:
        return told
    told += (
        " The expected fall of the LSTM did not come out here: the k-th verb is held against the k-th of the right "
        "translation, and its ending is one of three."
    )
    groups = _bleu_groups(probed)
    levels = [_mean(probed, row, groups[-1], _bleu) or 0.0 for row in ("baseline.lstm", "base")]
    if levels[0] < levels[1]:
        told += (
            f" Its translations fail in other ways: {decimals(levels[0], 1)} BLEU at the longest sentences where base "
            f"has {decimals(levels[1], 1)}."
        )
    return told


def _bleu_groups(probed: Probed) -> list[str]:
    return [_span(group) for group in probed.first(probed.rows[0])["bleu_by_length"]]


def _span(group: Document) -> str:
    return f"{group['from']}-{group['to']}" if group["to"] is not None else f"{group['from']}+"


def _bleu(document: Document, group: str) -> float | None:
    return next((float(found["bleu"]) for found in document["bleu_by_length"] if _span(found) == group), None)


def _distances(probed: Probed) -> list[str]:
    agreement = probed.first(probed.rows[0]).get("agreement")
    return list(agreement["agreement_by_distance"]) if agreement else []


def _agreement(document: Document, group: str) -> float | None:
    found = document["agreement"]["agreement_by_distance"].get(group)
    return None if found is None else float(found)


def _gradient_groups(probed: Probed) -> list[str]:
    return [_span(group) for group in probed.first(probed.rows[0])["gradient"]]


def _gradient(document: Document, group: str) -> float | None:
    return next((float(found["relative"]) for found in document["gradient"] if _span(found) == group), None)


Value = Callable[[Document, str], float | None]


def _ends(probed: Probed, row: str, groups: Sequence[str], value: Value) -> tuple[float | None, float | None]:
    return _mean(probed, row, groups[0], value), _mean(probed, row, groups[-1], value)


def _mean(probed: Probed, row: str, group: str, value: Value) -> float | None:
    return probed.mean(row, lambda document: value(document, group))


def _lines(probed: Probed, groups: Sequence[str], value: Value) -> list[Line]:
    lines = []
    for row in probed.rows:
        means = {group: _mean(probed, row, group, value) for group in groups}
        known = {group: mean for group, mean in means.items() if mean is not None}
        lines.append(Line(name=row, x=list(known), y=list(known.values())))
    return lines


def chart(probed: Probed) -> Picture:
    """BLEU, agreement and gradient over distance."""
    panels = [Panel(title="BLEU", x="words of the source", y="BLEU", lines=_lines(probed, _bleu_groups(probed), _bleu))]
    distances = _distances(probed)
    if distances:
        panels.append(
            Panel(
                title="agreement of verb and subject",
                x="words between them",
                y="share right",
                lines=_lines(probed, distances, _agreement),
            )
        )
    panels.append(
        Panel(
            title="gradient of the last output",
            x="pieces to the source's end",
            y="share of its sentence's mean",
            lines=_lines(probed, _gradient_groups(probed), _gradient),
            log_y=True,
        )
    )
    sentences = probed.first(probed.rows[0])["sentences"]
    which = "as many of every distance between subject and verb" if distances else "of the test side"
    caption = (
        f"{sentences} sentences, {which}; means over seeds. The gradient is that of the last piece's log probability "
        "with respect to the vectors of the source's pieces, on a logarithmic axis."
    )
    return picture("probe-long-range", "What is kept over distance", caption, panels)


def grids(probed: Probed) -> list[Grid]:
    """All numbers."""
    found = [_grid(probed, "BLEU by words of the source", _bleu_groups(probed), _bleu, 1)]
    if distances := _distances(probed):
        found.append(_grid(probed, "Share of verbs that agree, by distance in words", distances, _agreement, 3))
    caption = "Gradient by pieces to the source's end, in units of its sentence's mean"
    return [*found, _grid(probed, caption, _gradient_groups(probed), _gradient, 2)]


def _grid(probed: Probed, caption: str, groups: Sequence[str], value: Value, digits: int) -> Grid:
    rows = []
    for row in probed.rows:
        means = [_mean(probed, row, group, value) for group in groups]
        rows.append((row, *(decimals(mean, digits) for mean in means)))
    return Grid(caption=f"{caption}; means over seeds.", head=("row", *groups), rows=rows)
