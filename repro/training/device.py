"""Where a run computes."""

from __future__ import annotations

import torch

from repro.accounting.capacity import host_memory


def choose_device(index: int = 0) -> torch.device:
    """The visible CUDA device `index`, or the CPU where there is none."""
    return torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """What a report calls `device`: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def device_memory(device: torch.device) -> int:
    """Bytes of memory that `device` has in all."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else host_memory()
