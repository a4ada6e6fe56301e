"""What a Ray worker does: one run, from its directory. Imports nothing heavy until it is called."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.runs.directory import RunDirectory, Status
from repro.runs.processes import Process

EXECUTE = "repro.runs.execute:execute"
"""The function that does a run, `execute(run, stop=...) -> Status`, as "module:name"."""

_POLL_SECONDS = 1.0


class RunError(Exception):
    """A run ended as failed: told to Ray so that it tries again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What a worker is told: plain values, so that workers on other machines can be told, too."""

    run: str
    """The run's directory."""
    stop: str
    """A file that appears when the sweep is to end: runs then save and stop."""
    driver: dict[str, Any]
    """The process that conducts the sweep; when it dies, runs save and stop."""
    execute: str = EXECUTE


class StopWatch:
    """Notices, beside a run, that the sweep is to end or that its driver died."""

    def __init__(self, order: Order) -> None:
        self._stop, self._driver = Path(order.stop), Process.read(order.driver)
        self._asked, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stop-watch", daemon=True)

    def __enter__(self) -> StopWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def asked(self) -> bool:
        """Whether the run is to save and stop."""
        return self._asked.is_set()

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            if self._stop.exists() or self._driver.alive() is False:
                self._asked.set()
                return


def work(order: Order) -> dict[str, Any]:
    """Do the run of `order`; how it ended, as {"state", "reason"}. Raises RunError when it failed, for another try."""
    if Path(order.stop).exists():
        return {"state": "stopped", "reason": "the sweep was ended before it began"}
    execute = _load(order.execute)
    with StopWatch(order) as watch:
        status = execute(RunDirectory(Path(order.run)), stop=watch.asked)
    if status.state == "failed":
        raise RunError(status.reason)
    return {"state": status.state, "reason": status.reason}


def _load(name: str) -> Callable[..., Status]:
    module, _, function = name.partition(":")
    loaded: Callable[..., Status] = vars(importlib.import_module(module))[function]
    return loaded
