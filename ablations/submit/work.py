"""`ablate work`: what a job does inside. One run that nobody works on, or all of a list on the Ray of the job.

The list is the one that the submission froze. Whoever takes a run claims it as everybody does; known here beside that
is which claims are of jobs that have ended.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ablations.looks import look
from ablations.progress import Teller, TrainingBar
from ablations.study import Study, StudyRun
from ablations.submit import holders
from ablations.submit.closing import close
from ablations.submit.frozen import Frozen
from repro.errors import CheckError, UsageError
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status
from repro.runs.execute import execute, execute_joined, log_of
from repro.runs.processes import Process
from repro.training.joining import to_join

GO_ON = 75
"""Exit code: saved and stopped, or failed for a reason that may pass; to be gone on with later."""
TASK_LOG = "ABLATE_TASK_LOG"
"""Environment variable: the file that keeps what this task says, over all its restarts."""

_TAIL_BYTES = 4000


class Wish:
    """The wish that this process saves and stops, told by signals, any number of them."""

    def __init__(self) -> None:
        self.name = ""
        """The first signal that came."""

    def asked(self) -> bool | str:
        """Whether to stop, and why."""
        return f"{self.name} came" if self.name else False


@contextmanager
def heeding() -> Iterator[Wish]:
    """While inside, SIGTERM, SIGUSR1 and SIGINT are no more than a wish."""
    wish = Wish()

    def handle(number: int, _: FrameType | None) -> None:
        wish.name = wish.name or signal.Signals(number).name

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(study: Path, submission: str | None, task: int, address: str | None, teller: Teller) -> int:
    """Do the work of task number `task` of `submission` in the study in `study`; None: of the whole study.

    `address`: do all of it on the Ray there. Exit code 0 when nothing is left for this task, 1 when its run failed or
    diverged, `GO_ON` when it is to be gone on with. Raises CheckError when the data cannot be read from here.
    """
    with heeding() as wish:
        frozen = Frozen.load(study.absolute(), submission) if submission else _whole(study.absolute())
        if not frozen.runs or task >= len(frozen.runs):
            raise UsageError(f"the list has {len(frozen.runs)} runs", where=f"--task {task}", fix="count from 0")
        by = holders.identity(frozen.token, task)
        if address is not None:
            from ablations.submit.onray import on_ray

            code = None if wish.asked() else on_ray(frozen, address, by, teller)
            return GO_ON if code is None or (code and wish.asked()) else code
        if to_join():
            return _joined(frozen, frozen.run(task), by, wish, teller)
        return _alone(frozen, task, by, wish, teller)


def work_stored(url: str, submission: str | None, address: str | None, teller: Teller) -> int:
    """Do all of `submission`, which is in the store at `url`, on the Ray at `address`; see `work`."""
    from ablations.submit.stored import study_of

    if submission is None or address is None:
        raise UsageError("goes with --submission and --address", where="--storage", fix="give these, too")
    with study_of(url, submission) as study:
        return work(study, submission, 0, address, teller)


def _whole(study: Path) -> Frozen:
    """The plan of a study as it is now, as if it had been submitted."""
    runs = tuple(os.path.relpath(run.path, study) for run in Study.load(study).runs)
    return Frozen(study=study, token="", mode="array", code="", runs=runs)


def _alone(frozen: Frozen, task: int, by: Mapping[str, str], wish: Wish, teller: Teller) -> int:
    """Do the run of this task or, when there is nothing to do about it, the next in the list that is free."""
    own, runs = frozen.run(task), frozen.listed()
    first = next(place for place, run in enumerate(runs) if run.path == own.path)
    for run in runs[first:] + runs[:first]:
        if wish.asked():
            return GO_ON
        if _left(run, own) and holders.is_free(run.directory, frozen.study, by, wish.asked):
            code = _do(frozen, run, by, wish, teller)
            if code is not None:
                return code
    teller.say(f"nothing is left to do: all {len(runs)} runs of the list have ended or are worked on")
    return 0


def _do(frozen: Frozen, run: StudyRun, by: Mapping[str, str], wish: Wish, teller: Teller) -> int | None:
    """Do `run` here; the exit code, or None when somebody else was quicker."""
    _check_data(run.directory)
    teller.say(f"{run.variant} seed {run.seed}, attempt {_number(run.directory) + 1}: {run.path}")
    own = _with_step(run.directory, by)
    with TrainingBar(teller.console) as bar:
        execute(
            run.directory,
            observer=bar,
            stop=wish.asked,
            after_death=frozen.options.after_death,
            by=own,
            processes=frozen.options.processes_per_run,
            check=lambda attempt: _check_progress(run.directory, attempt, own),
        )
    return _ended(frozen, run, own, wish, teller) if _is_mine(run.directory) else None


def _left(run: StudyRun, own: StudyRun) -> bool:
    """Whether something is to be done about `run`: a failed run is tried again by the task whose own it is."""
    found = look(run)
    return not found.finished and (run.path == own.path or found.status.state != "failed")


def _joined(frozen: Frozen, run: StudyRun, by: Mapping[str, str], wish: Wish, teller: Teller) -> int:
    """Be one of the processes, on several nodes, that do `run` together; that of rank 0 claims it and speaks."""
    first = os.environ.get("RANK") == "0"
    if first and not holders.is_free(run.directory, frozen.study, by, wish.asked):
        teller.say(f"{run.variant} seed {run.seed}: another process works on it")
    _check_data(run.directory)
    own = _with_step(run.directory, by)
    with TrainingBar(teller.console) as bar:  # only rank 0 has something to tell
        rank, status = execute_joined(
            run.directory,
            observer=bar,
            stop=wish.asked,
            after_death=frozen.options.after_death,
            by=own,
            check=lambda attempt: _check_progress(run.directory, attempt, own),
        )
    if rank:
        return 1 if status.state == "failed" else 0
    return _ended(frozen, run, own, wish, teller) if _is_mine(run.directory) else 0


def _ended(frozen: Frozen, run: StudyRun, by: Mapping[str, str], wish: Wish, teller: Teller) -> int:
    """Tell how this task's run ended, and close what is to be closed; the exit code."""
    status = run.directory.status()
    told = f" ({status.reason})" if status.reason else ""
    teller.say(f"{run.variant} seed {run.seed}: {status.state} at step {status.step}{told}")
    if _goes_on(run.directory, status, by):
        return GO_ON
    if not wish.asked():  # else there is no time left
        close(frozen, teller)
    return 0 if status.state == "done" else 1


def _goes_on(run: RunDirectory, status: Status, by: Mapping[str, str]) -> bool:
    latest = attempts.newest(run)
    if status.state == "stopped":
        return True
    if status.state != "failed" or latest is None or not latest.may_pass:
        return False
    return not (_step(run) == by["step"] and _stood_still(run, latest.number, by, count=1))


# Progress: what two attempts running do not make, a third will not.


def _check_progress(run: RunDirectory, attempt: attempts.Attempt, by: Mapping[str, str]) -> None:
    """Raise CheckError when two attempts of this submission running have begun where this one would."""
    if not _stood_still(run, attempt.number, by, count=2):
        return
    last = next(claim for claim in attempts.claims(run) if claim.number == attempt.number - 1)
    why = last.reason or last.end_without_a_word()
    kept = _keep_tail(log_of(attempt))
    what = f"two attempts running got no further than step {by['step']}: {why}{kept}"
    raise CheckError(what, fix="mend that, or give it more time, and submit again")


def _stood_still(run: RunDirectory, number: int, by: Mapping[str, str], *, count: int) -> bool:
    """Whether the `count` attempts before `number` were of this submission, began at this step and did not end it."""
    before = [claim for claim in attempts.claims(run) if number - count <= claim.number < number]
    return (
        bool(by["submission"])
        and [
            (claim.by.get("submission"), claim.by.get("step"), claim.died or claim.ended == "stopped" or claim.may_pass)
            for claim in before
        ]
        == [(by["submission"], by["step"], True)] * count
    )


def _with_step(run: RunDirectory, by: Mapping[str, str]) -> dict[str, str]:
    return {**by, "step": _step(run)}


def _step(run: RunDirectory) -> str:
    """The step of the newest checkpoint, from which an attempt begins."""
    names = [path.name.removeprefix("step-") for path in run.checkpoints.glob("step-*")]
    return str(max((int(name) for name in names if name.isdigit()), default=0))


def _keep_tail(target: Path) -> str:
    """Keep what this task said last, over its restarts, beside the claim; where that is, in brackets."""
    try:
        said = Path(os.environ[TASK_LOG]).read_bytes()[-_TAIL_BYTES:]
        target.write_bytes(said)
    except (KeyError, OSError):
        return ""
    return f" (what was said last is in {target.parent.name}/{target.name})" if said else ""


# Small looks.


def _check_data(run: RunDirectory) -> None:
    """Raise CheckError when the prepared corpus cannot be read on this node: the run is left for another."""
    from repro.data.prepared import MANIFEST

    manifest = run.data_directory() / MANIFEST
    try:
        manifest.read_bytes()
    except OSError as error:
        what = (
            f"the prepared data cannot be read on {os.environ.get('SLURMD_NODENAME', 'this node')} ({error.strerror})"
        )
        raise CheckError(what, where=str(manifest), fix="keep it on a disk that all nodes share") from error


def _number(run: RunDirectory) -> int:
    latest = attempts.newest(run)
    return latest.number if latest is not None else 0


def _is_mine(run: RunDirectory) -> bool:
    latest = attempts.newest(run)
    return latest is not None and latest.owner == Process.current()
