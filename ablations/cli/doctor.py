"""`ablate doctor`: is this machine fit for a study?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from ablations.cli import options
from ablations.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from ablations.doctor import Finding

PANEL = "This installation"
_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(as_json: Json = False) -> int:
    """What is installed, devices, memory, disks, file system, clocks, tracking server; exit code 1 for a problem."""
    from ablations import doctor as office

    found = office.examine()
    told = office.document(found)
    if as_json:
        options.print_json(told)
        return 1 if told["problems"] else 0
    console = options.console()
    console.print(_table(found))
    closing = f"{told['problems']} problems, {told['warnings']} warnings"
    console.print(closing if told["problems"] or told["warnings"] else "nothing to complain of", highlight=False)
    return 1 if told["problems"] else 0


def _table(found: Sequence[Finding]) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("what", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    grid.add_column("found")
    grid.add_column("what to do")
    for finding in found:
        verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
        grid.add_row(Text(finding.what), verdict, Text(finding.found), Text(finding.fix))
    return grid


def register(app: typer.Typer) -> None:
    """Add this command to `app`."""
    app.command(rich_help_panel=PANEL)(doctor)
