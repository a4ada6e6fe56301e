"""Out of memory: how to know it, and how to give back what is only kept in reserve."""

from __future__ import annotations

import gc

import torch

_TOLD = ("DefaultCPUAllocator", "can't allocate memory", "not enough memory", "ALLOC_FAILED", "std::bad_alloc")
"""How torch's CPU allocator, C++ and CUDA's libraries tell it in a plain RuntimeError."""
_KERNEL = "could not create a primitive"
"""All that oneDNN says where a kernel's code found no room; of a kernel that it does not have it says more."""


def is_shortage(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on a GPU or on the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    return str(error) == _KERNEL or any(told in str(error) for told in _TOLD)


def release() -> None:
    """Give back memory that is held in reserve. Call it when the error is gone: its traceback holds tensors."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
