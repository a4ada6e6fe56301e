"""What the driver does where there is no shared disk: put into the store what workers need, and fetch what they did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ablations.looks import FINISHED
from ablations.nodes import Shared
from ablations.storage.away import DATA, RUNS, Place, everything, step_of, without_weights
from ablations.storage.lease import Lease
from ablations.storage.objects import Objects
from ablations.storage.trees import Tree
from ablations.study import Study, StudyRun
from ablations.worker import Order
from repro.errors import CheckError

if TYPE_CHECKING:
    from ablations.cluster import Carry, Cluster

_LOOK_SECONDS = 3.0


def stored_step(tree: Tree) -> tuple[int, int]:
    """How far the stored copy of a run is, as `step_of` tells of one here; (-1, -1): there is none."""
    listed = tree.listed()
    return (int(listed.get("attempt", 0)), int(listed.get("step", 0))) if listed is not None else (-1, -1)


class Home:
    """A study's runs in the store at a URL, from `with` to its end."""

    def __init__(
        self,
        url: str,
        study: Study,
        runs: Sequence[StudyRun],
        *,
        sweep: str,
        asked: Callable[[], bool],
        stop: Callable[[], object],
        weights: bool = True,
    ) -> None:
        """`sweep`: its name, unique. `asked`: whether its workers are to stop. `stop`: called to have it so, when the
        place turns out to be another driver's. `weights`: whether they come here; without, the runs here are nothing
        but a view of what is stored.
        """
        self._objects, self._weights = Objects(url), weights
        self._data, self._runs, self._stop, self._asked = study.data, runs, f"stop/{sweep}", asked
        self._lease = Lease(self._objects, lambda _: stop())
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look, name="storage-home", daemon=True)
        self._trees = {
            run.path: Tree(objects=self._objects, name=f"{RUNS}/{run.path.name}", local=run.path) for run in runs
        }

    def place(self) -> dict[str, Any]:
        """For the orders of workers."""
        return asdict(Place(url=self._objects.url, data=self._data.digest, stop=self._stop))

    def __enter__(self) -> Self:
        self._lease.__enter__()
        try:
            self._store_data()
            for run in self._runs:
                self._bring_together(run)
        except BaseException:
            self._lease.__exit__(None, None, None)
            raise
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(CheckError):
            self.fetch()
            self._objects.remove(self._stop)
        self._lease.__exit__(kind, error, trace)

    def shared(self) -> Shared:
        """What every node must find as it is here."""
        return Shared.stored(self._objects.url)

    def fetching(self, carry: Carry) -> Carry:
        """`carry`, with all that was done brought here at its end."""

        def carried(cluster: Cluster, orders: Sequence[Order]) -> dict[str, str]:
            try:
                return carry(cluster, orders)
            finally:
                self.fetch()

        return carried

    def fetch(self) -> None:
        """Bring every run here to what the store has of it, weights as well where they are wanted. Raises CheckError
        when that fails.
        """
        with self._lock:
            for tree in self._trees.values():
                self._pull(tree)

    def _pull(self, tree: Tree) -> None:
        tree.pull(everything if self._weights else without_weights)

    def _store_data(self) -> None:
        """The prepared corpus, unless it is there: its name is its contents' digest."""
        tree = Tree(objects=self._objects, name=f"{DATA}/{self._data.digest}", local=self._data.directory)
        if tree.listed() is None:
            tree.push()

    def _bring_together(self, run: StudyRun) -> None:
        """The run here and in the store as that of the two is which got further."""
        tree = self._trees[run.path]
        there, here = stored_step(tree), step_of(run.directory)
        if there > here or not self._weights:
            self._pull(tree)
        elif run.directory.status().state not in FINISHED or there != here:
            tree.push(attempt=here[0], step=here[1])
        shorter = run.directory.continues()
        if shorter is not None and shorter.exists():
            Tree(objects=self._objects, name=f"{RUNS}/{shorter.name}", local=Path(shorter)).push()

    def _look(self) -> None:
        told = False
        while not self._ended.wait(_LOOK_SECONDS):
            with suppress(CheckError):
                if self._asked() and not told:
                    self._objects.write(self._stop, b"stop")
                    told = True
            for tree in self._trees.values():
                with suppress(CheckError), self._lock:
                    tree.pull(without_weights)
