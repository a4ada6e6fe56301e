"""A plan as a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ablations.planning import Cost, Plan, hours_of

if TYPE_CHECKING:
    from rich.console import Console


def show(planned: Plan, console: Console) -> None:
    """Print the plan as a table, with what its figures rest on."""
    from rich.table import Table

    scale = planned.selection.scale
    title = f"{planned.selection.table} at {scale.name}: {scale.title}"
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    grid.add_column("variant", no_wrap=True)
    grid.add_column("changes")
    for heading in ("parameters", "steps", "FLOPs", "paper's method", "memory", *_headings(planned)):
        grid.add_column(heading, no_wrap=True, justify="right")
    for cost in planned.costs:
        row = cost.row
        changes = ", ".join(f"{key} {value}" for key, value in row.changes.items())
        grid.add_row(
            row.variant.id,
            f"same as {row.same_as}" if row.same_as else changes,
            f"{cost.parameters / 1e6:.2f} M",
            "?" if cost.steps is None else f"{cost.steps:,}",
            _power(cost.train_flops),
            _power(cost.paper_method_flops),
            f"{cost.memory_bytes / 2**30:.2f} GB" + ("" if cost.fits in (True, None) else " !"),
            *_times(planned, cost),
        )
    total = planned.document()["total"]
    runs = f"{total['runs']} runs" + (f", {planned.seeds} seeds" if planned.seeds > 1 else "")
    flops, paper = _power(total["train_flops"]), _power(total["paper_method_flops"])
    grid.add_section()
    grid.add_row("in all", runs, "", "", flops, paper, "", *_total_times(planned))
    console.print(grid)
    for note in planned.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def _headings(planned: Plan) -> list[str]:
    """Times that the table shows: on a GPU also GPU-hours, under a limit also the jobs that a run takes."""
    gpu = ["GPU-hours"] if planned.device.kind == "cuda" else []
    return [*gpu, "hours", *(["jobs"] if planned.jobs.walltime is not None else [])]


def _times(planned: Plan, cost: Cost) -> list[str]:
    chunks = planned.jobs.chunks(cost.seconds)
    shown = {
        "GPU-hours": _shown_hours(hours_of(cost.seconds)),
        "hours": _shown_hours(hours_of(planned.jobs.wall_seconds(cost.seconds))),
        "jobs": "?" if chunks is None else f"{chunks:,}",
    }
    return [shown[heading] for heading in _headings(planned)]


def _total_times(planned: Plan) -> list[str]:
    total = planned.document()["total"]
    shown = {
        "GPU-hours": _shown_hours(total["hours"]),
        "hours": _shown_hours(total["wall_hours"]),
        "jobs": "?" if total["chunks"] is None else f"{total['chunks']:,}",
    }
    return [shown[heading] for heading in _headings(planned)]


def _power(value: float | None) -> str:
    return "?" if value is None else f"{value:.2e}"


def _shown_hours(hours: float | None) -> str:
    if hours is None:
        return "?"
    return f"{hours:.3f}" if hours < 1 else f"{hours:,.1f}"
