"""`ablate report`, `sync` and `ui`: what a study came to, as a page and in MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli.options import StudyName

PANEL = "Results"


def report(
    study: StudyName, out: Annotated[Path | None, typer.Option(help="Where to write it; without, STUDY/report.")] = None
) -> None:
    """Write a study's report, one page that needs nothing else, and print its path."""
    from ablations.study import study_path
    from reports.page import write_report

    print(write_report(study_path(study), out))


def sync(
    study: StudyName,
    full: Annotated[bool, typer.Option("--full", help="Trust no mark of earlier syncs; ask MLflow for all.")] = False,
) -> int:
    """Bring MLflow to what the run directories say, each run and step once."""
    from ablations.study import study_path
    from ablations.tracking import open_tracking

    found = open_tracking(study_path(study)).sync(full=full)
    print(found)
    return 0 if found.complete else 1


def ui(
    study: Annotated[str | None, typer.Argument(help="A study; without, the newest under studies/.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the pages on this machine.")] = 5000,
) -> None:
    """Serve MLflow's pages of a study on this machine until interrupted."""
    from ablations.study import study_path
    from ablations.ui import serve_ui

    serve_ui(study_path(study) if study else None, port=port)


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (report, sync, ui):
        app.command(rich_help_panel=PANEL)(command)
