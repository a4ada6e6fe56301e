"""One run from claim to result: the entry point of Ray workers, SLURM tasks and `ablate train` alike."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path

from repro.errors import UserError
from repro.files import write_text
from repro.runs import attempts
from repro.runs.attempts import Attempt
from repro.runs.directory import RunDirectory, Status
from repro.runs.events import Interrupted, Observer, Silent, Superseded


def execute(
    run: RunDirectory,
    *,
    observer: Observer | None = None,
    stop: Callable[[], bool] = lambda: False,
    data_directory: Path | None = None,
) -> Status:
    """Carry `run` to its end, from its newest checkpoint if there is one, and return where it stands then.

    Nothing is done when the run is done, diverged, or worked on by another live process. `stop` is asked after every
    step; when it says so the run saves and ends as "stopped", to go on later with the same bits. Errors never leave
    this function: they end the attempt as "failed" with a reason, the traceback beside its claim.
    `data_directory` overrides where the prepared corpus is looked for.
    """
    before = run.status()
    if before.state in ("done", "diverged"):
        return before
    attempt = attempts.claim(run)
    if attempt is None:
        return run.status()
    try:
        _carry_out(run, attempt, observer or Silent(), stop, data_directory)
    finally:
        attempt.end("stopped", "left before its end")
    return run.status()


def _carry_out(
    run: RunDirectory,
    attempt: Attempt,
    observer: Observer,
    stop: Callable[[], bool],
    data_directory: Path | None,
) -> None:
    # Imported here, after the claim: torch takes seconds, and a run that is taken needs none of it.
    from repro.runs.session import Session
    from repro.training.trainer import DivergenceError

    try:
        run.remove_temporaries()
        if run.result() is None:
            Session(run, attempt, observer, stop, data_directory).carry_out()
    except Interrupted as interruption:
        attempt.end("stopped", str(interruption))
    except Superseded:
        pass  # the run belongs to its new owner
    except DivergenceError as divergence:
        attempt.end("diverged", str(divergence))
    except UserError as error:
        attempt.end("failed", str(error))
    except Exception as error:
        attempt.end("failed", _told(attempt, error))
    else:
        attempt.end("done")


def _told(attempt: Attempt, error: Exception) -> str:
    """`error` in one line; its traceback goes into a file beside the claim."""
    log = attempt.path.with_suffix(".log")
    told = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        write_text(log, traceback.format_exc())
    except UserError:
        return told  # a full disk keeps no traceback
    return f"{told} (traceback in {log.parent.name}/{log.name})"
