"""A study from request to report: freeze it, track it, run what is missing, sum it up."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ablations.cluster import Cluster, Resources
from ablations.looks import in_words
from ablations.progress import Teller
from ablations.ready import make_ready
from ablations.search import carrier
from ablations.selection import Selection
from ablations.status import search_table, table
from ablations.study import PLAN, SEARCH_WARNING, Study, StudyRun
from ablations.sweep import Outcome, sweep
from ablations.worker import EXECUTE
from repro.errors import UserError
from repro.runs.execute import AfterDeath

if TYPE_CHECKING:
    from ablations.room import Room

REPORT = Path("report", "index.html")
"""The report's page, in a study."""
PROBES = "probes/*.json"
"""What was measured of mechanisms, in a study."""


def conduct(
    selection: Selection,
    seeds: Sequence[int],
    *,
    path: Path | None,
    source: Path | None,
    resources: Resources,
    teller: Teller,
    after_death: AfterDeath = "resume",
    command: str = "the same command",
    execute: str = EXECUTE,
) -> int:
    """Bring the study of `selection` with `seeds` to its end; the exit code: 0 when all its runs are done, else 1.

    `path`: the study's directory; None: under `studies/`. `source`: the corpus's text, if it is not prepared.
    `command`: how the user said all this, to be said again.
    """
    ready = make_ready(
        selection,
        seeds,
        path=path,
        source=source,
        room=lambda runs: _room(resources, wants_gpu=selection.scale.gpu, runs=runs),
        cpus_per_run=resources.cpus_per_run,
        teller=teller,
    )
    study = ready.study
    if ready.finished:
        outcome = Outcome(looks=ready.looks, interrupted=False)
        close_finished(study, teller)
    else:
        with tracked(study, teller):
            outcome = sweep(
                study,
                ready.asked,
                resources,
                teller,
                wants_gpu=selection.scale.gpu,
                after_death=after_death,
                execute=execute,
                carry=carrier(selection) if selection.search is not None else Cluster.run,
            )
            write_report(study, teller)
    return sum_up(study, outcome, command, teller)


def _room(resources: Resources, *, wants_gpu: bool, runs: int) -> Room | None:
    from ablations.room import Room

    return Room.of_sweep(resources, wants_gpu=wants_gpu, runs=runs)


@contextmanager
def tracked(study: Study, teller: Teller) -> Iterator[None]:
    """While inside, MLflow follows the run directories. A database file is made before any run starts.

    A server is not asked for anything here: one that does not answer would hold up the training.
    """
    from ablations.tracking import open_tracking

    tracking = open_tracking(study.path)
    if tracking.store.database is not None:
        tracking.prepare()
    follower = tracking.follow()
    try:
        yield
    finally:
        synced = follower.close()
        if synced is not None:
            teller.say(str(synced))


def close_finished(study: Study, teller: Teller) -> None:
    """Bring report and MLflow up to date if an earlier command could not. MLflow is imported when there is something to
    send, and only then.
    """
    write_report(study, teller)
    from ablations.tracking import open_tracking

    synced = open_tracking(study.path).sync()
    if synced.changed or not synced.complete:
        teller.say(str(synced))


def write_report(study: Study, teller: Teller) -> None:
    """Write the report unless it is newer than everything that it tells of; a search has none."""
    if study.searched:
        return
    page = study.path / REPORT
    records = [study.path / PLAN, *study.path.glob(PROBES)]
    records += [run.path / name for run in study.runs for name in ("result.json", "status.json")]
    newest = max(record.stat().st_mtime for record in records if record.exists())
    if not page.exists() or page.stat().st_mtime <= newest:
        from reports.pages import page as pages

        try:
            page = pages.write_report(study.path)
        except UserError as error:
            teller.say(f"no report: {error}")
            return
    teller.say(f"report: {page}")


def sum_up(study: Study, outcome: Outcome, command: str, teller: Teller, *, pages: bool = True) -> int:
    """Tell what came of the runs that were asked for, and how to go on; the exit code: 0 when all are done, else 1.

    `pages`: whether MLflow has pages of it here.
    """
    looks = outcome.looks
    title = f"{study.name}: {in_words(looks)}"
    teller.console.print(search_table(study, looks, title) if study.searched else table(looks, title))
    left = [found for found in looks if found.status.state != "done" and not found.stopped_by_asha]
    if study.searched:
        teller.say(SEARCH_WARNING)
    for found in left:
        if found.status.state in ("failed", "diverged"):
            teller.say(f"{_name(found.run)} {found.status.state}: {found.status.reason}")
    if outcome.interrupted:
        teller.say(f"interrupted; to go on from here: {command}")
    elif outcome.unfinished:
        teller.say(f"to try again what is unfinished: {command}")
    if pages:
        teller.say(f"MLflow's pages: ablate ui {shlex.quote(str(study.path))}")
    return 1 if left else 0


def _name(run: StudyRun) -> str:
    return f"{run.variant} seed {run.seed}"
