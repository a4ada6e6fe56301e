"""The page on where models look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from reports.figures.parts import Picture
from reports.formats import counted, fixed
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, decimals
from reports.probes.records import Probed

NO_EXPLANATION = (
    "Weights are not explanations: they say what a layer averages, not why the model says what it says. Other weights "
    "can give the same output, and what is averaged has already been mixed by the layers below."
)
KINDS = {
    "encoder": "encoder, self-attention",
    "decoder": "decoder, self-attention",
    "cross": "decoder, attention to the source",
    "alignment": "attention to the source",
}
_MOST_HEADS = 100
_FREE = 0.5
"""BLEU up to which a head's removal counts as free."""


def words(probed: Probed) -> list[str]:
    """What was found, a model each."""
    found = [NO_EXPLANATION]
    for row in probed.rows:
        document = probed.first(row)
        heads = document["heads"]
        if not heads:
            continue
        told = (
            f"{row}: {counted(len(heads), 'head')} with a mean entropy of {decimals(_mean(heads, 'entropy'), 2)} of "
            "the largest possible"
        )
        likeness = _mean(heads, "likeness")
        if likeness is not None:
            told += f"; heads of one layer are {fixed(likeness, 2)} alike (1: the same weights, 0: nothing in common)"
        costs = [head for head in heads if head["bleu_lost"] is not None]
        if costs:
            worst = max(costs, key=lambda head: float(head["bleu_lost"]))
            free = sum(head["bleu_lost"] <= _FREE for head in costs)
            where = f"{KINDS[worst['kind']]}, layer {worst['layer'] + 1}, head {worst['head'] + 1}"
            told += (
                f"; taking one head away costs at most {fixed(worst['bleu_lost'], 1)} of {fixed(document['bleu'], 1)} "
                f"BLEU ({where}), and no more than {fixed(_FREE, 1)} for {free} of {len(costs)}"
            )
        found.append(told + ".")
    return found


def _mean(heads: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [float(head[key]) for head in heads if head[key] is not None]
    return fmean(values) if values else None


def chart(probed: Probed) -> Picture:
    """Every head by its entropy: how far it looks, and what its removal costs."""
    heads = [(row, head) for row in probed.rows for head in probed.first(row)["heads"]]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row, head in heads:
        name = f"{row}, {head['kind']}" if row == "base" else row
        groups.setdefault(name, []).append(head)
    panels = [
        Panel(
            title="how far heads look",
            x="entropy, share of the largest",
            y="pieces, in the mean",
            lines=_dots(groups, "distance"),
        )
    ]
    costs = _dots(groups, "bleu_lost")
    if costs:
        panels.append(
            Panel(title="what a head's removal costs", x="entropy, share of the largest", y="BLEU lost", lines=costs)
        )
    caption = (
        "A dot is a head (first seed). Left: pieces between a query and what it looks at; to the source, along the "
        f"diagonal. Right: BLEU lost on a part of the validation side when the head is taken away. {NO_EXPLANATION}"
    )
    return picture("probe-attention-maps", "Heads at a glance", caption, panels)


def _dots(groups: Mapping[str, Sequence[Mapping[str, Any]]], key: str) -> list[Line]:
    lines = []
    for name, heads in groups.items():
        known = [head for head in heads if head[key] is not None]
        if known:
            lines.append(Line(name=name, x=[h["entropy"] for h in known], y=[h[key] for h in known], joined=False))
    return lines


def grids(probed: Probed) -> list[Grid]:
    """Every head, and the weights for a sentence."""
    rows = []
    for row in probed.rows:
        for head in probed.first(row)["heads"][:_MOST_HEADS]:
            texts = (
                *(decimals(head[key], 2) for key in ("entropy", "distance", "likeness")),
                decimals(head["bleu_lost"], 1),
            )
            rows.append((row, KINDS[head["kind"]], str(head["layer"] + 1), str(head["head"] + 1), *texts))
    found = [
        Grid(
            caption="Every head of the first seed's models.",
            head=("row", "attention", "layer", "head", "entropy", "distance", "likeness", "BLEU lost"),
            rows=rows,
            words=2,
            folded="Every head",
        )
    ]
    for row in probed.rows:
        for sentence in probed.first(row)["sentences"][:1]:
            found += weights(sentence, f"{row}: ")
    return found


def weights(sentence: Mapping[str, Any], before: str = "") -> list[Grid]:
    """The weights of a sentence as heat maps: the last layer's mean over heads in sight, everything else folded."""
    found = []
    for kind, layers in sentence["maps"].items():
        queries = sentence["src"] if kind == "encoder" else sentence["tgt"]
        keys = sentence["src"] if kind != "decoder" else ["<s>", *sentence["tgt"][:-1]]
        name = f"{before}{KINDS[kind]}"
        rest, behind = f"{name}, other layers and single heads", list[Grid]()
        for layer, heads in enumerate(layers, 1):
            mean = f"{name}, layer {layer}" + (", mean of heads" if len(heads) > 1 else "")
            if layer == len(layers):
                found.append(_map(mean, queries, keys, _mean_map(heads), ""))
            else:
                behind.append(_map(mean, queries, keys, _mean_map(heads), rest))
            if len(heads) > 1:
                titles = [f"{name}, layer {layer}, head {number}" for number in range(1, len(heads) + 1)]
                behind += [_map(title, queries, keys, head, rest) for title, head in zip(titles, heads, strict=True)]
        found += behind
    return found


def _mean_map(heads: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    return [[fmean(values) for values in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]


def _map(
    caption: str, queries: Sequence[str], keys: Sequence[str], heat: Sequence[Sequence[float]], folded: str
) -> Grid:
    rows = [(query, *("" for _ in keys)) for query in queries]
    told = f"{caption}: a row looks at the columns."
    return Grid(caption=told, head=("", *keys), rows=rows, heat=heat, folded=folded)
