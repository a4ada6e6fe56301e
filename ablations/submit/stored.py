"""Submissions to a cluster that does not see the study: what a job needs is put into a store and comes home from there.

The study stays where it was submitted. The head makes itself one of what is stored, for as long as its job lasts.
"""

from __future__ import annotations

import fcntl
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ablations.conduct import tracked, write_report
from ablations.progress import Teller
from ablations.storage.away import RUNS, everything, scratch, step_of, without_weights
from ablations.storage.home import Home, stored_step
from ablations.storage.objects import Objects
from ablations.storage.trees import Tree
from ablations.study import PLAN, Study, StudyRun
from ablations.submit.frozen import JOBS, Frozen
from repro.errors import CheckError, UserError
from repro.files import disk_error, write_json
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.owned import owned_directory
from repro.shapes import Shape, check_shape

STORAGE = "storage"
"""The name, in what was asked for, of the store's URL."""

_SHAPE: Shape = {"schema": int, "name": str, "study": dict, "work": dict}
_SUBMISSIONS = "submissions"
_PREFIX = ".study-"
_HOME = ".home"
_LOCK = ".home.lock"
_LOOK_SECONDS = 5.0


def storage_of(frozen: Frozen) -> str | None:
    """The URL of the store through which a submission's runs travel; None: every node sees the study."""
    url = frozen.request.get(STORAGE)
    return None if url is None else str(url)


def put(frozen: Frozen, study: Study, runs: Sequence[StudyRun], url: str) -> None:
    """Bring into the store what a job needs to do `frozen`: the list, the plan, the runs and the prepared data.

    Raises CheckError when the store fails or another driver uses the place.
    """
    lost = threading.Event()
    with Home(url, study, runs, sweep=frozen.token, asked=lost.is_set, stop=lost.set):
        document = {"schema": 1, "name": study.name, "study": study.document, "work": frozen.document()}
        Objects(url).write_json(_name(frozen.token), document)
    if lost.is_set():
        raise CheckError("another driver took this place", where=f"--storage {url}", fix="submit again")


@contextmanager
def study_of(url: str, token: str) -> Iterator[Path]:
    """On the head: a study of what was stored for the submission `token`, on this machine's own disk until left.

    Weights stay in the store: the driver has no need of them. Raises CheckError when this machine cannot use the store.
    """
    try:
        objects = Objects(url)
        document = objects.read_json(_name(token))
    except UserError as error:
        raise CheckError(f"the head cannot use {error}") from error
    if document is None:
        fix = "give a URL that leads the head and this machine to the same place"
        raise CheckError(f"the head finds no submission {token} there", where=f"--storage {url}", fix=fix)
    try:
        folder = owned_directory(scratch(url), _PREFIX)
    except OSError as error:
        raise disk_error(error, Path(error.filename or "")) from error
    try:
        check_shape(document, _SHAPE, Path(_name(token)), fix="submit again")
        study = folder / document["name"]
        (study / JOBS).mkdir(parents=True)
        write_json(study / PLAN, document["study"])
        frozen = Frozen.read(study, document["work"], Path(_name(token)))
        frozen.write()
        for tree in _trees(frozen, objects).values():
            if tree.pull(without_weights) is None:
                raise CheckError("is not in the storage", where=f"{url}/{tree.name}", fix="submit again")
        yield study
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fetch(frozen: Frozen, *, weights: bool = True, last: bool = False) -> None:
    """Bring the runs of `frozen` home where the store has got as far as they have.

    `last`: the job has ended; after this the store is not asked again. Raises CheckError when the store fails.
    """
    url, mark = storage_of(frozen), frozen.study / JOBS / f"{frozen.token}{_HOME}"
    if url is None or mark.exists():
        return
    with _locked(frozen.study / JOBS / _LOCK):
        for path, tree in _trees(frozen, Objects(url)).items():
            if stored_step(tree) >= step_of(RunDirectory(path)):
                tree.pull(everything if weights else without_weights)
            if last:
                _bury(RunDirectory(path), frozen)
        if last:
            mark.touch()


def _bury(run: RunDirectory, frozen: Frozen) -> None:
    """Bury a claim that the job of `frozen`, which has ended, has left behind."""
    latest = attempts.newest(run)
    if latest is not None and latest.by.get("submission") == frozen.token and latest.working():
        attempts.bury(latest, f"its job {frozen.token} has ended")


@contextmanager
def coming_home(frozen: Frozen, teller: Teller) -> Iterator[None]:
    """While inside, what the job stores comes home every few seconds, and MLflow follows; when left in order, all of it
    with the weights, and the report. For a job that needs no store: nothing.
    """
    if storage_of(frozen) is None:
        yield
        return
    study = Study.load(frozen.study)
    with tracked(study, teller):
        with _looking(frozen):
            yield
        fetch(frozen, last=True)
    write_report(study, teller)


@contextmanager
def _looking(frozen: Frozen) -> Iterator[None]:
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            with suppress(CheckError):  # the store is away: the next look brings what was missed
                fetch(frozen, weights=False)

    thread = threading.Thread(target=look, name="storage-home", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone in writing what comes home, among all processes that share the disk."""
    with path.open("w") as lock:
        with suppress(OSError):  # some network file systems know no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _trees(frozen: Frozen, objects: Objects) -> dict[Path, Tree]:
    """The stored directories of a submission's runs, by the paths of their copies here."""
    paths = [frozen.study / place for place in frozen.runs]
    return {path: Tree(objects=objects, name=f"{RUNS}/{path.name}", local=path) for path in paths}


def _name(token: str) -> str:
    return f"{_SUBMISSIONS}/{token}.json"
