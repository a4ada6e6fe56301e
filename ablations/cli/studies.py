"""`ablate plan`, `run` and `status`: from a table to a study."""

from __future__ import annotations

import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import (
    Address,
    Cpus,
    CpusPerRun,
    Json,
    Only,
    Profile,
    Scale,
    Seeds,
    Settings,
    Source,
    StudyName,
    Table,
)

PANEL = "Studies"


class AfterDeath(StrEnum):
    """What becomes of a run whose process died."""

    RESUME = "resume"
    RESTART = "restart"


def plan(
    table: Table,
    scale: Scale,
    seeds: Seeds = 1,
    only: Only = None,
    profile: Profile = None,
    settings: Settings = None,
    gpu: Annotated[str | None, typer.Option(help="Reckon hours for this GPU, e.g. A100 or P100.")] = None,
    as_json: Json = False,
) -> None:
    """What a table costs before anything runs: parameters, FLOPs, memory and hours, for each row and in all."""
    from ablations import planning
    from ablations.corpora import prepared_already
    from ablations.selection import choose

    selection = choose(table, scale, only=options.names(only), settings=settings or (), profile=profile)
    planned = planning.plan(
        selection,
        len(options.seeds(seeds)),
        prepared=prepared_already(selection.base.data),
        device=planning.Device.gpu(gpu) if gpu else planning.Device.here(selection.scale, selection.base),
    )
    if as_json:
        options.print_json(planned.document())
    else:
        planning.show(planned, options.console())


def run(
    table: Table,
    scale: Scale,
    seeds: Seeds = 1,
    only: Only = None,
    study: Annotated[Path | None, typer.Option(help="The study's directory; without, studies/TABLE-SCALE.")] = None,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    address: Address = None,
    cpus: Cpus = None,
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: Annotated[
        float | None,
        typer.Option(min=0.0, help="GPUs of each run: a part of one, or several that share its batches."),
    ] = None,
    processes_per_run: Annotated[
        int | None, typer.Option(min=1, help="Processes that share each run's batches, where there are no GPUs.")
    ] = None,
    at_once: Annotated[int | None, typer.Option(min=1, help="Most runs at a time.")] = None,
    after_death: Annotated[
        AfterDeath, typer.Option(help="A run whose process died goes on from its checkpoint, or starts anew.")
    ] = AfterDeath.RESUME,
) -> int:
    """Run what is missing of a study: freeze it, prepare its data, let Ray Tune do the runs, write the report."""
    from ablations.cluster import Resources
    from ablations.conduct import conduct
    from ablations.progress import Teller
    from ablations.selection import choose

    return conduct(
        choose(table, scale, only=options.names(only), settings=settings or (), profile=profile),
        options.seeds(seeds),
        path=study,
        source=source,
        resources=Resources(
            address=address,
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
    from ablations.study import Study, study_path

    found = Study.load(study_path(study))
    if as_json:
        options.print_json(states.document(found))
        return
    looks = [states.look(run) for run in found.planned]
    title = f"{found.name}: {found.table} at {found.scale}, {states.in_words(looks)}"
    console = options.console()
    console.print(states.search_table(found, looks, title) if found.searched else states.table(looks, title))
    for line in states.notes(found, looks):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    for command in (plan, run, status):
        app.command(rich_help_panel=PANEL)(command)
