"""`ablate submit ray`: what is missing of a study as a job of a Ray cluster that runs anyway.

The job's driver runs on the cluster's head and conducts the sweep there. The study must be on a disk that this machine,
the head and all nodes see under the same path, or travels through a store; the program itself is sent along, as it is
at submission.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ablations.cluster import Resources
from ablations.conduct import close_finished
from ablations.progress import Teller
from ablations.ready import Ready, make_ready
from ablations.selection import Selection
from ablations.storage.objects import Objects
from ablations.study import StudyRun, default_path
from ablations.submit.frozen import Frozen, Options, submissions
from ablations.submit.jobserver import UPLOAD_LIMIT, Job, JobServer, job_address
from ablations.submit.queued import queued
from ablations.submit.rayjobs import LIVE, MODE, OVER, end_of, look, looked_at, name_of
from ablations.submit.snapshot import Snapshot, snapshot, would_be
from ablations.submit.stored import STORAGE, coming_home, fetch, put, storage_of
from ablations.submit.submitting import alone, freeze, job_environment, new_token, uncovered
from repro.errors import CheckError, UserError
from repro.runs.execute import AfterDeath

TOKEN_TO_COME = "0000000000"
"""Stands for the job's id where it is only shown."""
SAVING_SECONDS = 120
"""Time that a job has for saving its runs when it is stopped; Ray itself would give it three seconds."""

_EXIT_CODES = (1, 2, 3)
_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """How the job is to be run."""

    address: str
    """The job server's, http://HOST:8265."""
    resources: Resources = dataclasses.field(default_factory=Resources)
    after_death: AfterDeath = "resume"
    python: str = "python"
    """The interpreter on the head, with what the program needs installed."""
    storage: str | None = None
    """The URL of a store through which the study travels; None: the head and all nodes see it."""
    follow: bool = True
    """Whether to show what the job says until it ends."""


def submit(
    selection: Selection,
    seeds: Sequence[int],
    *,
    path: Path | None,
    source: Path | None,
    wanted: Wanted,
    teller: Teller,
    command: str,
) -> int:
    """Hand what is missing of a study and in no job yet to a cluster, and follow the job; the exit code.

    Where a job is at it already, that one is followed. Without following the code is 0 as soon as the cluster has the
    job, else that of the job.
    """
    if wanted.storage is not None:  # what is wrong with the URL is told before anything is done
        wanted = dataclasses.replace(wanted, storage=Objects(wanted.storage).url)
    server = JobServer(wanted.address)
    _bring_home(path or default_path(selection), teller)
    ready = make_ready(
        selection,
        seeds,
        path=path,
        source=source,
        room=lambda _: None,
        cpus_per_run=wanted.resources.cpus_per_run,
        teller=teller,
    )
    if ready.finished:
        close_finished(ready.study, teller)
        teller.say("no job is submitted")
        return 0
    with alone(ready.study.path, teller):
        token = _submit(ready, server, wanted, selection.scale.gpu, command, teller)
    if token is None:
        return 0
    if not wanted.follow:
        name = shlex.quote(str(ready.study.path))
        teller.say(f"to see how it goes: ablate status {name}, or {command}; to end it: ablate cancel {name}")
        return 0
    return _follow(Frozen.load(ready.study.path.absolute(), token), server, teller)


def shown(selection: Selection, *, path: Path | None, wanted: Wanted) -> list[str]:
    """What `submit` would hand in, as lines; nothing is written, prepared or asked for."""
    address, path = job_address(wanted.address), path or default_path(selection)
    entrypoint = _entrypoint(path.absolute(), TOKEN_TO_COME, wanted.python, wanted.storage)
    code = would_be(path)
    lines = [
        f"job server: {address}",
        f"entry point: {entrypoint}",
        f"working directory: {code.path.relative_to(path.absolute())}, {code.bytes / 2**20:.1f} MiB before packing",
    ]
    return lines + [f"environment: {name}={value}" for name, value in _environment().items()]


def cancel(study: Path, say: Callable[[str], None]) -> list[str]:
    """Stop the jobs of the study in `study` that have not ended; their ids. Returns when they have saved and ended."""
    ended = []
    listed = [frozen for frozen in submissions(study.absolute()) if frozen.mode == MODE and end_of(frozen) is None]
    for frozen in listed:
        try:
            if _stop(frozen, say):
                ended.append(name_of(frozen))
        except UserError as error:
            say(f"{name_of(frozen)} is not cancelled: {error}")
            continue
        try:
            fetch(frozen, last=end_of(frozen) is not None)
        except UserError as error:
            say(f"what {name_of(frozen)} stored is not here yet: {error}")
    return ended


def _stop(frozen: Frozen, say: Callable[[str], None]) -> bool:
    """Stop the job and wait until it has ended; whether there was anything to stop."""
    server = JobServer(str(frozen.request["address"]))
    job = server.look(frozen.token)
    live = job is not None and job.live
    if live:
        server.stop(frozen.token)
        say(f"{name_of(frozen)} is told to stop: its runs save")
        job = _wait_for_end(server, frozen.token)
    looked_at(frozen, job)
    return live


def _submit(
    ready: Ready, server: JobServer, wanted: Wanted, wants_gpu: bool, command: str, teller: Teller
) -> str | None:
    """Hand in a job for what no job covers; the id of the job to follow, None when there is none."""
    queue = queued(ready.study.path)
    places = queue.places if queue is not None else {}
    live = {run.path: place for run in ready.asked if (place := places.get(run.path.absolute())) and place.live}
    runs = uncovered(ready.looks, {path: f"{place.meaning} in job {place.job}" for path, place in live.items()}, teller)
    if runs:
        _check_place([place.token for place in places.values() if place.live], ready.study.path, wanted.storage)
        return _hand_in(ready, runs, server, wanted, wants_gpu, command, teller)
    teller.say("every run that is missing is taken care of: no job is submitted")
    ours = {
        frozen.token
        for frozen in submissions(ready.study.path.absolute())
        if frozen.mode == MODE and frozen.request["address"] == server.address
    }
    return next((place.token for place in live.values() if place.token in ours), None)


def _check_place(live: Sequence[str], study: Path, storage: str | None) -> None:
    """Raise CheckError when one of the jobs that have not ended has its runs in the same place of the store."""
    for frozen in submissions(study.absolute()):
        if storage is not None and frozen.token in live and storage_of(frozen) == storage:
            fix = "wait for it, cancel it, or choose another prefix"
            raise CheckError(f"{name_of(frozen)} of this study uses this place", where=f"--storage {storage}", fix=fix)


def _bring_home(study: Path, teller: Teller) -> None:
    """Fetch what jobs have stored that nobody followed to their end, as far as the stores can be reached."""
    stored = [frozen for frozen in submissions(study.absolute()) if storage_of(frozen) is not None]
    meanings = {task.token: task.meaning for task in look(stored)[0]}
    for frozen in stored:
        meaning = meanings[frozen.token]
        try:
            fetch(frozen, weights=meaning not in LIVE, last=meaning in OVER)
        except UserError as error:
            teller.say(f"what {name_of(frozen)} stored is not here yet: {error}")


def _hand_in(
    ready: Ready,
    runs: Sequence[StudyRun],
    server: JobServer,
    wanted: Wanted,
    wants_gpu: bool,
    command: str,
    teller: Teller,
) -> str:
    study, code = ready.study, snapshot(ready.study.path)
    with _packed(code) as package:
        frozen = freeze(
            study,
            runs,
            code,
            token=new_token(),
            mode=MODE,
            options=_options(wanted, wants_gpu=wants_gpu),
            command=command,
            request={"address": server.address, "python": wanted.python}
            | ({STORAGE: wanted.storage} if wanted.storage is not None else {}),
        )
        try:
            if wanted.storage is not None:
                put(frozen, study, runs, wanted.storage)
            server.submit(
                frozen.token,
                _entrypoint(frozen.study, frozen.token, wanted.python, wanted.storage),
                package,
                _environment(),
                {"name": study.name, "study": str(frozen.study)},
            )
        except UserError:
            frozen.forget()
            raise
    teller.say(f"{len(runs)} runs are handed to {name_of(frozen)} at {server.address} (Ray {server.version})")
    return frozen.token


def _options(wanted: Wanted, *, wants_gpu: bool) -> Options:
    return Options(
        wants_gpu=wants_gpu,
        cpus_per_run=wanted.resources.cpus_per_run,
        gpus_per_run=wanted.resources.gpus_per_run,
        processes_per_run=wanted.resources.processes,
        at_once=wanted.resources.at_once,
        after_death=wanted.after_death,
    )


def _entrypoint(study: Path, token: str, python: str, storage: str | None) -> str:
    words = [python, "-m", "ablations", "work", str(study), "--submission", token, "--address", "auto"]
    return shlex.join([*words, *(["--storage", storage] if storage is not None else [])])


def _environment() -> dict[str, str]:
    return job_environment() | {"RAY_JOB_STOP_WAIT_TIME_S": str(SAVING_SECONDS)}


@contextmanager
def _packed(code: Snapshot) -> Iterator[Path]:
    """The snapshot as a zip file, the same bytes for the same snapshot, so that a cluster takes it once.

    A file and not the directory, from which Ray would leave out what the ignore files around it name. Raises CheckError
    when it is larger than what a job server takes.
    """
    with tempfile.TemporaryDirectory(prefix="ablate-") as folder:
        package = Path(folder) / "code.zip"
        with zipfile.ZipFile(package, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(code.path.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    entry = zipfile.ZipInfo(path.relative_to(code.path).as_posix())
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    archive.writestr(entry, path.read_bytes())
        size = package.stat().st_size
        if size >= UPLOAD_LIMIT:
            what = f"{size / 2**20:.0f} MiB to upload, Ray takes less than {UPLOAD_LIMIT / 2**20:.0f}"
            raise CheckError(what, where=str(code.path), fix="remove large files from the installed program")
        yield package


def _follow(frozen: Frozen, server: JobServer, teller: Teller) -> int:
    """Show what the job says until it ends, and how it ended; the exit code."""
    try:
        with coming_home(frozen, teller):
            job = server.follow(frozen.token, _write)
            task = looked_at(frozen, job)
    except KeyboardInterrupt:
        teller.say("")
        name = shlex.quote(str(frozen.study))
        teller.say(f"{name_of(frozen)} goes on; to follow it again: {frozen.command}; to end it: ablate cancel {name}")
        return 1
    told = f" ({task.reason})" if task.reason else ""
    teller.say(f"{name_of(frozen)}: {task.state.lower() or task.meaning}{told}")
    if job is not None and job.state == "SUCCEEDED":
        return 0
    return job.exit_code if job is not None and job.exit_code in _EXIT_CODES else 1


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _wait_for_end(server: JobServer, token: str) -> Job | None:
    """The job, once it has ended; as it is when it does not end in the time that it has."""
    ends = time.monotonic() + SAVING_SECONDS + 30.0
    while True:
        job = server.look(token)
        if job is None or not job.live or time.monotonic() > ends:
            return job
        time.sleep(_POLL_SECONDS)
