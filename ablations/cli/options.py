"""Options that several commands share, and what they stand for."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repro.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

Table = Annotated[str, typer.Argument(help='A table, or several joined by "+", e.g. table3+positions.')]
Scale = Annotated[str, typer.Option(help="smoke, multi30k-cpu, multi30k, iwslt14 or paper.")]
Seeds = Annotated[int, typer.Option(help="Runs of each row, with the seeds 1 to N.")]
Only = Annotated[str | None, typer.Option(help="Rows to take, joined by commas, e.g. base,A.h1.")]
Skip = Annotated[str | None, typer.Option(help="Rows to leave out, joined by commas, e.g. big.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the base, e.g. train.budget=500.")
]
Profile = Annotated[
    str | None,
    typer.Option(help="Base as in the authors' code: tensor2tensor-2017-06 or tensor2tensor-v2. Before --set."),
]
Source = Annotated[Path | None, typer.Option(help="Directory of the corpus's text, if it is not prepared.")]
Address = Annotated[str | None, typer.Option(help="A running Ray cluster; without, a private Ray here.")]
Storage = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Store that runs travel through where nodes share no disk: s3://BUCKET/PREFIX."),
]
Cpus = Annotated[int | None, typer.Option(min=1, help="CPUs to use here; without, those that are ours.")]
GpusPerRun = Annotated[
    float | None,
    typer.Option(min=0.0, help="GPUs of each run: a part of one, or several that share its batches."),
]
ProcessesPerRun = Annotated[
    int | None, typer.Option(min=1, help="Processes that share each run's batches, where there are no GPUs.")
]
AtOnce = Annotated[int | None, typer.Option(min=1, help="Most runs at a time.")]
CpusPerRun = Annotated[float, typer.Option(min=0.1, help="CPUs of each run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
StudyPath = Annotated[Path | None, typer.Option(help="The study's directory; without, studies/TABLE-SCALE.")]
StudyName = Annotated[str, typer.Argument(help="A study's directory, or its name under studies/.")]
RunPath = Annotated[Path, typer.Argument(help="A run's directory.")]


class AfterDeath(StrEnum):
    """What becomes of a run whose process died."""

    RESUME = "resume"
    RESTART = "restart"


AfterDeathOption = Annotated[
    AfterDeath,
    typer.Option("--after-death", help="A run whose process died goes on from its checkpoint, or starts anew."),
]

PLAIN_WIDTH = 140
"""Columns of tables where there is no terminal to ask."""


def names(joined: str | None) -> list[str] | None:
    """The names in a list joined by commas."""
    return None if joined is None else [name.strip() for name in joined.split(",") if name.strip()]


def seeds(count: int) -> range:
    """The seeds 1 to `count`. Raises UsageError when there is none."""
    if count < 1:
        raise UsageError(f"{count} seeds", where="--seeds", fix="the least is 1")
    return range(1, count + 1)


def print_json(document: Any) -> None:
    """Print `document` as the only thing on standard output."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def console() -> Console:
    """Standard output, wide enough for tables where it is no terminal."""
    from rich.console import Console

    return Console(emoji=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)


def print_line(console: Console, text: str) -> None:
    """Print `text` as it is, in one line however narrow the terminal."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
