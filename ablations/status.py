"""Where every run of a study stands, as its directory tells it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablations.estimate import estimate
from ablations.study import SEARCH_WARNING, Study, StudyRun
from repro.errors import CheckError
from repro.runs import attempts
from repro.runs.directory import Status

if TYPE_CHECKING:
    from rich.table import Table

    from ablations.submit.queued import Queued

FINISHED = ("done", "diverged")
"""States that are an outcome: such a run is not run again."""
STOPPED_BY_ASHA = "stopped by ASHA"
"""How the reason of a search's sample begins that was stopped for good, before its budget."""
_QUIET_SECONDS = 60.0
"""Silence of a run at work elsewhere that is told: three heartbeats."""

_STYLES = {"done": "green", "running": "cyan", "failed": "red", "diverged": "magenta", "stopped": "yellow"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One run at one moment."""

    run: StudyRun
    status: Status
    bleu: float | None
    """BLEU on the test side once done."""
    seconds: float = 0.0
    """Of a finished run: all its work, from the first step to the result."""
    silence: float = 0.0
    """Of a run that has not ended and whose owner cannot be looked up from here: seconds since its last sign of life.
    Nothing more is known of it: whether it is dead can only be told on its own machine."""

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.status.state in FINISHED or self.stopped_by_asha

    @property
    def stopped_by_asha(self) -> bool:
        """Whether a search stopped it for good."""
        return self.status.state == "stopped" and self.status.reason.startswith(STOPPED_BY_ASHA)

    @property
    def remark(self) -> str:
        """Whose run this one is, which attempt it took, and the reason of its state."""
        twin = f"same configuration as {self.run.same_as}" if self.run.same_as else ""
        again = f"attempt {self.status.attempt}" if self.status.attempt > 1 else ""
        silent = f"silent for {self.silence:.0f} s" if self.silence > _QUIET_SECONDS else ""
        return "; ".join(part for part in (twin, again, silent, self.status.reason) if part)


def look(run: StudyRun) -> Look:
    """Where `run` stands now. A damaged directory is a failed run with the damage as its reason."""
    try:
        status = run.directory.status()
        result = run.directory.result() if status.state == "done" else None
        silence = _silence(run) if status.state in ("running", "stopped") else 0.0
    except (CheckError, OSError) as error:  # a network file system may fail for a moment: then it is looked at again
        return Look(run=run, status=Status(state="failed", reason=str(error)), bleu=None)
    result = result or {}
    seconds = [float(value) for value in result.get("seconds", {}).values() if isinstance(value, int | float)]
    return Look(
        run=run,
        status=status,
        bleu=result.get("test", {}).get("bleu"),
        seconds=math.fsum(seconds),
        silence=silence,
    )


def _silence(run: StudyRun) -> float:
    """Seconds since the owner's last sign of life, where only that can be seen from here; else 0."""
    latest = attempts.newest(run.directory)
    if latest is None or latest.ended is not None:
        return 0.0
    told = latest.owner is not None and latest.owner.alive() is not None
    return 0.0 if told else max(0.0, latest.silence())


def document(study: Study, queue: Queued | None = None) -> dict[str, Any]:
    """The study's runs as `status --json` prints them; `queue`: where they stand in a queue, if they were submitted."""
    looks = [look(run) for run in study.planned]
    now = time.time()
    return {
        "study": study.name,
        "table": study.table,
        "scale": study.scale,
        "kind": study.document.get("kind", "table"),
        "warning": SEARCH_WARNING if study.searched else None,
        "counts": counts(looks),
        "estimate": estimate(study, looks).document(now),
        "runs": [_entry(found) | _objective(study, found) | _queue_entry(queue, found) for found in looks],
        "superseded": [
            {"id": run.id, "variant": run.variant, "seed": run.seed, "reason": run.why, "directory": str(run.path)}
            for run in study.superseded
        ],
        "history": [{key: entry[key] for key in ("until", "why")} for entry in study.document.get("history", [])],
    } | ({"queue": queue.document()} if queue is not None else {})


def notes(study: Study, looks: Sequence[Look]) -> list[str]:
    """What stands below the table of a study's runs, one line each."""
    lines = [SEARCH_WARNING] if study.searched else []
    lines.append(estimate(study, looks).in_words(time.time()))
    why: dict[str, list[str]] = {}
    for run in study.superseded:
        why.setdefault(run.why, []).append(run.id)
    for reason, ids in why.items():
        shown = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        lines.append(f"superseded ({reason}), kept on disk: {shown}")
    return lines


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
        "silent_seconds": round(found.silence, 1),
        "target_tokens_per_second": status.target_tokens_per_second,
    }


def _queue_entry(queue: Queued | None, found: Look) -> dict[str, Any]:
    return {} if queue is None else {"queue": queue.entry(found.run)}


def _objective(study: Study, found: Look) -> dict[str, Any]:
    """Of a search's sample: its last validation score and the step of it."""
    if not study.searched:
        return {}
    score = last_score(study, found)
    return {
        "objective": study.document["search"]["objective"],
        "objective_value": score[1] if score is not None else None,
        "objective_step": score[0] if score is not None else None,
    }


def last_score(study: Study, found: Look) -> tuple[int, float] | None:
    """The step and the value of the objective at the last evaluation of a search's sample."""
    objective = study.document["search"]["objective"]
    try:
        lines = found.run.directory.metrics()
    except CheckError:
        return None  # its metrics are damaged: its reason tells
    return max(((line.step, line.metrics[objective]) for line in lines if objective in line.metrics), default=None)


def ranked(study: Study, looks: Sequence[Look]) -> list[tuple[Look, tuple[int, float] | None]]:
    """The samples of a search, best objective first, each with its last score; those without one come last.

    Their budgets are unequal: the ranking is of what was seen, not of what each would come to.
    """
    sign = -1.0 if study.document["search"]["objective"] == "valid/bleu" else 1.0
    pairs = [(found, last_score(study, found)) for found in looks]
    return sorted(pairs, key=lambda pair: (pair[1] is None, sign * pair[1][1] if pair[1] is not None else 0.0))


def search_table(study: Study, looks: Sequence[Look], title: str) -> Table:
    """The samples of a search for a terminal, best objective first, with what each was and how far it came."""
    from rich.table import Table
    from rich.text import Text

    titles = {entry["id"]: entry["title"] for entry in study.document["variants"]}
    grid = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    grid.add_column("sample", no_wrap=True)
    for heading in (study.document["search"]["objective"], "at step", "of"):
        grid.add_column(heading, no_wrap=True, justify="right")
    grid.add_column("state", no_wrap=True)
    grid.add_column("settings", ratio=2)
    grid.add_column("", ratio=1)
    budget = f"{study.document['base']['train']['budget']:g}"
    for found, score in ranked(study, looks):
        state = Text(found.status.state, style=_STYLES.get(found.status.state, ""))
        step, value = (str(score[0]), f"{score[1]:.2f}") if score is not None else ("", "")
        settings = Text(titles.get(found.run.variant, ""))
        grid.add_row(Text(found.run.variant), value, step, budget, state, settings, Text(found.remark))
    return grid


def counts(looks: Iterable[Look]) -> dict[str, int]:
    """How many runs are in each state; one that stands for several rows counts once."""
    states = {found.run.path: found.status.state for found in looks}
    return dict(sorted(Counter(states.values()).items()))


def in_words(looks: Iterable[Look]) -> str:
    """The counts as one phrase: "3 done, 1 failed"."""
    return ", ".join(f"{count} {state}" for state, count in counts(looks).items()) or "no runs"


def table(looks: Sequence[Look], title: str, queue: Queued | None = None) -> Table:
    """The runs as a table for a terminal, with their places in a queue if they were submitted."""
    from rich.table import Table
    from rich.text import Text

    # As text: in a name given by a user, brackets are no markup.
    grid = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    grid.add_column("variant", no_wrap=True)
    for heading in ("seed", "state", "step", "done", "tokens/s", "BLEU"):
        grid.add_column(heading, no_wrap=True, justify="left" if heading == "state" else "right")
    if queue is not None:
        grid.add_column("queue")
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
            *([] if queue is None else [Text(queue.told(found.run))]),
            Text(found.remark),
        )
    return grid
