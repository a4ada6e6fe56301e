"""Where a step's time goes, from torch's profiler: each operator counts for the part of the model that called it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from repro.bench.systems import Ours
from repro.data.pieces import Batch
from repro.models import fused
from repro.models.attention import Attention
from repro.models.transformer import FeedForward
from repro.training.adam import Adam

PARTS = ("attention", "feed-forward", "softmax and loss", "optimizer", "rest")
"""What a step is split into; `rest` is embeddings, residual sums with their dropout and norms, and Python.

Where the pass is one operator (`repro.models.fused`), a sub-layer's sum, dropout and norm count with it.
"""

_MARK = "part: "
_OPERATORS = {"_ChunkedLoss": "softmax and loss"}
"""The part of what the profiler shows under a name that begins so."""
_METHODS: dict[type, tuple[str, tuple[str, ...]]] = {
    fused.SelfAttentionPart: ("attention", ("forward", "backward")),
    fused.CrossAttentionPart: ("attention", ("forward", "backward")),
    fused.FeedForwardPart: ("feed-forward", ("forward", "backward")),
    Adam: ("optimizer", ("step",)),
}
"""The part that a class's methods are of."""


def shares(system: Ours, batches: Iterable[Batch]) -> dict[str, float]:
    """The share of each of `PARTS` in the time of a step on `batches`.

    A backward operator belongs where the forward operator of the same number was called. On a GPU the times are the
    kernels'.
    """
    cuda = system.trainer.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    system.trainer.record(False)  # what is replayed shows no operators
    with _marked(system.trainer.model), profile(activities=activities) as profiler:
        system.steps(batches)
    system.trainer.record(True)
    events = [event for event in profiler.events() or () if event.device_type.name == "CPU"]
    spent = _attributed(events, cuda)
    total = sum(spent.values()) or 1.0  # a profiler that sees no kernels
    return {part: spent[part] / total for part in PARTS}


def _attributed(events: list[Any], cuda: bool) -> dict[str, float]:
    """Microseconds of each part, by the profiler's `events` on the host: their own, or those of their kernels."""
    numbers: dict[int, str] = {}
    for event in events:
        if event.sequence_nr >= 0 and event.scope == 0 and (part := _named(event)):
            numbers[event.sequence_nr] = part
    spent = dict.fromkeys(PARTS, 0.0)
    for event in events:
        part = _named(event) or next((numbers[n] for n in _backward(event) if n in numbers), "rest")
        spent[part] += event.self_device_time_total if cuda else event.self_cpu_time_total
    return spent


def _named(event: Any) -> str | None:
    """The part whose mark `event` or a caller of it bears."""
    while event is not None:
        if event.name.startswith(_MARK):
            return str(event.name.removeprefix(_MARK))
        for name, part in _OPERATORS.items():
            if event.name.startswith(name):
                return part
        event = event.cpu_parent
    return None


def _backward(event: Any) -> Iterator[int]:
    """The numbers of the forward operators whose gradient `event` is a part of."""
    while event is not None:
        if event.scope == 1 and event.sequence_nr >= 0:
            yield event.sequence_nr
        event = event.cpu_parent


@contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    """Attention and feed-forward modules of `model`, what stands for them, and Adam bear marks in the profile."""
    with ExitStack() as stack:
        for kind, (part, names) in _METHODS.items():
            for name in names:
                plain = getattr(kind, name)
                stack.callback(setattr, kind, name, plain)
                setattr(kind, name, _with_mark(_MARK + part, plain))
        for module in model.modules():
            if isinstance(module, Attention | FeedForward):
                before, after = _hooks(_MARK + ("attention" if isinstance(module, Attention) else "feed-forward"))
                stack.callback(module.register_forward_pre_hook(before).remove)
                stack.callback(module.register_forward_hook(after).remove)
        yield


def _with_mark(mark: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*arguments: Any) -> Any:
        with record_function(mark):
            return plain(*arguments)

    return marked


def _hooks(mark: str) -> tuple[Callable[..., None], Callable[..., None]]:
    opened: list[record_function] = []

    def before(*_: Any) -> None:
        opened.append(record_function(mark))
        opened[-1].__enter__()  # type: ignore[no-untyped-call]

    def after(*_: Any) -> None:
        opened.pop().__exit__(None, None, None)

    return before, after
