"""Where a run computes."""

from __future__ import annotations

import math
import os

import torch

from repro.accounting.capacity import MEMORY_SHARE, host_memory
from repro.errors import UsageError
from repro.training import cuda


def choose_device(index: int = 0) -> torch.device:
    """The visible CUDA device `index`, or the CPU where there is none.

    Several runs on one GPU each have a share of its memory, told by MEMORY_SHARE: what goes beyond it is a shortage,
    which makes that run's micro-batches smaller and leaves the others alone. Raises UsageError for a share that is
    none.
    """
    share = memory_share()
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", index)
    cuda.limit_memory(device, share)
    return device


def memory_share() -> float:
    """The share of a GPU's memory that this process may take, 1 where nobody says. Raises UsageError as above."""
    told = os.environ.get(MEMORY_SHARE, "").strip()
    try:
        share = float(told or 1.0)
    except ValueError:
        share = math.nan
    if not 0.0 < share <= 1.0:
        fix = "give a number above 0 and at most 1, or unset it"
        raise UsageError(f"{told!r} is no share of a GPU", where=MEMORY_SHARE, fix=fix)
    return share


def device_name(device: torch.device) -> str:
    """What a report calls `device`: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_memory(device: torch.device) -> int:
    """Bytes of memory that this process may take of `device`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1] * memory_share())
    return host_memory()
