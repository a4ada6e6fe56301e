"""The page on the cost of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.figures.parts import Picture
from reports.formats import counted, fixed
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, number
from reports.probes.records import Probed

_NAMES = {
    "self_attention": "self-attention",
    "recurrent": "LSTM",
    "convolutional": "gated convolution",
    "self_attention_restricted": "restricted self-attention",
    "self_attention_core": "attention without projections",
}
_REGIMES = {"throughput": "a constant number of tokens", "latency": "a single sequence"}


def words(probed: Probed) -> list[str]:
    """What was found."""
    bench = probed.alone
    layers = {layer["layer"]: layer for layer in (*bench["layers"], bench["attention_core"])}
    longest = str(max(bench["lengths"]))
    found = [
        f"Measured on {bench['device']} with {counted(bench['threads'], 'thread')}: medians of "
        f"{counted(bench['rounds'], 'round')}, forward and backward."
    ]
    whole, core, recurrent = (layers[name] for name in ("self_attention", "self_attention_core", "recurrent"))
    found.append(
        f"The time of attention's own part, without its projections, grows as n to the power {_power(core, 'n')}; the "
        f"class is n². A whole self-attention layer grows as n to the power {_power(whole, 'n')}, as its projections "
        "are "
        "linear in n."
    )
    latency = recurrent["latency_exponents"]["n"]
    found.append(
        f"For one sequence the LSTM's time grows as n to the power {_interval(latency)}. At n = {longest} it has "
        f"{recurrent['sequential'][longest]} operations that must follow one another, self-attention "
        f"{whole['sequential'][longest]}."
    )
    for crossing in bench["overtakes"]:
        if crossing["pass"] == "both":
            found.append(_crossing(crossing, bench))
    width = _width(bench)
    found.append(
        "By multiplications a self-attention layer (4 d² + 2 n d a token) and an LSTM (8 d²) meet at n = 2 d, here "
        f"{2 * width}."
    )
    return found


def _crossing(crossing: Mapping[str, Any], bench: Mapping[str, Any]) -> str:
    regime = _REGIMES[crossing["regime"]]
    if crossing["n"] is None:
        return f"With {regime}, self-attention is faster than the LSTM at every length up to {max(bench['lengths'])}."
    if crossing["n"] <= min(bench["lengths"]):
        return (
            f"With {regime}, self-attention is no faster than the LSTM at the lengths from {min(bench['lengths'])} on."
        )
    return f"With {regime}, the LSTM becomes faster than self-attention from about n = {fixed(crossing['n'], 0)} on."


def _power(layer: Mapping[str, Any], size: str) -> str:
    return _interval(layer["exponents"][size])


def _interval(found: Mapping[str, float]) -> str:
    return f"{fixed(found['value'], 2)} ({fixed(found['low'], 2)} to {fixed(found['high'], 2)})"


def chart(probed: Probed) -> Picture:
    """Seconds over length, in both regimes."""
    bench = probed.alone
    width = _width(bench)
    panels = [
        Panel(
            title=f"{title}, d = {width}",
            x="length n",
            y="ms, forward and backward",
            log_x=True,
            log_y=True,
            lines=[_line(bench, layer, regime, width) for layer in _NAMES],
        )
        for regime, title in _REGIMES.items()
    ]
    caption = (
        f"Time of one layer, forward and backward. Left: {bench['tokens']} tokens in all, so that the batch shrinks as "
        "sentences grow. Right: one sequence, where operations that follow one another show. Both axes logarithmic."
    )
    return picture("probe-layers", "Time of a layer over the length of sentences", caption, panels)


def _width(bench: Mapping[str, Any]) -> int:
    widths = [int(point["d"]) for point in bench["points"]]
    return max(set(widths), key=widths.count)


def _line(bench: Mapping[str, Any], layer: str, regime: str, width: int) -> Line:
    points = [p for p in bench["points"] if (p["layer"], p["regime"], p["d"]) == (layer, regime, width)]
    points.sort(key=lambda point: int(point["n"]))
    return Line(name=_NAMES[layer], x=[p["n"] for p in points], y=[1000 * p["both"] for p in points])


def grids(probed: Probed) -> list[Grid]:
    """Exponents beside counts, and every point."""
    bench = probed.alone
    longest = str(max(bench["lengths"]))
    exponents = Grid(
        caption="Powers of n and d in the time of forward and backward, with 95 % intervals of the fit; sequential "
        f"operations and longest path counted on the graph of dependencies at n = {longest}.",
        head=("layer", "n, tokens alike", "d, tokens alike", "n, one sequence", "sequential", "longest path"),
        rows=[
            (
                _NAMES[layer["layer"]],
                _power(layer, "n"),
                _power(layer, "d"),
                _interval(layer["latency_exponents"]["n"]),
                str(layer["sequential"][longest]),
                str(layer["path"][longest]),
            )
            for layer in (*bench["layers"], bench["attention_core"])
        ],
    )
    points = Grid(
        caption="Every size: medians of milliseconds, and what is kept in memory between forward and backward.",
        head=("layer", "regime", "n", "d", "sequences", "forward, ms", "forward and backward, ms", "kept, MB"),
        rows=[
            (
                _NAMES[p["layer"]],
                _REGIMES[p["regime"]],
                str(p["n"]),
                str(p["d"]),
                str(p["batch"]),
                number(1000 * p["forward"]),
                number(1000 * p["both"]),
                number(p["saved_bytes"] / 1e6),
            )
            for p in bench["points"]
        ],
        words=2,
        folded="Every size that was measured",
    )
    return [exponents, points]
