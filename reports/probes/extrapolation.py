"""The page on sentences longer than any in training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.figures.parts import Picture
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, compared, decimals, number
from reports.probes.records import Probed

Document = Mapping[str, Any]


def words(probed: Probed) -> list[str]:
    """What was found, a row each."""
    longest = probed.first(probed.rows[0])["longest"]
    found = [f"Trained on sentences of up to {longest} pieces, the end mark counted, and tested on longer ones."]
    for row in probed.rows:
        groups = _groups(probed)
        levels = [f"{decimals(_value(probed, row, group, 'bleu'), 1)} at {group}" for group in groups]
        found.append(f"{row}: BLEU {', '.join(levels)} pieces.")
    pair = {"base", "positions.learned"} <= set(probed.rows)
    if pair and len(_groups(probed)) > 1:
        second = _groups(probed)[1]
        ours, learned = (_value(probed, row, second, "bleu") for row in ("base", "positions.learned"))
        if ours is not None and learned is not None:
            found.append(
                f"On the shortest sentences beyond training, of {second} pieces, BLEU with sinusoids is "
                f"{compared(ours, learned)} with a table of learned positions."
            )
    return found


def _groups(probed: Probed) -> list[str]:
    return [f"{group['from']}-{group['to']}" for group in probed.first(probed.rows[0])["groups"]]


def _value(probed: Probed, row: str, group: str, key: str) -> float | None:
    return probed.mean(row, lambda of: _of_group(of, group, key))


def _of_group(document: Document, group: str, key: str) -> float | None:
    return next((float(g[key]) for g in document["groups"] if f"{g['from']}-{g['to']}" == group), None)


def _lines(probed: Probed, key: str) -> list[Line]:
    lines = []
    for row in probed.rows:
        known = {group: mean for group in _groups(probed) if (mean := _value(probed, row, group, key)) is not None}
        lines.append(Line(name=row, x=list(known), y=list(known.values())))
    return lines


def chart(probed: Probed) -> Picture:
    """BLEU and perplexity over length."""
    panels = [
        Panel(title="BLEU", x="pieces of the longer side", y="BLEU", lines=_lines(probed, "bleu")),
        Panel(
            title="perplexity",
            x="pieces of the longer side",
            y="per piece",
            lines=_lines(probed, "perplexity"),
            log_y=True,
        ),
    ]
    caption = (
        f"The first group is as long as the sentences of training (up to {probed.first(probed.rows[0])['longest']} "
        "pieces); "
        "means over seeds, perplexity on a logarithmic axis."
    )
    return picture("probe-extrapolation", "Sentences longer than any in training", caption, panels)


def grids(probed: Probed) -> list[Grid]:
    """All numbers."""
    rows = []
    for row in probed.rows:
        for group in probed.first(row)["groups"]:
            name = f"{group['from']}-{group['to']}"
            bleu, exact, perplexity = (_value(probed, row, name, key) for key in ("bleu", "exact", "perplexity"))
            texts = (decimals(bleu, 1), decimals(exact, 2), number(perplexity))
            rows.append((row, name, str(group["sentences"]), *texts))
    return [
        Grid(
            caption="By pieces of the longer side; means over seeds. Exact: share that equals the reference.",
            head=("row", "pieces", "sentences", "BLEU", "exact", "perplexity"),
            rows=rows,
        )
    ]
