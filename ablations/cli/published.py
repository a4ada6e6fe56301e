"""`ablate publish` and `unpack`: a study as files small enough for git, and a study made of them again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli.options import Source

PANEL = "Results"


def publish(
    study: Annotated[str, typer.Argument(help="A study's directory, its name under studies/, or a published study.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to write.")],
    source: Source = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the published study in DIR.")] = False,
) -> None:
    """Publish a study: report, numbers as CSV, and the records of its runs without weights, in a few megabytes.

    A published study gives the same files again, byte for byte.
    """
    from ablations.published.publishing import publish as publish_study

    print(publish_study(study, out, force=force, source=source, say=print))


def unpack(
    published: Annotated[Path, typer.Argument(metavar="DIR", help="A directory made by `ablate publish`.")],
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study's directory to make.")],
) -> None:
    """Make a study's directory of a published one, to look at and to go on with. It has no weights."""
    from ablations.looks import in_words, look
    from ablations.published.publishing import unpack as unpack_study

    found = unpack_study(published, study, print)
    print(f"{study}: {in_words([look(run) for run in found.runs])}; records without weights, from {published}")


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (publish, unpack):
        app.command(rich_help_panel=PANEL)(command)
