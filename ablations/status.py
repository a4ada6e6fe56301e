"""Where every run of a study stands, as its directory tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablations.study import Study, StudyRun
from repro.errors import CheckError
from repro.runs.directory import Status

if TYPE_CHECKING:
    from rich.table import Table

FINISHED = ("done", "diverged")
"""States that are an outcome: such a run is not run again."""

_STYLES = {"done": "green", "running": "cyan", "failed": "red", "diverged": "magenta", "stopped": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One run at one moment."""

    run: StudyRun
    status: Status
    bleu: float | None
    """BLEU on the test side once done."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.status.state in FINISHED

    @property
    def remark(self) -> str:
        """Whose run this one is, which attempt it took, and the reason of its state."""
        twin = f"same configuration as {self.run.same_as}" if self.run.same_as else ""
        again = f"attempt {self.status.attempt}" if self.status.attempt > 1 else ""
        return "; ".join(part for part in (twin, again, self.status.reason) if part)


def look(run: StudyRun) -> Look:
    """Where `run` stands now. A damaged directory is a failed run with the damage as its reason."""
    try:
        status = run.directory.status()
        result = run.directory.result() if status.state == "done" else None
    except CheckError as error:
        return Look(run=run, status=Status(state="failed", reason=str(error)), bleu=None)
    bleu = result.get("test", {}).get("bleu") if result else None
    return Look(run=run, status=status, bleu=bleu)


def document(study: Study) -> dict[str, Any]:
    """The study's runs as `status --json` prints them."""
    looks = [look(run) for run in study.planned]
    return {
        "study": study.name,
        "table": study.table,
        "scale": study.scale,
        "counts": counts(looks),
        "runs": [_entry(found) for found in looks],
    }


def _entry(found: Look) -> dict[str, Any]:
    run, status = found.run, found.status
    return {
        "id": run.id,
        "variant": run.variant,
        "seed": run.seed,
        "state": status.state,
        "attempts": status.attempt,
        "step": status.step,
        "progress": status.progress,
        "reason": status.reason,
        "directory": str(run.path),
        "same_as": run.same_as,
        "bleu": found.bleu,
        "updated": status.updated,
        "host": status.host,
        "pid": status.pid,
        "target_tokens_per_second": status.target_tokens_per_second,
    }


def counts(looks: Iterable[Look]) -> dict[str, int]:
    """How many runs are in each state."""
    return dict(sorted(Counter(found.status.state for found in looks).items()))


def in_words(looks: Iterable[Look]) -> str:
    """The counts as one phrase: "3 done, 1 failed"."""
    return ", ".join(f"{count} {state}" for state, count in counts(looks).items()) or "no runs"


def table(looks: Sequence[Look], title: str) -> Table:
    """The runs as a table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    # As text: in a name given by a user, brackets are no markup.
    grid = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    grid.add_column("variant", no_wrap=True)
    for heading in ("seed", "state", "step", "done", "tokens/s", "BLEU"):
        grid.add_column(heading, no_wrap=True, justify="left" if heading == "state" else "right")
    grid.add_column("", ratio=1)
    for found in looks:
        status = found.status
        grid.add_row(
            Text(found.run.variant),
            str(found.run.seed),
            Text(status.state, style=_STYLES.get(status.state, "")),
            str(status.step or ""),
            f"{100 * status.progress:.0f} %" if status.progress else "",
            f"{status.target_tokens_per_second:,.0f}" if status.target_tokens_per_second else "",
            "" if found.bleu is None else f"{found.bleu:.2f}",
            Text(found.remark),
        )
    return grid
