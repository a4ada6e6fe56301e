"""Where a run computes."""

from __future__ import annotations

import torch


def choose_device() -> torch.device:
    """The first visible CUDA device, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def device_name(device: torch.device) -> str:
    """What a report calls `device`: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
