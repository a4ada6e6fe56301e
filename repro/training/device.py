"""Where a run computes, and how the process is set up for it."""

from __future__ import annotations

import ctypes
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ONE_GIB = 1 << 30


def choose_device() -> torch.device:
    """The first visible CUDA device, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def set_up_process(threads: int) -> None:
    """Give this process `threads` CPU threads and let it keep freed memory.

    Freed tensors go back to the heap instead of the system: a training step asks for the same sizes again and again,
    and fetching fresh zeroed pages each time costs a tenth of a small model's step. Results do not depend on it.
    """
    torch.set_num_threads(threads)
    if sys.platform == "linux":
        heap = ctypes.CDLL(None)
        heap.mallopt(_M_MMAP_THRESHOLD, _ONE_GIB)
        heap.mallopt(_M_TRIM_THRESHOLD, _ONE_GIB)


def device_name(device: torch.device) -> str:
    """What a report calls `device`: the GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
