"""A sweep over a study whose runs only pretend to train: `python sweep_driver.py STUDY VARIANT,... [options]`.

`pretend` stands in for the real `execute`: by its variant a run is done, fails, or kills its own process once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from ablations.cluster import Resources
from ablations.progress import Teller
from ablations.selection import choose
from ablations.study import Data, Study, StudyRun, open_study
from ablations.sweep import sweep
from repro.accounting.capacity import MEMORY_SHARE
from repro.errors import UserError
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status

FAILS, DIES_ONCE, DIVERGES, IS_WRONG = "A.h1", "A.h4", "A.h16", "A.h32"
SECONDS = "PRETEND_SECONDS"
"""Environment variable: how long a run takes."""


def pretend(run: RunDirectory, *, stop: Callable[[], bool], after_death: str, by: Mapping[str, str]) -> Status:
    """Claim the run, wait, and end as its variant does."""
    before = run.status()
    if before.state in ("done", "diverged"):
        return before
    attempt = attempts.claim(run, by=by)
    if attempt is None:
        return run.status()
    with attempt:
        variant = run.config().variant
        run.write_status(Status(state="running", attempt=attempt.number, step=attempt.number))
        if variant == DIES_ONCE and attempt.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ends = time.monotonic() + float(os.environ.get(SECONDS, "0"))
        while time.monotonic() < ends:
            if stop():
                attempt.end("stopped", "asked to stop")
                return run.status()
            time.sleep(0.05)
        if variant == FAILS:
            attempt.end("failed", "no luck", may_pass=True)
        elif variant == IS_WRONG:
            attempt.end("failed", "no such key")
        elif variant == DIVERGES:
            attempt.end("diverged", "too steep")
        else:
            share = float(os.environ.get(MEMORY_SHARE, "1"))
            run.write_result({"steps": 10, "test": {"bleu": 12.5}, "gpu_share": share})
            attempt.end("done")
    return run.status()


def pretended_study(path: Path, only: list[str]) -> tuple[Study, list[StudyRun]]:
    """A study of the rows `only` at the smoke scale; its data are a word."""
    data = Data(corpus="smoke", directory=path / "data", digest="d" * 64, vocabulary_size=256)
    data.directory.mkdir(parents=True, exist_ok=True)
    (data.directory / "manifest.json").write_text("{}")
    return open_study(path, choose("table3", "smoke", only=only), [1], data)


def main() -> int:
    """Run the sweep; exit code 1 when a run has no outcome, 3 when it could not begin or go on."""
    options = argparse.ArgumentParser()
    options.add_argument("study", type=Path)
    options.add_argument("only")
    options.add_argument("--seconds", default="0")
    options.add_argument("--address")
    options.add_argument("--gpus-per-run", type=float)
    options.add_argument("--at-once", type=int)
    asked = options.parse_args()
    study, runs = pretended_study(asked.study, asked.only.split(","))
    os.environ[SECONDS] = asked.seconds
    resources = Resources(address=asked.address, cpus=2, gpus_per_run=asked.gpus_per_run, at_once=asked.at_once)
    try:
        outcome = sweep(study, runs, resources, Teller(Console(width=200)), execute="sweep_driver:pretend")
    except UserError as error:
        print(error)
        return error.exit_code
    print("ray imported:", "ray" in sys.modules)
    return 1 if outcome.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
