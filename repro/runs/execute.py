"""One run from claim to result: the entry point of Ray workers, SLURM tasks and `ablate train` alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from repro.runs import attempts
from repro.runs.attempts import Attempt
from repro.runs.directory import RunDirectory, Status
from repro.runs.ending import Ending, ending_of
from repro.runs.events import Observer, Silent

Check = Callable[[Attempt], None]
"""Called with a claim before anything is done under it; what it raises ends the attempt as failed."""
AfterDeath = Literal["resume", "restart"]
"""What becomes of a run whose process died without a word: it goes on from its newest checkpoint, or from step 0."""


def execute(
    run: RunDirectory,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool | str] = lambda: False,
    data_directory: Path | None = None,
    after_death: AfterDeath = "resume",
    by: Mapping[str, str] | None = None,
    processes: int = 1,
    check: Check = lambda _: None,
) -> Status:
    """Carry `run` to its end, from its newest checkpoint if there is one, and return where it stands then.

    Nothing is done when the run is done, diverged, or worked on by another live process. `stop` is asked after every
    step; when it says so, or why, the run saves and ends as "stopped", to go on later with the same bits. Errors never
    leave this function: they end the attempt as "failed" with a reason, the traceback beside its claim.
    `data_directory` overrides where the prepared corpus is looked for; `by` is kept with the claim. With several
    `processes`, as many are started here, each on a GPU of its own where there are GPUs, and share every batch; the
    result is then the same up to rounding, and `stop` is asked now and then. `check` may refuse the attempt.
    """

    def work(attempt: Attempt) -> Ending | None:
        check(attempt)
        watcher, log = observer or Silent(), log_of(attempt)
        if processes > 1:
            from repro.runs.launch import launch

            return launch(run, attempt.number, log, watcher, lambda: bool(stop()), data_directory, processes)
        from repro.runs.session import Session

        Session(run, attempt, watcher, stop, data_directory).carry_out()
        return None

    return claimed(run, work, after_death=after_death, by=by)


def execute_joined(
    run: RunDirectory,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool | str] = lambda: False,
    data_directory: Path | None = None,
    after_death: AfterDeath = "resume",
    by: Mapping[str, str] | None = None,
    check: Check = lambda _: None,
) -> tuple[int, Status]:
    """`execute` as one of several processes that were started elsewhere, through torchrun for example; its rank, too.

    Rank 0 claims the run and does all the writing.
    """
    from repro.runs.session import lead
    from repro.runs.training import follow
    from repro.training.parallel import Group, LostError

    group, begun = Group.join(), False

    def work(attempt: Attempt) -> None:
        nonlocal begun
        check(attempt)
        begun = group.tell({"begin": True})["begin"]
        lead(run, attempt, observer or Silent(), stop, data_directory, group)

    failed = Status(state="failed", reason="it or another process of the run failed")
    if group.rank == 0:
        status = claimed(run, work, after_death=after_death, by=by)
        if not begun:
            with suppress(LostError):  # the others are gone: there is nobody to tell
                group.tell({"begin": False})
    else:
        try:
            went_well = not group.tell({})["begin"] or follow(run, data_directory, group)
        except LostError:  # rank 0 could not even begin, and has told why
            went_well = False
        status = run.status() if went_well else failed
    if status.state != "failed":
        group.close()
    return group.rank, status


def claimed(
    run: RunDirectory,
    work: Callable[[Attempt], Ending | None],
    *,
    after_death: AfterDeath = "resume",
    by: Mapping[str, str] | None = None,
) -> Status:
    """Let `work` do `run`, if there is something to do and nobody else does it, and write how that ended."""
    before = run.status()
    if before.state in ("done", "diverged"):
        return before
    attempt = attempts.claim(run, by=by)
    if attempt is None:
        return run.status()
    try:
        ending = ending_of(lambda: _carry_out(run, attempt, work, after_death), log_of(attempt))
        if ending.state is not None:
            attempt.end(ending.state, ending.reason, may_pass=ending.may_pass)
    finally:
        attempt.end("stopped", "left before its end")
    return run.status()


def log_of(attempt: Attempt) -> Path:
    """Where the traceback of an attempt goes: a file beside its claim."""
    return attempt.path.with_suffix(".log")


def _carry_out(
    run: RunDirectory, attempt: Attempt, work: Callable[[Attempt], Ending | None], after_death: AfterDeath
) -> Ending | None:
    run.remove_temporaries()
    if after_death == "restart" and _died_before(run, attempt):
        run.start_over()
    if run.result() is not None:
        return None
    if run.continues() is not None:
        from repro.runs.inherit import inherit

        inherit(run)
    return work(attempt)


def _died_before(run: RunDirectory, attempt: Attempt) -> bool:
    """Whether the attempt before this one ended without a word."""
    return any(claim.died for claim in attempts.claims(run) if claim.number == attempt.number - 1)
