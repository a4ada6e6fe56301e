"""`ablate bench`: what this machine does in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.options import Json

app = typer.Typer(help="Measure this machine: layers.", no_args_is_help=True)


@app.command()
def layers(
    rounds: Annotated[int, typer.Option(min=1, help="Times that each size is measured; medians are told.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the document there as well.")] = None,
    as_json: Json = False,
) -> None:
    """Time and memory of self-attention, LSTM and convolution over length and width, beside the paper's Table 1.

    In a study's directory as bench-layers.json, the document makes Table 1 of its report.
    """
    from repro.files import write_json
    from repro.probes.layers import measure
    from repro.training.device import choose_device

    found = measure(rounds=rounds, device=choose_device())
    if out is not None:
        write_json(out, found)
    if as_json:
        options.print_json(found)
    else:
        options.console().print(_table(found))


def _table(found: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"layers on {found['device']}, {found['threads']} threads", title_justify="left")
    for name in (
        "layer",
        "n (tokens alike)",
        "d (tokens alike)",
        "n (one sequence)",
        "sequential steps",
        "longest path",
    ):
        table.add_column(name, justify="left" if name == "layer" else "right")
    longest = str(max(found["lengths"]))
    for layer in (*found["layers"], found["attention_core"]):
        exponents = [layer["exponents"]["n"], layer["exponents"]["d"], layer["latency_exponents"]["n"]]
        shown = [f"{e['value']:.2f} ({e['low']:.2f} to {e['high']:.2f})" for e in exponents]
        table.add_row(
            layer["layer"].replace("_", " "), *shown, str(layer["sequential"][longest]), str(layer["path"][longest])
        )
    table.caption = f"powers of n and d in the seconds of forward and backward; steps and path at n = {longest}"
    return table
