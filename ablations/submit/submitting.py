"""What every way of submitting does: alone at a time, only what nothing queued covers, all of it frozen first."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ablations.looks import Look
from ablations.progress import Teller
from ablations.study import Study, StudyRun
from ablations.submit.frozen import JOBS, Frozen, Mode, Options
from ablations.submit.snapshot import Snapshot
from ablations.sweep import each_once
from repro.files import disk_error

_LOCK = ".lock"


@contextmanager
def alone(study: Path, teller: Teller) -> Iterator[Path]:
    """Alone in submitting runs of the study in `study`, among all processes that share the disk; the jobs' folder.

    Of two commands that submit at once the second then finds what the first has queued.
    """
    folder = study / JOBS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk_error(error, folder) from error
    try:
        with suppress(OSError):  # some network file systems know no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                teller.say("another command submits runs of this study just now: waiting for it")
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(handle)


def uncovered(looks: Sequence[Look], covered: Mapping[Path, str], teller: Teller) -> list[StudyRun]:
    """The runs without an outcome that neither a queued job covers nor somebody works on, each directory once.

    `covered`: the job that a run is waiting for or in, in words, by the run's directory. What is left out is told.
    """
    missing = {found.run.path: found for found in looks if not found.finished}
    left = []
    for run in each_once([found.run for found in looks if not found.finished]):
        status = missing[run.path].status
        if run.path in covered:
            teller.say(f"{run.variant} seed {run.seed}: {covered[run.path]}, not submitted again")
        elif status.state == "running":
            teller.say(f"{run.variant} seed {run.seed}: {status.host} works on it, not submitted")
        else:
            left.append(run)
    return left


def new_token() -> str:
    """A name for one submission that nothing else has."""
    return secrets.token_hex(5)


def freeze(
    study: Study,
    runs: Sequence[StudyRun],
    code: Snapshot,
    *,
    token: str,
    mode: Mode,
    options: Options,
    command: str,
    request: Mapping[str, Any],
) -> Frozen:
    """The list of `runs` to be done under `token`, kept in the study."""
    frozen = Frozen(
        study=study.path.absolute(),
        token=token,
        mode=mode,
        code=os.path.relpath(code.path, study.path.absolute()),
        runs=tuple(os.path.relpath(run.path, study.path) for run in runs),
        options=options,
        command=command,
        request=request,
    )
    frozen.write()
    return frozen


def job_environment() -> dict[str, str]:
    """What a job needs of this environment, by name; no secrets, for it is written into files."""
    environment = {"PYTHONSAFEPATH": "1"}  # nothing is imported from the directory that a job happens to start in
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if uri and not urlsplit(uri).password:
        environment["MLFLOW_TRACKING_URI"] = uri
    return environment
