"""A list of runs on a Ray: what the driver inside a job does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from ablations.cluster import Resources
from ablations.conduct import sum_up, tracked, write_report
from ablations.progress import Teller
from ablations.study import Study
from ablations.submit import holders
from ablations.submit.frozen import Frozen
from ablations.submit.stored import storage_of
from ablations.sweep import sweep


def on_ray(frozen: Frozen, address: str, by: Mapping[str, str], teller: Teller) -> int | None:
    """Do the runs of `frozen` on the Ray at `address`; the exit code, or None when it was interrupted before its end.

    What came of the runs stands in their directories and nowhere else. A study that was made of what is stored has
    neither MLflow nor a report: these are made where it was submitted.
    """
    study, options, runs = Study.load(frozen.study), frozen.options, frozen.listed()
    storage, missing = storage_of(frozen), len(frozen.runs) - len(runs)
    if missing:
        teller.say(f"{missing} of {len(frozen.runs)} run directories of the list are gone or damaged, and left out")
    for run in runs:
        holders.bury_dead(run.directory, frozen.study, by)
    resources = Resources(
        address=address,
        cpus_per_run=options.cpus_per_run,
        gpus_per_run=options.gpus_per_run,
        at_once=options.at_once,
        storage=storage,
        weights=storage is None,
        processes_per_run=options.processes_per_run if options.processes_per_run > 1 else None,
    )
    with tracked(study, teller) if storage is None else nullcontext():
        outcome = sweep(
            study,
            runs,
            resources,
            teller,
            wants_gpu=options.wants_gpu,
            after_death=options.after_death,
            by=by,
        )
        if storage is None:
            write_report(study, teller)
    code = sum_up(study, outcome, frozen.command or "submit again", teller, pages=storage is None)
    return None if outcome.interrupted and outcome.unfinished else code or int(missing > 0)
