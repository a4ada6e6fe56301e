"""`ablate bench`: what this machine does in a second."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.options import Json
from ablations.cli.runs import DataPath
from repro.errors import UsageError

app = typer.Typer(help="Measure this machine: layers, training, decoding.", no_args_is_help=True)


@app.command()
def layers(
    rounds: Annotated[int, typer.Option(min=2, help="Times that each size is measured; intervals are over them.")] = 5,
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
    longest = max(found["dilated"]["path"], key=int)
    for layer in (*found["layers"], found["attention_core"]):
        exponents = [layer["exponents"]["n"], layer["exponents"]["d"], layer["latency_exponents"]["n"]]
        shown = [f"{e['value']:.2f} ({e['low']:.2f} to {e['high']:.2f})" for e in exponents]
        table.add_row(
            layer["layer"].replace("_", " "), *shown, str(layer["sequential"][longest]), str(layer["path"][longest])
        )
    table.caption = (
        f"powers of n and d in the seconds of forward and backward over the {found['fitted']} largest sizes, 95 % "
        f"intervals over {found['rounds']} rounds; steps and path at n = {longest}"
    )
    return table


@app.command()
def train(
    shape: Annotated[str, typer.Option(help="Of smoke, multi30k-cpu, small, base.")] = "smoke,multi30k-cpu",
    family: Annotated[
        str, typer.Option(help="Baselines instead of the Transformer: of lstm, lstm-attention, gnmt, convs2s.")
    ] = "",
    system: Annotated[
        str,
        typer.Option(help="Of ours, torch, marian, all that are installed; of ours, torch, torch-padded for a family."),
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; what is told is their median.")] = 5,
    as_json: Json = False,
) -> int:
    """Training updates beside torch's Transformer and the Marian model of `transformers`, on one core or one GPU.

    Same batches, in turn, in one thread on a CPU; in bfloat16 on a GPU. Marian is timed where the extra `bench` is
    installed. A family is as large as the shape's Transformer; beside it stand torch's own LSTMs, over packed sentences
    and, for their speed alone, over padding too, or torch's own convolutions.
    """
    from repro.bench.clock import pinned
    from repro.training.device import choose_device

    device = choose_device()
    documents = []
    console = options.console()
    for name, measure in _trainings(_names(shape), _names(family), _names(system)):
        with console.status(name) as status, pinned() if device.type == "cpu" else nullcontext():
            tell = status.update if console.is_terminal and not as_json else (lambda _: None)
            documents.append(measure(device=device, rounds=rounds, tell=tell))
        if not as_json:
            options.print_line(console, _title(documents[-1]))
            console.print(_train_table(documents[-1]))
            options.print_line(console, _parts(documents[-1]))
    if as_json:
        options.print_json({"shapes": documents})
    return 0


def _trainings(
    shapes: list[str], families: list[str], systems: list[str]
) -> list[tuple[str, Callable[..., dict[str, Any]]]]:
    """What `train` measures, by name. UsageError for what is not known."""
    from repro.bench import train
    from repro.bench.families import FAMILIES, chosen
    from repro.bench.families import measure as measure_family
    from repro.bench.shapes import SHAPES
    from repro.bench.systems import available

    for kind, names, known in (("shape", shapes, list(SHAPES)), ("family", families, list(FAMILIES))):
        for name in names:
            if name not in known:
                fix = "choose from " + ", ".join(known)
                raise UsageError(f"no {kind} is called {name!r}", where=f"--{kind}", fix=fix)
    if not families:
        return [(name, partial(train.measure, SHAPES[name], systems or available())) for name in shapes]
    wanted = [(family, chosen(family, systems)) for family in FAMILIES if family in families]
    return [
        (f"{name}, {family}", partial(measure_family, SHAPES[name], family, names))
        for name in shapes
        for family, names in wanted
    ]


@app.command()
def growth(
    base: Annotated[str, typer.Option(help="The shape that grows: of smoke, multi30k-cpu, small, base.")] = "small",
    rounds: Annotated[int, typer.Option(min=2, help="Rounds; intervals are over them.")] = 5,
    as_json: Json = False,
) -> int:
    """Cost of a target token in training over width, depth, length and vocabulary, beside its FLOPs, on one core.

    One at a time is half, twice and four times that of the shape, in turn over the rounds; what would take more than
    three seconds a step is left out and named.
    """
    from repro.bench.clock import pinned
    from repro.bench.growth import measure
    from repro.bench.shapes import SHAPES

    if base not in SHAPES:
        raise UsageError(f"no shape is called {base!r}", where="--base", fix="choose from " + ", ".join(SHAPES))
    console = options.console()
    with console.status(base) as status, pinned():
        tell = status.update if console.is_terminal and not as_json else (lambda _: None)
        document = measure(SHAPES[base], rounds=rounds, tell=tell)
    if as_json:
        options.print_json(document)
    else:
        options.print_line(console, _growth_title(document))
        console.print(_growth_table(document))
        console.print(_powers_table(document))
    return 0


def _growth_title(document: dict[str, Any]) -> str:
    return f"{document['shape']} on {document['device']}, {document['precision']}, {document['rounds']} rounds"


def _growth_table(document: dict[str, Any]) -> Any:
    grid = _grid("grown", "size", "µs a token", "GFLOP/s", "cost", "FLOPs")
    for grown in document["dimensions"]:
        for entry in grown["sizes"]:
            grid.add_row(
                grown["dimension"],
                f"{entry['size']:,}",
                f"{1e-3 * entry['flops_per_token'] / (entry['flops_per_second'] / 1e9):,.1f}",
                f"{entry['flops_per_second'] / 1e9:,.0f}",
                f"{entry['measured']:.2f}",
                f"{entry['counted']:.2f}",
            )
        for size in grown["left_out"]:
            grid.add_row(grown["dimension"], f"{size:,}", "left out")
    return grid


def _powers_table(document: dict[str, Any]) -> Any:
    grid = _grid("grown", "power of the cost", "95 % over rounds", "of the FLOPs")
    for grown in document["dimensions"]:
        power = grown["power"]
        interval = f"{power['low']:.2f} to {power['high']:.2f}"
        grid.add_row(grown["dimension"], f"{power['value']:.2f}", interval, f"{grown['counted_power']:.2f}")
    return grid


@app.command()
def decode(
    run: Annotated[
        Path | None, typer.Argument(help="A trained run of the row base; without, random weights in a shape.")
    ] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Sentences, of the run's test set from its first on.")] = 1000,
    shape: Annotated[str, typer.Option(help="Without a run: of smoke, multi30k-cpu, small, base.")] = "",
    system: Annotated[str, typer.Option(help="Of ours, ctranslate2, generate; all that are installed.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; what is told is their median.")] = 3,
    data: DataPath = None,
    as_json: Json = False,
) -> int:
    """Beam search beside CTranslate2 and `generate` of `transformers`, with the same weights, on one core.

    Beam 4 without a length penalty, where all three search for the same; same batches, in turn, in single precision.
    The other two are timed where the extra `bench` is installed.
    """
    from rich.markup import escape

    from repro.bench.clock import pinned
    from repro.bench.decode import available, measure, of_shape
    from repro.bench.shapes import SHAPES

    if run is not None and shape:
        raise UsageError("a run and a shape", where="--shape", fix="leave one of them out")
    if run is None and data is not None:
        raise UsageError("the data of no run", where="--data", fix="name a run, or leave it out")
    shapes = _names(shape) or ["smoke", "multi30k-cpu"]
    for name in shapes:
        if name not in SHAPES:
            raise UsageError(f"no shape is called {name!r}", where="--shape", fix="choose from " + ", ".join(SHAPES))
    systems = _names(system) or available()
    documents = []
    console = options.console()
    for name in shapes if run is None else [run.name]:
        # Before threads are set: loading a run takes as many as it was trained with.
        work = of_shape(SHAPES[name], sentences) if run is None else _work(run, data, sentences)
        with console.status(escape(name)) as status, pinned():
            tell = status.update if console.is_terminal and not as_json else (lambda _: None)
            documents.append(measure(work, systems, rounds=rounds, tell=tell))
        if not as_json:
            options.print_line(console, _decode_title(documents[-1]))
            console.print(_decode_table(documents[-1]))
    if as_json:
        options.print_json({"works": documents})
    return 0


def _work(run: Path, data: Path | None, sentences: int) -> Any:
    """The first `sentences` of the run's test set, with its trained model."""
    from repro.bench.conversion import refuse_others
    from repro.bench.decode import of_model
    from repro.models.transformer import Transformer
    from repro.runs.directory import RunDirectory
    from repro.runs.trained import Trained

    refuse_others(RunDirectory(run).config().model, str(run))
    trained = Trained.load(run, data)
    assert isinstance(trained.model, Transformer)
    test = trained.prepared.encoded("test")
    sources = [test.src(index).tolist() for index in range(min(sentences, len(test)))]
    return of_model(run.resolve().name, trained.model, sources, trained.config.decode)


def _decode_title(document: dict[str, Any]) -> str:
    told = f"{document['work']} on {document['device']}, {document['precision']}, {document['sentences']:,} sentences"
    return f"{told}, beam {document['beam']}, alpha {document['alpha']:g}"


def _decode_table(document: dict[str, Any]) -> Any:
    grid = _grid("system", "sentences/s", "tokens/s", "slower", "same outputs")
    for entry in document["systems"]:
        grid.add_row(
            entry["system"],
            f"{entry['sentences_per_second']:,.1f}",
            f"{entry['target_tokens_per_second']:,.0f}",
            f"{entry['times_slower']:.2f}",
            f"{entry['same_outputs']:.1%}",
        )
    return grid


def _grid(first: str, *numbers: str) -> Any:
    """An empty table: a column of words, then columns of numbers."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column(first, no_wrap=True)
    for name in numbers:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _train_table(document: dict[str, Any]) -> Any:
    grid = _grid("system", "tokens/s", "ms a step", "slower", "of products", "MFU")
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
    what = f"{document['shape']}, {document['family']}" if "family" in document else document["shape"]
    return f"{what} on {document['device']}, {document['precision']}, products {products:,.0f} GFLOP/s"


def _parts(document: dict[str, Any]) -> str:
    parts = document.get("parts", {})
    return "ours, ms a step: " + ", ".join(f"{name} {1000 * part:.1f}" for name, part in parts.items()) if parts else ""
