"""The memory that each run of a command finds, before any of them starts."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from ablations.cluster import Resources, available_cpus
from repro.accounting.capacity import host_memory
from repro.accounting.memory import FRAMEWORK_BYTES, Kind, memory_bytes
from repro.config import RunConfig
from repro.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """What one run may take of a device's memory."""

    bytes: int
    kind: Kind
    where: str
    """In words: "this machine's 23.5 GB for 2 runs at once"."""
    processes: int = 1
    """Processes of one run: each on a GPU of its own, or all in the memory of one machine."""

    @classmethod
    def of_one_run(cls, processes: int = 1) -> Self:
        """For a run by itself on this machine. Raises UsageError when it has GPUs, but fewer than `processes`."""
        return cls._gpu(1.0, processes) or cls._host(1, processes)

    @classmethod
    def of_sweep(cls, resources: Resources, *, wants_gpu: bool, runs: int) -> Self | None:
        """For each of `runs` runs; None on a cluster, whose nodes have memory of their own."""
        if resources.address is not None:
            return None
        gpus = resources.gpus_per_run if resources.gpus_per_run is not None else float(wants_gpu)
        if gpus and (found := cls._gpu(min(1.0, gpus), resources.processes)) is not None:
            return found
        cpus = resources.cpus or available_cpus()
        places = int(cpus // max(resources.cpus_per_run, resources.processes))
        return cls._host(max(1, min(runs, places, resources.at_once or runs)), resources.processes)

    def needed(self, config: RunConfig, micro_batch_tokens: int | None = None) -> int:
        """Bytes that a run of `config` takes, estimated; `micro_batch_tokens` in place of its own."""
        train = config.train
        largest = min(train.batch_tokens, micro_batch_tokens or train.micro_batch_tokens or train.batch_tokens)
        parts = dataclasses.replace(
            train, micro_batch_tokens=max(1, min(largest, train.batch_tokens // self.processes))
        )
        one = memory_bytes(config.model, config.data.vocabulary_size, parts, on=self.kind) + FRAMEWORK_BYTES
        return one if self.kind == "cuda" else one * self.processes

    def fitting(self, config: RunConfig, least: int) -> int | None:
        """The largest micro-batch that fits, all of the configured one or a half, a quarter, ... of it, with room for a
        sentence of `least` positions; None when there is none.
        """
        train = config.train
        size = min(train.batch_tokens, train.micro_batch_tokens or train.batch_tokens)
        while size >= least:
            if self.needed(config, size) <= self.bytes:
                return size
            size //= 2
        return None

    @classmethod
    def _gpu(cls, share: float, processes: int) -> Self | None:
        import torch

        if not torch.cuda.is_available():
            return None
        if processes > torch.cuda.device_count():
            what = f"{processes} processes want a GPU each, there are {torch.cuda.device_count()}"
            raise UsageError(what, where="processes", fix="ask for fewer")
        found = torch.cuda.get_device_properties(0)
        part = f"{share:.0%} of " if share < 1 else ""
        where = f"{part}the {found.total_memory / GIB:.1f} GB of {found.name}"
        return cls(bytes=int(found.total_memory * share), kind="cuda", where=where, processes=processes)

    @classmethod
    def _host(cls, runs: int, processes: int) -> Self:
        memory = host_memory()
        where = f"this machine's {memory / GIB:.1f} GB" + (f" for {runs} runs at once" if runs > 1 else "")
        return cls(bytes=memory // runs, kind="cpu", where=where, processes=processes)
