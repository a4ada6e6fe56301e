"""`ablate train`, `evaluate` and `translate`: one run at a time, without Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import Json, Profile, RunPath, Scale, Settings, Source
from repro.errors import UsageError

PANEL = "Single runs"
SPLITS = ("train", "valid", "test")

DataPath = Annotated[Path | None, typer.Option("--data", help="The prepared corpus, if it was moved.")]


def train(
    scale: Scale,
    out: Annotated[Path, typer.Option(help="The run's directory; an unfinished run in it is gone on with.")],
    variant: Annotated[str, typer.Option(help="A row of any table, e.g. base or A.h1.")] = "base",
    seed: Annotated[int, typer.Option(min=1, help="The run's seed.")] = 1,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    processes: Annotated[
        int,
        typer.Option(min=1, help="Processes here that share each batch, each on its own GPU if there are any."),
    ] = 1,
) -> int:
    """Train one run here, without Ray. SIGINT, SIGTERM and SIGUSR1 let it save and stop.

    Started through torchrun, every process joins in one run.
    """
    from ablations import reach
    from ablations.checks import check_averaging, check_fits, check_memory
    from ablations.corpora import prepare_for
    from ablations.room import Room
    from ablations.selection import choose
    from ablations.single import train_here
    from ablations.tables import table_of

    selection = choose(table_of(variant), scale, only=[variant], settings=settings or (), profile=profile)
    reach.refuse_without_effect(selection, settings or ())
    for line in reach.notes(selection):
        print(f"note: {line}")
    prepared = prepare_for(selection.base.data, source=source, say=print)
    config = selection.with_data(prepared.digest).rows[0].with_seed(seed)
    check_averaging(config)
    check_fits(config, prepared)
    check_memory([config], Room.of_one_run(processes), prepared)
    return train_here(config, out, prepared.directory, options.console(), processes=processes)


def evaluate(
    run: RunPath,
    split: Annotated[str, typer.Option(help="valid or test.")] = "test",
    data: DataPath = None,
    as_json: Json = False,
) -> None:
    """Score a trained run: perplexity, BLEU and chrF with their signatures. Nothing is written."""
    from ablations.single import evaluate_here

    if split not in SPLITS[1:]:
        raise UsageError(f"unknown split {split!r}", where="--split", fix="choose valid or test")
    scores = evaluate_here(run, split, data)
    if as_json:
        options.print_json(scores)
        return
    for name, value in scores.items():
        if isinstance(value, float):
            print(f"{name}: {value:.4f}")
        elif not isinstance(value, dict):
            print(f"{name}: {value}")
    for name, signature in scores["signatures"].items():
        print(f"{name} signature: {signature}")


def translate(
    run: RunPath,
    data: DataPath = None,
    attention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the attention weights of the first 20 sentences: .json or .html."),
    ] = None,
) -> None:
    """Translate standard input to standard output, line for line; blank lines stay blank."""
    from ablations.single import translate_stream

    translate_stream(run, data, sys.stdin.buffer, sys.stdout.buffer, attention=attention)


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (train, evaluate, translate):
        app.command(rich_help_panel=PANEL)(command)
