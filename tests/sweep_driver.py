"""A sweep over a study whose runs only pretend to train: `python sweep_driver.py STUDY VARIANT,... [SECONDS]`.

`pretend` stands in for the real `execute`: by its variant a run is done, fails, or kills its own process once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ablations.cluster import Resources
from ablations.progress import Teller
from ablations.selection import choose
from ablations.study import Data, Study, StudyRun, open_study
from ablations.sweep import sweep
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status

FAILS, DIES_ONCE, DIVERGES = "A.h1", "A.h4", "A.h16"
SECONDS = "PRETEND_SECONDS"
"""Environment variable: how long a run takes."""


def pretend(run: RunDirectory, *, stop: Callable[[], bool]) -> Status:
    """Claim the run, wait, and end as its variant does."""
    before = run.status()
    if before.state in ("done", "diverged"):
        return before
    attempt = attempts.claim(run)
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
            attempt.end("failed", "no luck")
        elif variant == DIVERGES:
            attempt.end("diverged", "too steep")
        else:
            run.write_result({"steps": 10, "test": {"bleu": 12.5}})
            attempt.end("done")
    return run.status()


def pretended_study(path: Path, only: list[str]) -> tuple[Study, list[StudyRun]]:
    """A study of the rows `only` at the smoke scale; its data do not exist."""
    data = Data(corpus="smoke", directory=path / "data", digest="d" * 64, vocabulary_size=256)
    return open_study(path, choose("table3", "smoke", only=only), [1], data)


def main() -> int:
    """Run the sweep; exit code 1 when a run has no outcome."""
    study, asked = pretended_study(Path(sys.argv[1]), sys.argv[2].split(","))
    if len(sys.argv) > 3:
        os.environ[SECONDS] = sys.argv[3]
    outcome = sweep(study, asked, Resources(cpus=2), Teller(Console()), execute="sweep_driver:pretend")
    print("ray imported:", "ray" in sys.modules)
    return 1 if outcome.unfinished else 0


if __name__ == "__main__":
    sys.exit(main())
