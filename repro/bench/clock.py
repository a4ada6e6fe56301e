"""Seconds of work: this process's CPU time, which other work moves less than the wall clock, or a GPU's wall time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """`with clock: ...` sets `clock.seconds` to what the block took on `device`."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self._started = device, 0.0, 0.0

    def __enter__(self) -> None:
        self._started = self._now()

    def __exit__(self, *_: object) -> None:
        self.seconds = self._now() - self._started

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return time.perf_counter()
        return time.process_time()


@contextmanager
def pinned() -> Iterator[None]:
    """While inside, this process keeps to one core, where the system allows it, and to one thread."""
    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    torch.set_num_threads(1)
    try:
        if cores:
            os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        torch.set_num_threads(threads)
