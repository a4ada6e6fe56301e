"""Several processes that train one model: each computes its share of a batch, and all apply the same update.

Gradients are summed through torch.distributed, by NCCL between GPUs and by gloo between CPUs. Every process holds the
whole model and optimizer; the sums are the same bits everywhere, so the models stay equal without being sent. What
only one process can know (whether a run goes on) is decided by the process of rank 0 and told to the others.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

STEP_TIMEOUT = timedelta(minutes=30)
"""Longest wait for another process inside an update; all compute at the same time, so it means that one hangs."""
WAIT_TIMEOUT = timedelta(days=2)
"""Longest wait for a decision of rank 0, which may translate a whole test set meanwhile. Its death is noticed at
once."""

_FAILURE = "failure"
_LOOPBACK = ("lo", "lo0")
_MOST = 1000
"""Characters of a reason that are told to the other processes."""


class LostError(RuntimeError):
    """Another process of the run died, hangs or cannot be reached."""


class Group:
    """The processes that train one model; by itself, a single one, which exchanges nothing."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        *,
        local_rank: int = 0,
        store: Store | None = None,
        waiting: dist.ProcessGroup | None = None,
    ) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._store, self._waiting = store, waiting

    @staticmethod
    def meet(rank: int, size: int, file: Path) -> Group:
        """The group of `size` processes of this machine that all name the same new `file`."""
        loopback = next((name for _, name in socket.if_nameindex() if name in _LOOPBACK), None)
        if loopback is not None:  # a machine's own name may lead nowhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        return _formed(dist.FileStore(str(file), size), rank, size, local_rank=rank)  # type: ignore[attr-defined]

    @staticmethod
    def join() -> Group:
        """The group that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT tell of, as torchrun sets them."""
        store, rank, size = next(rendezvous("env://", timeout=STEP_TIMEOUT))
        local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
        devices = max(1, torch.cuda.device_count())
        return _formed(store, rank, size, local_rank=int(local) if local else rank % devices)

    def close(self) -> None:
        """Leave the group."""
        if self.size > 1:
            dist.destroy_process_group()

    def sum(self, *values: float) -> list[float]:
        """Each of `values` summed over all processes in double precision: the same bits everywhere."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64)
        with _noticing():
            dist.all_reduce(numbers)
        return [float(number) for number in numbers]

    def sum_tensor(self, tensor: Tensor) -> None:
        """Replace `tensor` by its sum over all processes: the same bits everywhere."""
        if self.size > 1:
            with _noticing():
                dist.all_reduce(tensor)

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace `tensors` by those of rank 0."""
        if self.size > 1:
            with _noticing():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def tell(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What rank 0 gives as `document`, plain JSON. The others wait for it, and what they give is left out."""
        if self.size == 1:
            return dict(document)
        content = torch.frombuffer(bytearray(json.dumps(document).encode("utf-8")), dtype=torch.uint8)
        length = torch.tensor(content.numel())
        with _noticing():
            dist.broadcast(length, 0, group=self._waiting)
            if self.rank:
                content = torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(content, 0, group=self._waiting)
        read: dict[str, Any] = json.loads(bytes(content.tolist()))
        return read

    def decide(self, yes: bool) -> bool:
        """Rank 0's `yes`, for which the others wait."""
        if self.size == 1:
            return yes
        decision = torch.tensor(yes)
        with _noticing():
            dist.broadcast(decision, 0, group=self._waiting)
        return bool(decision)

    def tell_failure(self, reason: str) -> None:
        """Leave the reason of this process's end to rank 0, which will notice that it is gone."""
        if self._store is not None:
            with suppress(RuntimeError):  # the others may be gone already
                self._store.set(_FAILURE, f"rank {self.rank}: {reason}"[:_MOST])

    def failure(self) -> str:
        """What another process left with `tell_failure`; empty when none did."""
        if self._store is None:
            return ""
        with suppress(RuntimeError):  # its keeper may be what is gone
            if self._store.check([_FAILURE]):
                return self._store.get(_FAILURE).decode("utf-8")
        return ""


ALONE = Group()


def _formed(store: Store, rank: int, size: int, *, local_rank: int) -> Group:
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        backend = "cpu:gloo,cuda:nccl"
    with _noticing():
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=STEP_TIMEOUT)
        waiting = dist.new_group(backend="gloo", timeout=WAIT_TIMEOUT)
    return Group(rank, size, local_rank=local_rank, store=store, waiting=waiting)


@contextmanager
def _noticing() -> Iterator[None]:
    """What torch.distributed raises as a LostError."""
    try:
        yield
    except RuntimeError as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LostError(f"lost contact with the run's other processes ({told})") from error
