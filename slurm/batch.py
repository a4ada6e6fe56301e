"""Inside a job: `python -m slurm.batch RECORD` runs one task's command, and sees to it that it goes on later.

The command's exit code says what comes next: 0, nothing is left for this task; 75, it has saved and wants to go on, so
the job is requeued; anything else, it failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from repro.errors import UserError
from slurm import raycluster
from slurm.again import go_on
from slurm.record import Note, Record
from slurm.signals import AGAIN, Signals


def main(arguments: list[str]) -> int:
    """Run the task that SLURM's variables name of the record that is the one argument."""
    record = Record.load(Path(arguments[0]))
    index = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or "0") + record.resubmissions
    if restart > record.site.tries:
        _say(f"this is start {restart + 1}, and the site file allows {record.site.tries} after the first")
        _noted(record, index, restart, "failed", None)
        return 1
    _noted(record, index, restart, "running", None)
    with Signals(as_usr1=record.request.mode == "array" and record.request.nodes > 1) as signals:
        code = _run(record, index, signals)
        return _after(record, index, restart, code, signals)


def _run(record: Record, index: int, signals: Signals) -> int:
    environment = os.environ | dict(record.request.environment)
    environment |= {"ABLATE_TASK_LOG": str(record.log(index))}
    if record.request.mode == "ray":
        return raycluster.run(record, environment, signals)
    return signals.waited(subprocess.Popen(_command(record, index), env=environment))


def _command(record: Record, index: int) -> list[str]:
    """The argv of the task; over several nodes by srun, each process of it by way of `slurm.rank`."""
    request = record.request
    command = [word.replace("{task}", str(record.first + index)) for word in request.command]
    if request.nodes == 1:
        return command
    shape = [f"--nodes={request.nodes}", f"--ntasks-per-node={request.processes}", f"--cpus-per-task={request.cpus}"]
    # A process that has nothing to save ends first: the others get two minutes to finish, then they are ended.
    ends = ["--kill-on-bad-exit=0", "--wait=120"]
    return ["srun", *shape, *ends, record.site.python, "-P", "-m", "slurm.rank", "--", *command]


def _after(record: Record, index: int, restart: int, code: int, signals: Signals) -> int:
    if code == 0:
        _noted(record, index, restart, "ended", 0)
        return 0
    if code != AGAIN:
        _noted(record, index, restart, "failed", code)
        return code if code > 0 else 128 - code
    _noted(record, index, restart, "again", code)  # Before SLURM is told, which ends us at once.
    goes_on, why = go_on(record, index, restart, signals.first)
    _say(why)
    if not goes_on:
        _noted(record, index, restart, "failed", code)
        return AGAIN
    return 0


def _noted(record: Record, index: int, restart: int, state: str, code: int | None) -> None:
    """A note that cannot be written is no reason to stop."""
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID", "")
    try:
        Note(job=job, state=state, code=code, restart=restart).save(record.note(index))  # type: ignore[arg-type]
    except (OSError, UserError) as error:
        _say(str(error))


def _say(text: str) -> None:
    print(f"slurm: {text}", file=sys.stderr, flush=True)


def _told(work: Callable[[], int]) -> int:
    try:
        return work()
    except UserError as error:
        _say(str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(_told(lambda: main(sys.argv[1:])))
