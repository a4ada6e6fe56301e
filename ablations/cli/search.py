"""`ablate search`: samples of a declared space under ASHA."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import Address, Cpus, CpusPerRun, Profile, Scale, Settings, Source

PANEL = "Studies"


def search(
    space: Annotated[Path, typer.Argument(help="A YAML file: space, objective, rungs (see below).")],
    scale: Scale,
    samples: Annotated[int, typer.Option(min=1, help="Samples to draw; more later go on from these.")],
    seed: Annotated[int, typer.Option(min=1, help="What the samples' values follow from.")] = 1,
    study: Annotated[Path | None, typer.Option(help="The study's directory; without, under studies/.")] = None,
    profile: Profile = None,
    settings: Settings = None,
    source: Source = None,
    address: Address = None,
    cpus: Cpus = None,
    cpus_per_run: CpusPerRun = 1.0,
    gpus_per_run: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="GPUs of each run, parts allowed.")
    ] = None,
    at_once: Annotated[int | None, typer.Option(min=1, help="Most runs at a time.")] = None,
) -> int:
    """Search a declared space with Ray Tune's ASHA. Rows get unequal budgets: they are not comparable as a table.

    The file: `space:` with dotted keys, each `{choice: [..]}`, `{uniform: [low, high]}`, `{loguniform: [low, high]}` or
    `{randint: [low, high]}`; `objective: valid/bleu` or `valid/perplexity`; `rungs: {grace: STEPS, reduction: 3}`;
    `budget: STEPS`.
    """
    from ablations.cluster import Resources
    from ablations.conduct import conduct
    from ablations.progress import Teller
    from ablations.space import read_space, selection_of
    from ablations.study import STUDIES

    selection = selection_of(
        read_space(space), scale, samples=samples, seed=seed, settings=settings or (), profile=profile
    )
    return conduct(
        selection,
        [1],
        path=study or STUDIES / "-".join(part for part in ("search", space.stem, scale, profile) if part),
        source=source,
        resources=Resources(
            address=address, cpus=cpus, cpus_per_run=cpus_per_run, gpus_per_run=gpus_per_run, at_once=at_once
        ),
        teller=Teller(options.console()),
        command=shlex.join(["ablate", *sys.argv[1:]]),
    )


def register(app: typer.Typer) -> None:
    """Add this command to `app`."""
    app.command(rich_help_panel=PANEL)(search)
