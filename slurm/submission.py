"""Submission: a request becomes jobs, once and never twice, and jobs are ended again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from repro.errors import CheckError
from repro.files import write_text
from slurm import listing
from slurm.chunks import array_size, chunks
from slurm.commands import Answer, ask
from slurm.listing import Entry, NoAnswerError
from slurm.record import Record, checked, locked, now, records
from slurm.request import Mode, Request
from slurm.script import script
from slurm.site import Site
from slurm.states import lives, meaning

__all__ = ["Mode", "Request", "Script", "Submission", "cancel", "render", "submit", "unsubmitted"]

Say = Callable[[str], object]

_OPTIONS = ("account", "partition", "qos", "reservation", "constraint")
"""What sbatch may still take from variables such as SBATCH_ACCOUNT where the site file leaves it open."""

_UNCERTAIN = re.compile(r"time[d ]*out|unable to contact|connect|communicat|socket|zero bytes|interrupt", re.IGNORECASE)
"""Words with which sbatch tells that it does not know itself whether the job was taken."""

_LOOKS = 4
"""How often a job whose submission gave no clear answer is looked for before that is given up."""


@dataclass(frozen=True, slots=True)
class Script:
    """One batch script: its file's name and its text."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What SLURM has accepted under `token`: all `jobs`, and those of them that were `adopted`, not submitted now."""

    token: str
    jobs: tuple[str, ...]
    adopted: tuple[str, ...] = ()


def render(request: Request, site: Site, token: str = "TOKEN") -> list[Script]:
    """The scripts exactly as they would be submitted under `token`.

    Raises CheckError when SLURM cannot take the request.
    """
    planned = _planned(request, site, checked(token), 0)
    return [Script(record.script().name, script(record)) for record in planned]


def submit(request: Request, site: Site, token: str, say: Say) -> Submission:
    """Submit what of `request` has no job yet under `token`. Calling it again finds what was submitted before.

    A record is written before sbatch is called, and the job carries the record's ticket in its name and its comment. So
    a job that was taken without our hearing of it is found and adopted. Raises CheckError with sbatch's own words when
    the job was refused, and when SLURM cannot say whether it was taken: then the same call later settles it.
    """
    with locked(request.folder, checked(token)):
        adopted = [record for record in records(request.folder, token) if record.resubmissions == 0]
        adopted = [kept for kept in (_settled(record, say) for record in adopted) if kept is not None]
        covered = max((record.first + record.tasks for record in adopted), default=0)
        fresh: list[Record] = []
        for record in _planned(request, site, token, covered):
            before = (adopted + fresh)[-1:]
            fresh.append(enter(record, say, after=before[0].job if before and site.at_once else None))
    jobs = tuple(record.job or "" for record in adopted + fresh)
    return Submission(token=token, jobs=jobs, adopted=tuple(record.job or "" for record in adopted))


def unsubmitted(folder: Path) -> list[str]:
    """Tokens with a record in `folder` that has no job: the same call of `submit` settles each."""
    return sorted({record.token for record in records(folder) if record.job is None and not record.resubmissions})


def cancel(folder: Path, say: Say) -> list[str]:
    """End the jobs that `folder` records, and no others; the numbers of those that were still waiting or running.

    Raises CheckError when SLURM does not answer.
    """
    ended: list[str] = []
    tokens = sorted({record.token for record in records(folder)})
    for token in tokens:
        with locked(folder, token):
            for record in records(folder, token):
                replace(record, cancelled=True).save()  # First, so that no task starts itself anew.
            ended += _cancelled(records(folder, token), say)
    return ended


def enter(record: Record, say: Say, *, after: str | None = None) -> Record:
    """Hand one job to sbatch, to start once job `after` has ended: the record with the job's number.

    Raises CheckError when it is not certain that the job was taken.
    """
    write_text(record.script(), script(record))
    if not record.create():
        raise CheckError("another submission is at work on this job", where=str(record.path))
    command = ["sbatch", "--parsable", *([f"--dependency=afterany:{after}"] if after else []), str(record.script())]
    open_options = record.site.model_dump(include=set(_OPTIONS))
    keep = [f"SBATCH_{name.upper()}" for name, value in open_options.items() if value is None]
    try:
        answer = ask(*command, seconds=record.site.answer_seconds, keep=keep)
    except CheckError:
        record.remove()
        raise
    taken = re.fullmatch(r"(\d+)(;.*)?", answer.out.strip()) if answer.ok else None
    entered = _numbered(record, taken[1]) if taken else _sought(record, answer, say)
    say(f"job {entered.job}: {_what(entered)}")
    return entered


def _planned(request: Request, site: Site, token: str, first: int) -> list[Record]:
    """Records of what is still to be submitted, from task `first` on."""
    request = replace(request, folder=request.folder.absolute(), code=request.code.absolute())
    size = array_size(site) if request.mode == "array" and first < request.tasks else 1
    return [
        Record(
            token=token,
            ticket=f"{token}-{chunk.first}",
            first=chunk.first,
            tasks=chunk.tasks,
            request=request,
            site=site,
            created=now(),
        )
        for chunk in chunks(first, request.tasks, size)
    ]


def _settled(record: Record, say: Say) -> Record | None:
    """The record of an earlier call, with its job; None, and forgotten, if there was none after all."""
    if record.job is not None:
        return record
    job = record.noted() or _found(record, certain=True)
    if job is None:
        record.remove()
        return None
    say(f"job {job}: {_what(record)}; it was taken before, and is adopted")
    return _numbered(record, job)


def _sought(record: Record, answer: Answer, say: Say) -> Record:
    """sbatch gave no number: the job that it may have made all the same, or CheckError."""
    refused = answer.code not in {0, None} and not _UNCERTAIN.search(answer.told())
    job = None
    for attempt in range(1 if refused else _LOOKS):
        time.sleep(attempt * record.site.answer_seconds / 10)
        job = _found(record, certain=False)
        if job is not None:
            say(f"sbatch gave no answer ({answer.told()}), but took the job")
            return _numbered(record, job)
    if refused:
        record.remove()
        raise CheckError(f"sbatch refused the job: {answer.told()}", where=str(record.script()))
    fix = "submit again a little later: it is looked for before anything is submitted"
    raise CheckError(f"sbatch gave no number of a job: {answer.told()}", where=str(record.script()), fix=fix)


def _found(record: Record, *, certain: bool) -> str | None:
    """The job that carries the record's ticket, if SLURM knows one.

    `certain`: raises CheckError when the queue cannot be asked, since then nobody knows.
    """
    seconds = record.site.answer_seconds
    entries = []
    try:
        entries = listing.waiting_line(None, seconds=seconds)
    except NoAnswerError as error:
        if certain:
            fix = "submit again when SLURM answers: a job may have been taken before"
            raise CheckError(f"cannot be asked for an earlier job ({error})", where="SLURM", fix=fix) from error
    job = next((entry.job for entry in entries if entry.carries(record.ticket)), None)
    if job is not None or not certain:
        return job
    try:
        past = listing.accounts(None, since=record.created, seconds=seconds)
    except NoAnswerError:  # Many clusters keep no accounts.
        return None
    return next((entry.job for entry in past if entry.carries(record.ticket)), None)


def _numbered(record: Record, job: str) -> Record:
    numbered = replace(record, job=job)
    numbered.save()
    return numbered


def _cancelled(found: list[Record], say: Say) -> list[str]:
    """End those of one submission that still live."""
    if not found:
        return []
    seconds = max(record.site.answer_seconds for record in found)
    jobs = [record.job for record in found if record.job is not None]
    try:  # By their numbers, so that another user's are seen, too, and SLURM says that they are not ours to end.
        entries = listing.waiting_line(jobs if len(jobs) == len(found) else None, seconds=seconds)
    except NoAnswerError as error:
        raise CheckError(f"cannot be asked for the jobs ({error})", where="SLURM", fix="try again later") from error
    living = [entry for entry in entries if lives(meaning(entry.state))]
    jobs = sorted({entry.job for entry in living if any(_is_of(entry, record) for record in found)}, key=int)
    if jobs:
        answer = ask("scancel", *jobs, seconds=seconds)
        if not answer.ok:
            raise CheckError(f"scancel: {answer.told()}", where=f"jobs {', '.join(jobs)}", fix="try again later")
        say(f"ended {'job' if len(jobs) == 1 else 'jobs'} {', '.join(jobs)}")
    return jobs


def _is_of(entry: Entry, record: Record) -> bool:
    """Numbers of jobs come again after years, and a ticket is only as unique as its token: both must fit."""
    return entry.carries(record.ticket) and record.job in {None, entry.job}


def _what(record: Record) -> str:
    if record.request.mode == "ray":
        return f"a Ray cluster on {record.request.nodes} {'node' if record.request.nodes == 1 else 'nodes'}"
    last = record.first + record.tasks - 1
    return f"task {last}" if record.tasks == 1 else f"tasks {record.first} to {last}"
