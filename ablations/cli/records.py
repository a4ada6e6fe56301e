"""`ablate report`, `compare`, `sync`, `pull` and `ui`: what studies came to, as a page and in MLflow."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import Json, StudyName

PANEL = "Results"


def report(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Directories, or names under studies/.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write it; without, STUDY/report, for one study.")
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Let scores of other signatures or data stand in one table, marked.")
    ] = False,
) -> None:
    """Write the report of one or several studies: a page that needs nothing else, tables and data. Print its path.

    Where MLflow shows the study it shows its newest report, too.
    """
    from ablations.study import study_path
    from reports.pages.page import write_report

    paths = [study_path(study) for study in studies]
    page = write_report(paths, out, mixed=mixed)
    print(page)
    for study in paths:
        if page.resolve().parent == (study / "report").resolve():
            _show_in_mlflow(study)


def _show_in_mlflow(study: Path) -> None:
    """Bring MLflow up to date where it has the study; say on standard error what did not get through."""
    from ablations.tracking import open_tracking

    tracking = open_tracking(study)
    if not tracking.begun:
        return
    for problem in tracking.sync().problems:
        print(
            f"MLflow still shows an earlier report: {problem}; later: ablate sync {shlex.quote(str(study))}",
            file=sys.stderr,
        )


def compare(
    first: Annotated[str, typer.Argument(metavar="STUDY:VARIANT", help="A row of a study, e.g. demo:base.")],
    second: Annotated[str, typer.Argument(metavar="STUDY:VARIANT", help="The row to compare with it.")],
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that needs nothing else.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two rows in depth: tests, BLEU by length, settings, and the sentences that differ most."""
    from ablations.study import study_path
    from reports.comparison import contrast, rows
    from repro.files import write_text

    names = {name: study_path(name) for name in (rows.split_name(first)[0], rows.split_name(second)[0])}
    found = rows.compare(first, second, names)
    if html is not None:
        write_text(html, contrast.page(found))
    if as_json:
        options.print_json(rows.document(found))
    elif html is not None:
        print(html)
    else:
        contrast.show(found, options.console())


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


def pull(
    experiment: Annotated[str, typer.Option(metavar="NAME", help="Its name in MLflow, e.g. table3/smoke.")],
    study: Annotated[Path, typer.Option(metavar="DIR", help="The directory to make or to complete.")],
    tracking_uri: Annotated[
        str | None, typer.Option(metavar="URI", help="The server or database; without, MLFLOW_TRACKING_URI.")
    ] = None,
    study_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The study's id or name, where the experiment has several.")
    ] = None,
) -> int:
    """Make a study's directory again from MLflow; what is there already stays. Checkpoints are not pulled."""
    from ablations.tracking.pull import pull as pull_study
    from ablations.tracking.stores import given_store

    found = pull_study(study, experiment, given_store(study, tracking_uri), wanted=study_id)
    print(found)
    return 0 if not found.problems else 1


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
    for command in (report, compare, sync, pull, ui):
        app.command(rich_help_panel=PANEL)(command)
