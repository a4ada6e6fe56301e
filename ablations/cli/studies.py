"""`ablate plan`, `run` and `status`: from a table to a study."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import (
    Address,
    AfterDeath,
    AfterDeathOption,
    AtOnce,
    Cpus,
    CpusPerRun,
    GpusPerRun,
    Json,
    Only,
    ProcessesPerRun,
    Profile,
    Scale,
    Seeds,
    Settings,
    Skip,
    Source,
    Storage,
    StudyName,
    StudyPath,
    Table,
)
from repro.errors import UsageError

PANEL = "Studies"


def plan(
    table: Table,
    scale: Scale,
    seeds: Seeds = 1,
    only: Only = None,
    skip: Skip = None,
    profile: Profile = None,
    settings: Settings = None,
    gpu: Annotated[str | None, typer.Option(help="Reckon hours for this GPU, e.g. A100 or P100.")] = None,
    gpus_per_run: Annotated[int, typer.Option(min=1, help="GPUs that share each run's batches.")] = 1,
    walltime: Annotated[
        str | None, typer.Option(metavar="HH:MM:SS", help="Limit of one job: tells how many a run takes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a table costs before anything runs: parameters, FLOPs, memory and hours, for each row and in all."""
    from ablations import plan_table, planning
    from ablations.corpora import prepared_already
    from ablations.selection import choose
    from ablations.walltime import Jobs, walltime_seconds

    selection = choose(
        table, scale, only=options.names(only), skip=options.names(skip) or (), settings=settings or (), profile=profile
    )
    jobs = Jobs(gpus=gpus_per_run, walltime=None if walltime is None else walltime_seconds(walltime))
    device = planning.Device.gpu(gpu) if gpu else planning.Device.here(selection.scale, selection.base)
    if jobs.gpus > 1 and device.kind != "cuda":
        raise UsageError(f"{jobs.gpus} GPUs, there are none here", where="--gpus-per-run", fix="name one with --gpu")
    planned = planning.plan(
        selection,
        len(options.seeds(seeds)),
        prepared=prepared_already(selection.base.data),
        device=device,
        jobs=jobs,
    )
    if as_json:
        options.print_json(planned.document())
    else:
        plan_table.show(planned, options.console())


def run(
    table: Table,
    scale: Scale,
    seeds: Seeds = 1,
    only: Only = None,
    skip: Skip = None,
    study: StudyPath = None,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    address: Address = None,
    storage: Storage = None,
    cpus: Cpus = None,
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: GpusPerRun = None,
    processes_per_run: ProcessesPerRun = None,
    at_once: AtOnce = None,
    after_death: AfterDeathOption = AfterDeath.RESUME,
) -> int:
    """Run what is missing of a study: freeze it, prepare its data, let Ray Tune do the runs, write the report."""
    from ablations.cluster import Resources
    from ablations.conduct import conduct
    from ablations.progress import Teller
    from ablations.selection import choose

    return conduct(
        choose(
            table,
            scale,
            only=options.names(only),
            skip=options.names(skip) or (),
            settings=settings or (),
            profile=profile,
        ),
        options.seeds(seeds),
        path=study,
        source=source,
        resources=Resources(
            address=address,
            storage=storage,
            cpus=cpus,
            cpus_per_run=cpus_per_run,
            gpus_per_run=gpus_per_run,
            at_once=at_once,
            processes_per_run=processes_per_run,
        ),
        teller=Teller(options.console()),
        after_death=after_death.value,
        command=shlex.join(["ablate", *sys.argv[1:]]),
    )


def status(study: StudyName, as_json: Json = False) -> None:
    """Where every run of a study stands, and an estimate of what remains."""
    from ablations import status as states
    from ablations.looks import in_words, look
    from ablations.study import Study, study_path
    from ablations.submit.queued import queued

    found = Study.load(study_path(study))
    queue = queued(found.path)
    if as_json:
        options.print_json(states.document(found, queue))
        return
    looks = [look(run) for run in found.planned]
    title = f"{found.name}: {found.table} at {found.scale}, {in_words(looks)}"
    console = options.console()
    console.print(states.search_table(found, looks, title) if found.searched else states.table(looks, title, queue))
    for line in [*states.notes(found, looks), *(f"warning: {line}" for line in (queue.warnings if queue else ()))]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (plan, run, status):
        app.command(rich_help_panel=PANEL)(command)
