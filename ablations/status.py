"""What `ablate status` tells: the runs of a study as a table or as a document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ablations.estimate import estimate
from ablations.looks import Look, counts, look
from ablations.study import SEARCH_WARNING, Study
from repro.errors import CheckError

if TYPE_CHECKING:
    from rich.table import Table

    from ablations.submit.places import Queued

_STYLES = {"done": "green", "running": "cyan", "failed": "red", "diverged": "magenta", "stopped": "yellow"}


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
