"""Seconds of work: this process's CPU time, which other work moves less than the wall clock, or a GPU's wall time."""

from __future__ import annotations

import os
import time

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


def pin() -> None:
    """Keep this process on one core and in one thread, where the system allows it."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
