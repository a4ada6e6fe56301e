"""`ablate cancel`: ends the jobs of one study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ablations.submit.frozen import JOBS, submissions


def cancel(study: Path, say: Callable[[str], None]) -> int:
    """End the jobs that the study in `study` has submitted and no others; the exit code. Their runs save and stop."""
    folder = study.absolute() / JOBS
    ended: list[str] = []
    listed = submissions(study.absolute())
    if folder.is_dir():
        from ablations.submit import rays
        from slurm import submission

        ended += rays.cancel(study, say)
        ended += submission.cancel(folder, say)
        cut_short = set(submission.unsubmitted(folder))
        for frozen in listed:
            if frozen.token in cut_short:
                frozen.forget()  # no later command is to complete it
    say(f"{study}: cancelled {', '.join(ended)}" if ended else f"{study}: nothing of it is queued")
    return 0
