"""The first half of every command that brings a study on: its data, its plan, what is missing, and whether that can be
done. What comes next is a sweep here or jobs elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablations import reach
from ablations.corpora import prepare_for
from ablations.looks import Look, in_words, look
from ablations.progress import Teller
from ablations.selection import Selection
from ablations.study import PLAN, Data, Study, StudyRun, default_path, open_study

if TYPE_CHECKING:
    from ablations.room import Room

FindRoom = Callable[[int], "Room | None"]
"""The memory that each of so many runs finds; None where it cannot be told from here."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A study that is frozen, checked, and ready to be brought on."""

    study: Study
    asked: tuple[StudyRun, ...]
    """The runs that were asked for; several may come to one directory."""
    looks: tuple[Look, ...]
    """Where each of them stands."""

    @property
    def finished(self) -> bool:
        """Whether nothing is missing."""
        return all(found.finished for found in self.looks)


def make_ready(
    selection: Selection,
    seeds: Sequence[int],
    *,
    path: Path | None,
    source: Path | None,
    room: FindRoom,
    cpus_per_run: float,
    teller: Teller,
) -> Ready:
    """Freeze the study of `selection` with `seeds` and tell what of it is missing.

    `path`: the study's directory; None: under `studies/`. `source`: the corpus's text, if it is not prepared. Raises
    CheckError when a run that is missing cannot be done.
    """
    path = path or default_path(selection)
    data = _data_of(path, selection, source) or _prepared(selection, source, teller)
    study, asked = open_study(path, selection, seeds, data)
    looks = [look(run) for run in asked]
    _check(study, data, looks, room)
    _tell_what_is_left(study, looks, teller)
    for line in reach.notes(selection):
        teller.say(f"note: {line}")
    _tell_of_threads(looks, cpus_per_run, teller)
    return Ready(study=study, asked=tuple(asked), looks=tuple(looks))


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


def _check(study: Study, data: Data, looks: Sequence[Look], room: FindRoom) -> None:
    """Raise CheckError when a run that is to be done cannot be."""
    missing = [found for found in looks if not found.finished]
    if missing:
        from ablations.checks import check_averaging, check_disk, check_fits, check_memory
        from repro.data.prepared import Prepared

        prepared = Prepared.load_same(data.directory, data.digest)
        for found in missing:
            config = found.run.directory.current_config()
            check_averaging(config)
            check_fits(config, prepared)
        memory = room(len({found.run.path for found in missing}))
        if memory is not None:
            check_memory([found.run.directory.config() for found in missing], memory, prepared)
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


def _tell_of_threads(looks: Sequence[Look], cpus_per_run: float, teller: Teller) -> None:
    """Warn when a run is to have more threads than CPUs."""
    configurations = [found.run.directory.config() for found in looks if not found.finished]
    threads = max((config.train.threads for config in configurations), default=1)
    if threads > cpus_per_run:
        told = f"runs train with {threads} threads and are given {cpus_per_run:g} CPUs each"
        teller.say(f"warning: {told}: they will slow each other down (--cpus-per-run {threads})")
