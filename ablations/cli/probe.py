"""`ablate probe`: what the paper says of why its model works, measured."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.options import Cpus, CpusPerRun, Scale, Seeds, Settings, Source

PANEL = "Results"


def probe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="all, or worked-example, softmax-saturation, layers, long-range, order, extrapolation, "
            "attention-maps, mask.",
        ),
    ],
    scale: Scale,
    seeds: Seeds = 1,
    study: Annotated[Path | None, typer.Option(help="The study's directory; without, studies/probes-SCALE.")] = None,
    settings: Settings = None,
    source: Source = None,
    cpus: Cpus = None,
    cpus_per_run: CpusPerRun = 1.0,
) -> int:
    """Measure mechanisms: train the rows that are missing, probe them, write pages with plots and verdicts."""
    from ablations.cluster import Resources
    from ablations.probes import conducting
    from ablations.probes.catalogue import chosen
    from ablations.progress import Teller
    from ablations.scales import scale_of

    return conducting.probe(
        chosen(names),
        scale_of(scale).name,
        options.seeds(seeds),
        path=study,
        settings=settings or (),
        source=source,
        resources=Resources(cpus=cpus, cpus_per_run=cpus_per_run),
        teller=Teller(options.console()),
        command=shlex.join(["ablate", *sys.argv[1:]]),
    )


def register(app: typer.Typer) -> None:
    """Add this command to `app`."""
    app.command(rich_help_panel=PANEL)(probe)
