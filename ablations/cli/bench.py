"""`ablate bench`: what this machine does in a second."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.options import Json
from repro.errors import UsageError

app = typer.Typer(help="Measure this machine: layers, training.", no_args_is_help=True)


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


@app.command()
def train(
    shape: Annotated[str, typer.Option(help="Of smoke, multi30k-cpu, small, base.")] = "smoke,multi30k-cpu",
    system: Annotated[str, typer.Option(help="Of ours, torch, marian; all that are installed.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; what is told is their median.")] = 5,
    as_json: Json = False,
) -> int:
    """Training updates beside torch's Transformer and the Marian model of `transformers`, on one core or one GPU.

    Same batches, in turn, in one thread on a CPU; in bfloat16 on a GPU. Marian is timed where the extra `bench` is
    installed.
    """
    from repro.bench.clock import pinned
    from repro.bench.shapes import SHAPES
    from repro.bench.systems import available
    from repro.bench.train import measure
    from repro.training.device import choose_device

    shapes = _names(shape)
    for name in shapes:
        if name not in SHAPES:
            raise UsageError(f"no shape is called {name!r}", where="--shape", fix="choose from " + ", ".join(SHAPES))
    systems = _names(system) or available()
    device = choose_device()
    documents = []
    console = options.console()
    for name in shapes:
        with console.status(name) as status, pinned() if device.type == "cpu" else nullcontext():
            tell = status.update if console.is_terminal and not as_json else (lambda _: None)
            documents.append(measure(SHAPES[name], systems, device, rounds=rounds, tell=tell))
        if not as_json:
            console.print(_train_table(documents[-1]))
            console.print(_parts(documents[-1]), highlight=False)
    if as_json:
        options.print_json({"shapes": documents})
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _train_table(document: dict[str, Any]) -> Any:
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold", title=_title(document), title_justify="left")
    grid.add_column("system", no_wrap=True)
    for name in ("tokens/s", "ms a step", "slower", "of products", "MFU"):
        grid.add_column(name, justify="right")
    for entry in document["systems"]:
        grid.add_row(
            entry["system"],
            f"{entry['target_tokens_per_second']:,.0f}",
            f"{1000 * entry['seconds_per_step']:,.1f}",
            f"{entry['times_slower']:.2f}",
            f"{entry['share_of_products']:.0%}",
            "-" if entry["mfu"] is None else f"{entry['mfu']:.1%}",
        )
    return grid


def _title(document: dict[str, Any]) -> str:
    products = document["product_flops_per_second"] / 1e9
    return f"{document['shape']} on {document['device']}, {document['precision']}, products {products:,.0f} GFLOP/s"


def _parts(document: dict[str, Any]) -> str:
    parts = document.get("parts", {})
    return "ours, ms a step: " + ", ".join(f"{name} {1000 * part:.1f}" for name, part in parts.items()) if parts else ""
