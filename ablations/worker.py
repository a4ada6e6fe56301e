"""What a Ray worker does: one run, from its directory. Imports nothing heavy until it is called."""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ablations import nodes
from ablations.storage.objects import StorageError
from repro.accounting.capacity import MEMORY_SHARE
from repro.errors import UserError
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status
from repro.runs.execute import AfterDeath
from repro.runs.processes import Process

EXECUTE = "repro.runs.execute:execute"
"""The function that does a run, called as `repro.runs.execute.execute` is, as "module:name"."""

_POLL_SECONDS = 1.0
_MARGIN_SECONDS = 10.0
"""For clocks and looks, beside the silence that decides at last."""


class RunError(Exception):
    """A run did not come to its end, but another try may: told to Ray so that it tries again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What a worker is told: plain values, so that workers on other machines can be told, too."""

    run: str
    """The run's directory."""
    stop: str
    """A file that appears when the sweep is to end: runs then save and stop."""
    driver: dict[str, Any]
    """The process that conducts the sweep; when it dies, runs save and stop."""
    sweep: str = ""
    """Names the sweep. It never has two tries of a run at once, so an earlier one is over when the next begins."""
    after_death: AfterDeath = "resume"
    shared: dict[str, Any] | None = None
    """A `Shared` that this worker's place must agree with; None: it is the driver's own machine."""
    processes: int = 1
    """Processes that share each of the run's batches."""
    gpu_share: float = 1.0
    """The share of a GPU's memory that the run may take: below 1 where several runs are on one."""
    execute: str = EXECUTE
    storage: dict[str, Any] | None = None
    """A `Place` in a store through which the run travels; None: its directory is on a disk that this worker sees."""
    by: dict[str, str] = field(default_factory=dict)
    """Kept with the claim, beside the sweep and the node: the job that the sweep is in."""


class StopWatch:
    """Notices, beside a run, that it is to end: its process was told to, the sweep is to end, or its driver died."""

    def __init__(self, order: Order) -> None:
        self._stop, self._driver = Path(order.stop), Process.read(order.driver)
        self.signalled = ""
        """The name of the signal that told this process to end, if one did."""
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
        return bool(self.signalled) or self._asked.is_set()

    def wait(self) -> None:
        """Until the next look."""
        self._asked.wait(_POLL_SECONDS)

    @contextmanager
    def heeding(self) -> Iterator[None]:
        """While inside, SIGTERM and SIGUSR1 let the run save and stop, however often they come."""

        def handle(number: int, _: FrameType | None) -> None:
            self.signalled = signal.Signals(number).name

        if threading.current_thread() is not threading.main_thread():
            yield  # signals are the main thread's, here somebody else's
            return
        before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            if self._stop.exists() or self._driver.alive() is False:
                self._asked.set()
                return


def work(order: Order) -> dict[str, Any]:
    """Do the run of `order`; how it ended, as {"state", "reason"}.

    Raises RunError when it did not end and another try may do better: one that failed for a reason that may pass, one
    whose process was told to end, one on a node that is not fit for it.
    """
    heed_gpu_share(order)
    if Path(order.stop).exists():
        return {"state": "stopped", "reason": "the sweep was ended before it began"}
    fault = nodes.Shared(**order.shared).fault() if order.shared is not None else ""
    if fault:
        raise RunError(f"the node {fault}")
    try:
        with StopWatch(order) as watch, watch.heeding(), _at_hand(order, watch) as (run, stop, elsewhere):
            by = order.by | ({"sweep": order.sweep, "node": nodes.this_node()} if order.sweep else {})
            _bury_the_last(run, order, watch)
            more = elsewhere | ({"processes": order.processes} if order.processes > 1 else {})
            status = load(order.execute)(run, stop=stop, after_death=order.after_death, by=by, **more)
            latest = attempts.newest(run)
    except StorageError as error:
        raise RunError(str(error)) from error
    except UserError as error:  # a damaged directory: it will not mend itself
        return {"state": "failed", "reason": str(error)}
    except OSError as error:
        # Its claim could not be ended and is this process's for as long as it lives.
        raise SystemExit(f"{order.run}: {error}") from error
    if status.state == "stopped" and watch.signalled:
        raise RunError(f"{watch.signalled} told its process to end")
    if status.state == "failed" and latest is not None and latest.may_pass:
        raise RunError(status.reason)
    return {"state": status.state, "reason": status.reason}


def heed_gpu_share(order: Order) -> None:
    """Let this process, and those that it starts, take no more of a GPU's memory than `order` says."""
    if order.gpu_share < 1.0:
        os.environ[MEMORY_SHARE] = str(order.gpu_share)


@contextmanager
def _at_hand(order: Order, watch: StopWatch) -> Iterator[tuple[RunDirectory, Callable[[], bool], dict[str, Any]]]:
    """The run of `order` on a disk of this machine, whether it is to stop, and how else it is to be executed here."""
    path = Path(order.run)
    if order.storage is None:
        yield RunDirectory(path), watch.asked, {}
        return
    from ablations.storage import away

    with away.brought(away.Place(**order.storage), path.name, watch.asked) as (run, data, stop):
        yield run, stop, {"data_directory": data}


def _bury_the_last(run: RunDirectory, order: Order, watch: StopWatch) -> None:
    """Wait until the try of this sweep before this one is known to be dead, if it seems to live.

    Ray tries again when it has lost a process. On another machine this cannot be looked up: the node is asked for, and
    at last the claim's own silence decides, so that the wait is bounded.
    """
    ends = time.monotonic() + attempts.TTL_SECONDS + _MARGIN_SECONDS
    while order.sweep and not watch.asked() and time.monotonic() < ends:
        latest = attempts.newest(run)
        if latest is None or not latest.working() or latest.by.get("sweep") != order.sweep:
            return
        if latest.owner is not None and nodes.is_lost(latest.owner, latest.by.get("node", "")):
            attempts.bury(latest, "Ray lost its process or its node")
            return
        watch.wait()


def load(name: str) -> Callable[..., Status]:
    """The function that `name`, "module:name", stands for."""
    module, _, function = name.partition(":")
    loaded: Callable[..., Status] = vars(importlib.import_module(module))[function]
    return loaded
