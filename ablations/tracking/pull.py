"""`ablate pull`: makes a study directory again from what `ablate sync` has stored in MLflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ablations.study import PLAN, RUNS, Study, StudyRun
from ablations.tracking.artifacts import (
    CLAIM,
    FILES,
    HYPOTHESES,
    RUN_FILES,
    short_digest,
    short_digests,
    stored_digests,
)
from ablations.tracking.errors import TrackingError
from ablations.tracking.locks import exclusive
from ablations.tracking.marker import Mark, Marker
from ablations.tracking.projection import DUPLICATE
from ablations.tracking.projector import LOCK
from ablations.tracking.pulled import AGAIN, check_plan, check_run, merged, rewording
from ablations.tracking.records import STUDY_ID, fingerprint
from ablations.tracking.server import Server, Tracked, run_id_of
from ablations.tracking.stores import Store, has_schema
from repro.errors import CheckError, UsageError
from repro.files import write_bytes, write_json
from repro.runs.attempts import claims
from repro.runs.directory import RunDirectory

_PATIENCE = 10.0
_ROOM = ".pull"
"""Where a run is put together, in the study: what stands under `runs/` is whole."""
_NAMED = 8
"""Experiments or studies that an error lists."""
_UNFINISHED = ("running", "planned", "")


@dataclass(kw_only=True, slots=True)
class PullReport:
    """What one pull brought."""

    store: str
    experiment: str
    study: Path
    pulled: int = 0
    kept: int = 0
    """Runs that were here, with as much or more."""
    unfinished: int = 0
    """Runs that somebody works on, or whose records have not all arrived there."""
    planned: int = 0
    """Runs of which the store knows nothing."""
    problems: list[str] = field(default_factory=list)
    """One line for each run whose records there are damaged."""

    def __str__(self) -> str:
        """In plain words: one line, one on checkpoints, and one more for each problem."""
        counts = (
            (self.kept, "here already"),
            (self.unfinished, "not finished there (they come once they are, and synced)"),
            (self.planned, "not begun"),
        )
        told = ", ".join([f"{self.pulled} runs pulled", *(f"{count} {words}" for count, words in counts if count)])
        return "\n".join(
            [
                f"{self.study}: {told}, from MLflow at {self.store}, experiment {self.experiment}",
                "Checkpoints are not kept in MLflow, so none were pulled.",
                *self.problems,
            ]
        )


def pull(directory: Path, experiment: str, store: Store, *, wanted: str | None = None) -> PullReport:
    """Bring what `store` has of a study in `experiment` into `directory`, adding what is missing there.

    `wanted`: the study's id or name, where the experiment has several. A run that is done, running or has checkpoints
    here stays as it is. Cut short, the next call goes on. Raises UsageError or CheckError when the store does not
    answer, has no such study, or when `directory` holds something else.
    """
    if store.database is not None and not has_schema(store.database):
        raise CheckError("no MLflow database", where=store.name, fix="name the one that `ablate sync` wrote to")
    try:
        server = Server(store)
        id = _experiment(server, experiment)
        parent = _parent(server, id, experiment, wanted)
        _check_place(directory)
        directory.mkdir(parents=True, exist_ok=True)
        with exclusive(directory / LOCK, seconds=_PATIENCE, name="pull"):
            return _Pull(directory, server, parent, experiment).all_of(id)
    except TrackingError as error:
        raise CheckError(str(error), fix="the same command goes on from here") from error


def _check_place(directory: Path) -> None:
    """Raise CheckError when `directory` holds something else than a study."""
    if not directory.is_dir() or (directory / PLAN).exists():
        return
    if left := [path.name for path in directory.iterdir() if not path.name.startswith(".")]:
        what = f"is no study and not empty (holds {min(left)!r})"
        raise CheckError(what, where=str(directory), fix="choose another directory with --study")


def _experiment(server: Server, name: str) -> str:
    found = server.experiments()
    if name not in found:
        has = ", ".join(sorted(other for other in found if other != "Default")[:_NAMED]) or "none"
        raise UsageError(f"no experiment {name!r} at {server.store.name}", where="--experiment", fix=f"it has: {has}")
    return found[name]


def _parent(server: Server, experiment: str, name: str, wanted: str | None) -> Tracked:
    """The parent run of the study `wanted`, an id or a name; without it, of the only one."""
    by_id: dict[str, Tracked] = {}
    for parent in server.parents(experiment):
        if DUPLICATE not in parent.tags and parent.tags.get(STUDY_ID):
            by_id.setdefault(parent.tags[STUDY_ID], parent)
    found = [parent for id, parent in by_id.items() if wanted in (None, id, parent.tags.get("ablate.study"))]
    if len(found) == 1:
        return found[0]
    told = [f"{id} ({parent.tags.get('ablate.study', '')})" for id, parent in sorted(by_id.items())][:_NAMED]
    if not told:
        raise CheckError("no study there", where=f"experiment {name}", fix="run `ablate sync` where the study is")
    what = f"{len(found)} studies there" if wanted is None else f"{len(found)} studies are {wanted!r}"
    raise UsageError(what, where=f"experiment {name}", fix="choose one with --study-id: " + ", ".join(told))


class _Pull:
    """One study on its way from the store into a directory."""

    def __init__(self, directory: Path, server: Server, parent: Tracked, experiment: str) -> None:
        self._directory, self._server, self._parent = directory, server, parent
        self._room = directory / _ROOM
        self._aside = self._room / "aside"
        self._report = PullReport(store=server.store.name, experiment=experiment, study=directory)
        self._marker = Marker.load(directory, server.store.key)

    def all_of(self, experiment: str) -> PullReport:
        """Plan first, then run by run."""
        self._tidy()  # after a pull that was cut short
        try:
            study = self._plan()
            children: dict[str, Tracked] = {}
            there = self._server.runs(experiment, self._parent.tags[STUDY_ID])
            for child in sorted(there, key=lambda child: child.age):
                if not child.deleted and DUPLICATE not in child.tags:
                    children.setdefault(run_id_of(child), child)
            for run in {run.path: run for run in (*study.superseded, *study.runs)}.values():
                self._one(run, children.get(run.id))
        finally:
            self._tidy()
            if self._marker.runs:
                self._marker.save()
        return self._report

    def _tidy(self) -> None:
        """Put back a run that was moved aside for one that did not come, and remove what is left of others."""
        for path in self._aside.glob("*"):
            if not (self._directory / RUNS / path.name).exists():
                path.rename(self._directory / RUNS / path.name)
        shutil.rmtree(self._room, ignore_errors=True)

    def _plan(self) -> Study:
        """The plan in the directory, which has at least what the store's has. Raises CheckError if it cannot."""
        where = f"{PLAN} of the study {self._parent.tags[STUDY_ID]} there"
        content = self._server.file(self._parent, PLAN)
        expected = stored_digests(self._parent.tags).get(PLAN, "")
        if content is None or (expected and short_digest(content) != expected):
            what = "missing" if content is None else "damaged: not what was stored"
            raise CheckError(what, where=where, fix=AGAIN)
        write_bytes(self._room / PLAN, content)
        with rewording(where):
            theirs = Study.load(self._room)
        check_plan(theirs, self._parent.tags[STUDY_ID], where=where)
        plan = self._directory / PLAN
        if plan.exists():
            here = Study.load(self._directory)
            document = merged(here, theirs)
            if document is not here.document:
                write_json(plan, document)
        else:
            write_bytes(plan, content)
        return Study.load(self._directory)

    def _one(self, run: StudyRun, child: Tracked | None) -> None:
        """Pull one run if the store has more of it than the directory."""
        report = self._report
        try:
            if child is None:
                here = run.path.exists() and run.directory.status().state != "planned"
                report.kept += here
                report.planned += not here
            elif not _has_less(run.directory, child):
                report.kept += 1
                self._mark(run, child)
            elif child.tags.get("state", "") in _UNFINISHED or FILES not in child.tags:
                report.unfinished += 1
            else:
                made = self._fetch(run, child)
                moved = self._place(made, run, child)
                report.pulled += moved
                report.kept += not moved
                self._mark(run, child)
        except CheckError as error:
            report.problems.append(f"run {run.id} is left out: {error}")

    def _fetch(self, run: StudyRun, child: Tracked) -> Path:
        """The run's records in a directory of their own, checked. Raises CheckError when they are damaged."""
        made = self._room / run.path.name
        for name, digest in _names(child).items():
            content = self._server.file(child, name)
            if digest and short_digest(content or b"") != digest:
                what = "is missing" if content is None else "is not what was stored"
                raise CheckError(f"its {name} {what}", where=f"MLflow run {child.id}", fix=AGAIN)
            if content is not None:
                write_bytes(made / name, content)
        check_run(RunDirectory(made), run.hash, where=f"MLflow run {child.id}")
        for claim in claims(RunDirectory(made)):
            # The heartbeat of an attempt that has ended without a word: else it would seem to beat since just now.
            os.utime(claim.path, (claim.started, claim.started))
        state, theirs = RunDirectory(made).status().state, child.tags["state"]
        if state != theirs:
            raise CheckError(f"it is {theirs} there, {state} by its records", where=f"MLflow run {child.id}", fix=AGAIN)
        return made

    def _place(self, made: Path, run: StudyRun, child: Tracked) -> bool:
        """Move the whole run to its place. Returns whether it went there: somebody may have begun it just now."""
        run.path.parent.mkdir(exist_ok=True)
        aside = self._aside / run.path.name
        if run.path.exists():
            self._aside.mkdir(parents=True, exist_ok=True)
            run.path.rename(aside)
            if not _has_less(RunDirectory(aside), child):
                aside.rename(run.path)
                return False
        made.rename(run.path)
        shutil.rmtree(aside, ignore_errors=True)
        return True

    def _mark(self, run: StudyRun, child: Tracked) -> None:
        """Note which MLflow run holds what is here: reports name it, and a sync has nothing to send."""
        stored = {name: digest for name, digest in _names(child).items() if digest}
        if stored and short_digests({name: run.path / name for name in stored}) == stored:
            status = run.directory.status()
            ended = int(status.updated * 1000)
            mark = Mark(child=child.id, fingerprint=fingerprint(run), state=status.state, ended=ended)
            self._marker.runs[run.id] = mark


def _has_less(run: RunDirectory, child: Tracked) -> bool:
    """Whether the store has more of a run than its directory here.

    One with checkpoints was trained here and can go on, which a pulled one cannot. Raises CheckError when the
    directory is damaged.
    """
    if not run.path.exists():
        return True
    status = run.status()
    if status.state in ("done", "diverged", "running") or run.checkpoints.exists():
        return False
    theirs = child.tags.get("attempt", "")
    further = theirs.isascii() and theirs.isdigit() and int(theirs) > status.attempt
    return status.state == "planned" or further or child.tags.get("state") == "done"


def _names(child: Tracked) -> Mapping[str, str]:
    """The records of a run that may be asked for, with the beginnings of their digests where they are known."""
    known = stored_digests(child.tags)
    if known:
        names = (*RUN_FILES, *HYPOTHESES)
        return {name: digest for name, digest in known.items() if name in names or CLAIM.fullmatch(name)}
    number = child.tags.get("attempt", "")
    last = min(int(number), 9999) if number.isascii() and number.isdigit() else 0
    return dict.fromkeys((*RUN_FILES, *HYPOTHESES, *(f"attempts/{n:04d}.json" for n in range(1, last + 1))), "")
