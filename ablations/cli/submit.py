"""`ablate submit`, `cancel` and `work`: studies on SLURM and Ray clusters."""

from __future__ import annotations

import shlex
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import (
    AfterDeath,
    AfterDeathOption,
    AtOnce,
    CpusPerRun,
    GpusPerRun,
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

PANEL = "Clusters"


class Mode(StrEnum):
    """How a study becomes jobs."""

    ARRAY = "array"
    RAY = "ray"


app = typer.Typer(help="Hand what is missing of a study to SLURM or to a Ray cluster.", no_args_is_help=True)


@app.command("slurm")
def slurm(
    table: Table,
    scale: Scale,
    seeds: Seeds = 1,
    only: Only = None,
    skip: Skip = None,
    study: StudyPath = None,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    site: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What the cluster wants to be told; without, $ABLATE_SITE.")
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="array: one run a task, no Ray. ray: one allocation becomes a Ray cluster.")
    ] = Mode.ARRAY,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of each run (array) or of the allocation (ray).")] = 1,
    runs_per_node: Annotated[int, typer.Option(min=1, help="Runs that share a node at a time (ray).")] = 1,
    processes_per_run: ProcessesPerRun = None,
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: GpusPerRun = None,
    at_once: AtOnce = None,
    after_death: AfterDeathOption = AfterDeath.RESUME,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact scripts and do nothing.")] = False,
) -> int:
    """Submit what is missing of a study and not queued yet. The same command again submits nothing twice.

    Configurations and this program's source are frozen in the study: later edits change nothing that is queued.
    """
    from ablations.cluster import Resources
    from ablations.progress import Teller
    from ablations.selection import choose
    from ablations.submit.slurm import Layout, scripts, submit

    selection = choose(
        table, scale, only=options.names(only), skip=options.names(skip) or (), settings=settings or (), profile=profile
    )
    layout = Layout(
        mode=mode.value,
        nodes=nodes,
        runs_per_node=runs_per_node,
        resources=Resources(
            cpus_per_run=cpus_per_run,
            gpus_per_run=gpus_per_run,
            at_once=at_once,
            processes_per_run=processes_per_run,
        ),
        after_death=after_death.value,
    )
    if dry_run:
        for name, text in scripts(selection, options.seeds(seeds), path=study, site_file=site, layout=layout):
            print(f"# {name}", file=sys.stderr)
            print(text, end="")
        return 0
    return submit(
        selection,
        options.seeds(seeds),
        path=study,
        source=source,
        site_file=site,
        layout=layout,
        teller=Teller(options.console()),
        command=shlex.join(["ablate", *sys.argv[1:]]),
    )


@app.command("ray")
def ray(
    table: Table,
    scale: Scale,
    address: Annotated[str, typer.Option(metavar="URL", help="The cluster's job server: http://HOST:8265.")],
    seeds: Seeds = 1,
    only: Only = None,
    skip: Skip = None,
    study: StudyPath = None,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    python: Annotated[str, typer.Option(help="The interpreter on the cluster's head.")] = "python",
    storage: Storage = None,
    processes_per_run: ProcessesPerRun = None,
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: GpusPerRun = None,
    at_once: AtOnce = None,
    after_death: AfterDeathOption = AfterDeath.RESUME,
    follow: Annotated[
        bool, typer.Option(help="Show what the job says until it ends; Ctrl-C leaves it running.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be handed in and do nothing.")] = False,
) -> int:
    """Hand what is missing of a study to a running Ray cluster as a job. The same command again follows that job.

    The study must be on a disk that this machine and all nodes see under the same path, or travels through a store that
    they all reach. The program's source is sent along: later edits change nothing.
    """
    from ablations.cluster import Resources
    from ablations.progress import Teller
    from ablations.selection import choose
    from ablations.submit.rays import Wanted, shown, submit

    selection = choose(
        table, scale, only=options.names(only), skip=options.names(skip) or (), settings=settings or (), profile=profile
    )
    wanted = Wanted(
        address=address,
        resources=Resources(
            cpus_per_run=cpus_per_run,
            gpus_per_run=gpus_per_run,
            at_once=at_once,
            processes_per_run=processes_per_run,
        ),
        after_death=after_death.value,
        python=python,
        storage=storage,
        follow=follow,
    )
    if dry_run:
        print("\n".join(shown(selection, path=study, wanted=wanted)))
        return 0
    return submit(
        selection,
        options.seeds(seeds),
        path=study,
        source=source,
        wanted=wanted,
        teller=Teller(options.console()),
        command=shlex.join(["ablate", *sys.argv[1:]]),
    )


def cancel(study: StudyName) -> int:
    """End the jobs of a study and nothing else. Runs that are at work save and stop."""
    from ablations.study import study_path
    from ablations.submit.cancel import cancel as cancel_jobs

    return cancel_jobs(study_path(study), print)


def work(
    study: StudyName,
    submission: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Do what this submission froze; without, the study's plan.")
    ] = None,
    task: Annotated[int, typer.Option(min=0, help="The place in the list to begin at.")] = 0,
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Do all of it on this Ray; without, one run here.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Store that has the submission; the study need not be on this machine."),
    ] = None,
) -> int:
    """Inside a job: do one run that nobody works on, or all of them on a Ray. SIGTERM and SIGUSR1: save and stop.

    Exit code 75 when there is something left to go on with.
    """
    from ablations.progress import Teller
    from ablations.study import study_path
    from ablations.submit.work import work as do_work
    from ablations.submit.work import work_stored

    teller = Teller(options.console())
    if storage is not None:
        code = work_stored(storage, submission, address, teller)
    else:
        code = do_work(study_path(study), submission, task, address, teller)
    for number in (signal.SIGTERM, signal.SIGUSR1):  # what comes while Python winds up must not hide the exit code
        signal.signal(number, signal.SIG_IGN)
    return code


def register(root: typer.Typer) -> None:
    """Add these commands to `root`."""
    root.add_typer(app, name="submit", rich_help_panel=PANEL)
    for command in (cancel, work):
        root.command(rich_help_panel=PANEL)(command)
