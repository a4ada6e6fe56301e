"""The calls of a training step that only CUDA has; what is around them runs, and is tested, on any device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from repro.models.attention import WIDEST


def runs_ahead(device: torch.device) -> bool:
    """Whether work on `device` is only begun by a call, and goes on while the host does something else."""
    return device.type == "cuda"


def has_flash(device: torch.device, *, bf16: bool) -> bool:
    """Whether torch has flash attention: in half precision, on an NVIDIA GPU of the Ampere generation or later."""
    nvidia = device.type == "cuda" and torch.version.hip is None
    return bf16 and nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


def widest_head(device: torch.device) -> int:
    """Numbers of a head whose gradient torch's flash attention computes on `device` at most."""
    narrow = device.type == "cuda" and torch.cuda.get_device_capability(device) not in ((8, 0), (9, 0), (10, 0))
    return 192 if narrow else WIDEST


def leave_default_stream(device: torch.device) -> None:
    """Let this thread's work on `device` run in a stream of its own from now on.

    A recording is made on the stream on which the parameters' gradients are accumulated, and it must not be the
    default one.
    """
    if device.type != "cuda":
        return
    before = torch.cuda.current_stream(device)
    if before == torch.cuda.default_stream(device):
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(before)
        torch.cuda.set_stream(stream)


def wait(device: torch.device) -> None:
    """Wait until `device` has done all that was begun."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def upload(numbers: Tensor, device: torch.device) -> Tensor:
    """`numbers` of the host on `device`, copied while the device computes what was begun before."""
    if device.type != "cuda":
        return numbers.to(device)
    present, copies = torch.cuda.current_stream(device), _copying(device)
    with torch.cuda.stream(copies):
        copied = numbers.pin_memory().to(device, non_blocking=True)
    present.wait_stream(copies)
    copied.record_stream(present)
    return copied


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _copying(device: torch.device) -> torch.cuda.Stream:
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return _streams[device]


class Recorder:
    """Makes CUDA graphs that share one pool of memory: no two of them run at once, nor does one read another's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
        """A function that does `work` again, on the same memory, with what `generator` draws from its seed then.

        `work` itself is not done. It must have been done before, or what it sets up at first would be recorded.
        """
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(generator)
        stream = torch.cuda.current_stream(self._device)
        try:
            # Other threads (NCCL's) may ask for the state of their events meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
                work()
        except RuntimeError:
            # Where ending the recording fails, torch would go on to take memory from the recordings' pool.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(stream.device_index, self._pool)
            raise
        return graph.replay


def recorder(device: torch.device) -> Recorder | None:
    """What records work on `device`; None where nothing can be recorded."""
    return Recorder(device) if device.type == "cuda" else None


def limit_memory(device: torch.device, share: float) -> None:
    """Let this process take at most `share` of the memory of `device`; more is a shortage as if there were no more."""
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
