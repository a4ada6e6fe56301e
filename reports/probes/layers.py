"""The page on the cost of layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.figures.parts import Picture
from reports.formats import DASH, counted, fixed
from reports.probes.charts import Line, Panel, picture
from reports.probes.parts import Grid, number
from reports.probes.records import Probed
from reports.records.paper import PaperLayer, load_paper
from reports.tables.table1 import in_symbols
from repro.errors import CheckError

_SCHEMA = 2
"""Of what `repro.probes.layers` measures."""

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
    bench = _bench(probed)
    layers = {layer["layer"]: layer for layer in (*bench["layers"], bench["attention_core"])}
    longest = _counted(bench)
    fitted = sorted(bench["lengths"])[-bench["fitted"] :]
    found = [
        f"Measured on {bench['device']} with {counted(bench['threads'], 'thread')}, forward and backward, every size "
        f"once in each of {counted(bench['rounds'], 'round')}; milliseconds are medians over rounds.",
        f"A power is the slope of log time over log n (or d), taken in each round over the {len(fitted)} largest "
        f"sizes, here n from {fitted[0]} to {fitted[-1]}, as at small ones the fixed costs of a call weigh in. Told is "
        "the mean over rounds with its 95 % interval (Student's t): how well the slope repeats here, not how near it "
        "has come to its class.",
    ]
    whole, core, recurrent = (layers[name] for name in ("self_attention", "self_attention_core", "recurrent"))
    found.append(
        f"The time of attention's own part, without its projections, grows as n to the power {_power(core, 'n')}; the "
        f"class is n². A whole self-attention layer grows as n to the power {_power(whole, 'n')}, as its projections "
        "are linear in n."
    )
    latency = recurrent["latency_exponents"]["n"]
    found.append(
        f"For one sequence the LSTM's time grows as n to the power {_interval(latency)}; the class is n. At n = "
        f"{longest} it has {recurrent['sequential'][longest]} operations that must follow one another, self-attention "
        f"{whole['sequential'][longest]}."
    )
    found.append(_paths(bench, layers, longest))
    found += [_crossing(crossing, bench) for crossing in bench["overtakes"] if crossing["pass"] == "both"]
    width = _width(bench)
    found.append(
        "By multiplications a self-attention layer (4 d² + 2 n d a token) and an LSTM (8 d²) meet at n = 2 d, here "
        f"{2 * width}."
    )
    return found


def _bench(probed: Probed) -> Mapping[str, Any]:
    """What was measured. Raises CheckError for an earlier version's, which lacks the rounds."""
    bench: Mapping[str, Any] = probed.alone
    if bench["schema"] != _SCHEMA:
        raise CheckError("measured by an earlier version", where="probe layers", fix="run ablate probe layers again")
    return bench


def _counted(bench: Mapping[str, Any]) -> str:
    """The longest length at which steps and paths were counted."""
    return str(max(bench["dilated"]["path"], key=int))


def _paths(bench: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]], n: str) -> str:
    """The longest ways between two positions, in words."""
    near, band = (layers[name]["path"][n] for name in ("convolutional", "self_attention_restricted"))
    return (
        f"The longest way between two of {n} positions takes {near} steps through contiguous convolutions (kernel "
        f"{bench['kernel']}) and {bench['dilated']['path'][n]} where each layer spreads its kernel "
        f"{bench['kernel']} times as far as the one below, the dilated convolutions of Table 1's O(logₖ n). Through "
        f"self-attention restricted to {bench['neighbours']} neighbours it takes {band}."
    )


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
    bench = _bench(probed)
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
    """Exponents and counts beside the classes of Table 1, and every point."""
    bench = _bench(probed)
    longest = _counted(bench)
    classes = {layer.layer: layer for layer in load_paper().layers}
    layers = (*bench["layers"], bench["attention_core"])
    powers = Grid(
        caption="Powers of n and d in the time of forward and backward, with their 95 % intervals over rounds, beside "
        "the class of the paper's Table 1.",
        head=("layer", "class", "n, tokens alike", "d, tokens alike", "n, one sequence"),
        rows=[
            (
                _NAMES[layer["layer"]],
                in_symbols(classes[layer["layer"]].complexity) if layer["layer"] in classes else DASH,
                _power(layer, "n"),
                _power(layer, "d"),
                _interval(layer["latency_exponents"]["n"]),
            )
            for layer in layers
        ],
    )
    steps = Grid(
        caption="Operations that must follow one another and the longest path between two positions, counted on the "
        f"graph of dependencies at n = {longest}, beside the classes of the paper's Table 1. Its path of a convolution "
        "is that of dilated ones.",
        head=("layer", "class", "sequential operations", "class", "longest path"),
        rows=[
            (name, sequential, str(counts["sequential"][longest]), in_symbols(path), str(counts["path"][longest]))
            for name, sequential, path, counts in _counts(bench, classes)
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
    return [powers, steps, points]


def _counts(
    bench: Mapping[str, Any], classes: Mapping[str, PaperLayer]
) -> list[tuple[str, str, str, Mapping[str, Mapping[str, int]]]]:
    """Every layer's name, its classes of sequential operations and of the path, and its counts by length."""
    found = []
    for layer in bench["layers"]:
        published = classes[layer["layer"]]
        contiguous = layer["layer"] == "convolutional"
        found.append((_NAMES[layer["layer"]], published.sequential, DASH if contiguous else published.path, layer))
    dilated = classes["convolutional"]
    return [*found, ("dilated convolution", dilated.sequential, dilated.path, bench["dilated"])]
