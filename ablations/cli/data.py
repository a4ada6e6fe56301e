"""`ablate data`: which corpora there are, and making them ready."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options

app = typer.Typer(help="Corpora: which there are, and making them ready.", no_args_is_help=True)


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """Which corpora are known, and which are prepared here."""
    from ablations import corpora

    known = corpora.known()
    if as_json:
        options.print_json({"corpora": known})
        return
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("corpus", "languages", "prepared here", "licence"):
        grid.add_column(heading, no_wrap=heading == "corpus")
    for entry in known:
        prepared = ", ".join(f"{size} pieces" for size in entry["prepared"]) or "-"
        grid.add_row(entry["name"], " to ".join(entry["languages"]), prepared, entry["licence"])
    options.console().print(grid)


@app.command()
def prepare(
    corpus: Annotated[str, typer.Argument(help="A corpus of `ablate data list`, or local:SRC-TGT with --source.")],
    source: Annotated[
        Path | None, typer.Option(help="Directory with train, valid and test files; without, it is downloaded.")
    ] = None,
    vocabulary_size: Annotated[
        int | None,
        typer.Option(min=1, help="Pieces of the joint vocabulary; without, the scale's."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Read a corpus, train its vocabulary and store it encoded. What is prepared already is only checked."""
    from ablations import corpora

    say = corpora.silent if as_json else print
    prepared = corpora.prepare_corpus(corpus, vocabulary_size=vocabulary_size, source=source, say=say)
    if as_json:
        options.print_json(corpora.described(prepared))
        return
    for line in corpora.in_words(prepared):
        print(line)
