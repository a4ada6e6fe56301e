"""Chunks: tasks split into arrays that SLURM accepts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from repro.errors import CheckError
from slurm.commands import ask
from slurm.site import Site

USUAL_SIZE = 1001
"""SLURM's own MaxArraySize, for where it cannot be asked."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The tasks `first` to `first + tasks - 1`: array indices 0 to tasks - 1 and an offset."""

    first: int
    tasks: int


def chunks(first: int, end: int, size: int) -> list[Chunk]:
    """The tasks `first` to `end - 1` in chunks of at most `size`."""
    return [Chunk(start, min(size, end - start)) for start in range(first, end, size)]


def array_size(site: Site) -> int:
    """Most tasks of one array: what SLURM allows, or less if the site says so."""
    return min(_allowed(site), site.array_size or USUAL_SIZE * 1000)


def _allowed(site: Site) -> int:
    """MaxArraySize is one more than the largest index; max_array_tasks may be less."""
    try:
        told = ask("scontrol", "show", "config", seconds=site.answer_seconds).out
    except CheckError:
        told = ""
    limits = [int(found) for found in re.findall(r"(?:^MaxArraySize\s*=\s*|\bmax_array_tasks=)(\d+)", told, re.M)]
    return max(1, min(limits, default=USUAL_SIZE))
