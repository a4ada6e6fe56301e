"""`ablate verify`: the proof that this installation computes what the paper says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from ablations.cli import options
from ablations.cli.options import Json

if TYPE_CHECKING:
    from rich.table import Table

    from repro.verify.check import Check

PANEL = "This installation"


def verify(as_json: Json = False) -> int:
    """Check this installation against the paper, counts by hand and torch itself; exit code 1 if anything differs."""
    from repro.verify import suite

    checks = suite.verify()
    failed = [check for check in checks if not check.ok]
    if as_json:
        options.print_json({"checks": [_entry(check) for check in checks]})
        return 1 if failed else 0
    console = options.console()
    console.print(_table(checks, suite.TITLES))
    for check in failed:
        line = f"{check.id}: expected {in_words(check.expected)}, got {in_words(check.got)} ({check.what})"
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    if failed:
        closing = (
            f"{len(failed)} of {len(checks)} checks failed: this installation does not compute what the paper says"
        )
    else:
        closing = f"all {len(checks)} checks hold: this installation computes what the paper says"
    console.print(closing, markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


def _entry(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "expected": check.expected,
        "got": check.got,
        "source": check.source,
        "ok": check.ok,
    }


def _table(checks: Sequence[Check], titles: dict[str, str]) -> Table:
    """The checks under their groups' titles."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    grid.add_column("check", ratio=6)
    grid.add_column("expected", ratio=3)
    grid.add_column("got", ratio=3)
    grid.add_column("source", ratio=4)
    grid.add_column("verdict", no_wrap=True)
    group = ""
    for check in checks:
        if check.group != group:
            group = check.group
            grid.add_row()
            grid.add_row(Text(titles.get(group, group), style="bold"))
        grid.add_row(
            Text(check.what),
            Text(in_words(check.expected)),
            Text(in_words(check.got)),
            Text(check.source, style="dim"),
            Text("ok", style="green") if check.ok else Text("FAILED", style="bold red"),
        )
    return grid


def in_words(value: Any) -> str:
    """A check's value for a reader: numbers as they are, a row's numbers with blanks between, rows split by ";"."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, str | float):
        return str(value)
    nested = any(isinstance(part, Sequence) and not isinstance(part, str) for part in value)
    return ("; " if nested else " ").join(in_words(part) for part in value)


def register(app: typer.Typer) -> None:
    """Add this command to `app`."""
    app.command(rich_help_panel=PANEL)(verify)
