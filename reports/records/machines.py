"""What a run was computed on, in words."""

from __future__ import annotations

from reports.formats import counted
from reports.records.study import Run, at


def device(run: Run) -> str:
    """What computed: the accelerator's name, or the processor's; "CPU" where neither is known."""
    name = str(run.value("device") or at(run.environment, "device") or "cpu")
    return name if not name.lower().startswith("cpu") else str(at(run.environment, "cpu") or "CPU")


def on_processor(run: Run) -> bool:
    """Whether no accelerator computed."""
    return str(run.value("device") or at(run.environment, "device") or "cpu").lower().startswith("cpu")


def kind(run: Run) -> str:
    """Device and precision, with the threads of a processor: fine enough that one rate can hold."""
    threads = int(run.number("threads") or 1)
    parts = [device(run), counted(threads, "thread") if on_processor(run) else "", precision(run)]
    return ", ".join(filter(None, parts))


def precision(run: Run) -> str:
    """The arithmetic of training."""
    return str(run.value("precision") or "fp32")


def machine(run: Run) -> str:
    """Kind and host."""
    return ", ".join(filter(None, (kind(run), str(at(run.environment, "host") or ""))))
