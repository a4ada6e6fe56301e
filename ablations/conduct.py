"""A study from request to report: freeze it, track it, run what is missing, sum it up."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ablations import reach
from ablations.cluster import Cluster, Resources
from ablations.corpora import prepare_for
from ablations.progress import Teller
from ablations.search import carrier
from ablations.selection import Selection
from ablations.status import Look, in_words, look, search_table, table
from ablations.study import PLAN, SEARCH_WARNING, Data, Study, StudyRun, default_path, open_study
from ablations.sweep import Outcome, sweep
from ablations.worker import EXECUTE
from repro.errors import UserError
from repro.runs.execute import AfterDeath

REPORT = Path("report", "index.html")
"""The report's page, in a study."""


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
    path = path or default_path(selection)
    data = _data_of(path, selection, source) or _prepared(selection, source, teller)
    study, asked = open_study(path, selection, seeds, data)
    looks = [look(run) for run in asked]
    _check(study, data, looks, resources, wants_gpu=selection.scale.gpu)
    _tell_what_is_left(study, looks, teller)
    for line in reach.notes(selection):
        teller.say(f"note: {line}")
    _tell_of_threads(looks, resources, teller)
    if all(found.finished for found in looks):
        outcome = Outcome(looks=tuple(looks), interrupted=False)
        _write_report(study, teller)
        _track_again(study, teller)
    else:
        with _tracked(study, teller):
            outcome = sweep(
                study,
                asked,
                resources,
                teller,
                wants_gpu=selection.scale.gpu,
                after_death=after_death,
                execute=execute,
                carry=carrier(selection) if selection.search is not None else Cluster.run,
            )
            _write_report(study, teller)
    return _sum_up(study, outcome, command, teller)


def _data_of(path: Path, selection: Selection, source: Path | None) -> Data | None:
    """The corpus of the study in `path`, if there is one, its corpus is the one asked for and it is still there.

    It is not opened, which would take seconds: a study with nothing left to run has no need of it.
    """
    if source is not None or not (path / PLAN).is_file():
        return None
    study = Study.load(path)
    theirs, asked = study.data, selection.base.data
    same = study.document["base"].get("data") == dataclasses.asdict(asked) | {"digest": theirs.digest}
    return theirs if same and theirs.directory.is_dir() else None


def _prepared(selection: Selection, source: Path | None, teller: Teller) -> Data:
    data = selection.base.data
    prepared = prepare_for(data, source=source, say=teller.say)
    return Data(
        corpus=data.corpus,
        directory=prepared.directory,
        digest=prepared.digest,
        vocabulary_size=data.vocabulary_size,
    )


def _check(study: Study, data: Data, looks: Sequence[Look], resources: Resources, *, wants_gpu: bool) -> None:
    """Raise CheckError when a run that is to be done cannot be."""
    missing = [found for found in looks if not found.finished]
    if missing:
        from ablations.checks import check_averaging, check_disk, check_fits, check_memory
        from ablations.room import Room
        from repro.data.prepared import Prepared

        prepared = Prepared.load_same(data.directory, data.digest)
        for found in missing:
            config = found.run.directory.current_config()
            check_averaging(config)
            check_fits(config, prepared)
        room = Room.of_sweep(resources, wants_gpu=wants_gpu, runs=len({found.run.path for found in missing}))
        if room is not None:
            check_memory([found.run.directory.config() for found in missing], room, prepared)
        trained = {found.run.path: found for found in missing if found.status.attempt == 0}
        check_disk(study.path, [found.run.directory.config() for found in trained.values()])


def _tell_what_is_left(study: Study, looks: Sequence[Look], teller: Teller) -> None:
    teller.say(f"study {study.path}: {study.table} at {study.scale}, asked for: {in_words(looks)}")
    for found in looks:
        run, status = found.run, found.status
        name = f"{run.variant} seed {run.seed}"
        if run.same_as:
            teller.say(f"{name}: same configuration as {run.same_as}, not run twice")
        elif status.state == "done":
            score = f", test BLEU {found.bleu:.2f}" if found.bleu is not None else ""
            teller.say(f"{name}: done already at step {status.step}{score}, not run again")
        elif status.state == "diverged":
            teller.say(f"{name}: diverged already ({status.reason}), not run again")
        elif found.stopped_by_asha:
            teller.say(f"{name}: {status.reason}, not run again")
        elif status.state in ("failed", "stopped"):
            teller.say(f"{name}: {status.state} before ({status.reason}), tried again")
        elif run.replaces:
            teller.say(f"{name} is new: {run.why}; {_about_the_old_run(study, run)}")
    if all(found.finished for found in looks):
        teller.say("nothing is missing, nothing is run")


def _about_the_old_run(study: Study, run: StudyRun) -> str:
    """Where the run is that `run` replaces, and whether its steps are done again."""
    old = next((old.path for old in study.superseded if old.id == run.replaces), None)
    told = f"the old run stays in {old.relative_to(study.path)}" if old is not None else "the old run was taken back"
    shorter = run.directory.continues()
    return told if shorter is None else f"{told}, its steps are not done again as far as checkpoints allow"


def _tell_of_threads(looks: Sequence[Look], resources: Resources, teller: Teller) -> None:
    """Warn when a run is to have more threads than CPUs."""
    configurations = [found.run.directory.config() for found in looks if not found.finished]
    threads = max((config.train.threads for config in configurations), default=1)
    if threads > resources.cpus_per_run:
        told = f"runs train with {threads} threads and are given {resources.cpus_per_run:g} CPUs each"
        teller.say(f"warning: {told}: they will slow each other down (--cpus-per-run {threads})")


@contextmanager
def _tracked(study: Study, teller: Teller) -> Iterator[None]:
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


def _track_again(study: Study, teller: Teller) -> None:
    """Bring MLflow up to date if an earlier command could not. MLflow is not imported when nothing is to be sent."""
    from ablations.tracking import open_tracking

    synced = open_tracking(study.path).sync()
    if synced.changed or not synced.complete:
        teller.say(str(synced))


def _write_report(study: Study, teller: Teller) -> None:
    """Write the report unless it is newer than everything that it tells of; a search has none."""
    if study.searched:
        return
    page = study.path / REPORT
    records = [study.path / PLAN, *(run.path / name for run in study.runs for name in ("result.json", "status.json"))]
    newest = max(record.stat().st_mtime for record in records if record.exists())
    if not page.exists() or page.stat().st_mtime <= newest:
        from reports.page import write_report

        try:
            page = write_report(study.path)
        except UserError as error:
            teller.say(f"no report: {error}")
            return
    teller.say(f"report: {page}")


def _sum_up(study: Study, outcome: Outcome, command: str, teller: Teller) -> int:
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
    teller.say(f"MLflow's pages: ablate ui {shlex.quote(str(study.path))}")
    return 1 if left else 0


def _name(run: StudyRun) -> str:
    return f"{run.variant} seed {run.seed}"
