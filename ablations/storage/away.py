"""What a worker does where there is no shared disk: bring a run here, let it be done, and keep the store up to date."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.storage.objects import Objects, StorageError
from ablations.storage.trees import CHECKPOINTS, RESULT, Tree
from repro.runs import attempts
from repro.runs.directory import RunDirectory

SCRATCH = "ABLATE_SCRATCH"
"""Environment variable: a node's own disk for copies; without, the system's place for temporary files."""
RUNS, DATA = "runs", "data"

_LOOK_SECONDS = 2.0
_BEAT_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where things are in the store, as an order tells a worker."""

    url: str
    data: str
    """The digest of the prepared corpus."""
    stop: str
    """The name of what appears when the sweep is to end."""


@contextmanager
def brought(
    place: Place, name: str, stop: Callable[[], bool]
) -> Iterator[tuple[RunDirectory, Path, Callable[[], bool]]]:
    """The run called `name` here, its data, and whether it is to stop; what becomes of it is stored all along.

    When left, all of it is in the store and nothing of the run stays here. Raises StorageError when the store fails.
    """
    objects = Objects(place.url)
    root = scratch(place.url)
    data = _data(objects, place.data, root / DATA / place.data)
    run = RunDirectory(root / RUNS / name)
    before = attempts.newest(run) if run.path.exists() else None
    if before is not None and before.owner is not None and before.ended is None and before.owner.alive():
        raise StorageError(f"another process works on it ({before.whose()})", where=str(run.path))
    tree = Tree(objects=objects, name=f"{RUNS}/{name}", local=run.path)
    tree.forget()
    if tree.pull() is None:
        raise StorageError(
            "is not in the storage", where=f"{place.url}/{RUNS}/{name}", fix="run the same command again"
        )
    shorter = run.continues()
    if shorter is not None:
        Tree(objects=objects, name=f"{RUNS}/{shorter.name}", local=root / RUNS / shorter.name).pull()
    keeper = _Keeper(tree, run, place)
    with keeper:
        yield run, data, lambda: stop() or keeper.asked()
    keeper.store()
    if not keeper.superseded:
        tree.forget()


def scratch(url: str) -> Path:
    """This node's directory for copies from `url`, made if needed."""
    base = Path(os.environ.get(SCRATCH) or Path(tempfile.gettempdir()) / f"ablate-{os.getuid()}")
    root = base / hashlib.sha256(url.encode()).hexdigest()[:12]
    root.mkdir(parents=True, exist_ok=True)
    return root


def step_of(run: RunDirectory) -> tuple[int, int]:
    """How far a copy of a run is: its newest attempt, and the step of its newest checkpoint."""
    latest = attempts.newest(run)
    names = [path.name.removeprefix("step-") for path in run.checkpoints.glob("step-*")]
    return (
        latest.number if latest is not None else 0,
        max((int(name) for name in names if name.isdigit()), default=0),
    )


def _data(objects: Objects, digest: str, folder: Path) -> Path:
    """The prepared corpus here, brought once for all workers of this node."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{digest[:12]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if Tree(objects=objects, name=f"{DATA}/{digest}", local=folder).pull() is None:
            raise StorageError("the prepared data is not in the storage", where=f"{objects.url}/{DATA}/{digest}")
    return folder


class _Keeper:
    """Keeps the store up to date while a run is worked on here: after each checkpoint, at its end, and for signs of
    life.
    """

    def __init__(self, tree: Tree, run: RunDirectory, place: Place) -> None:
        self._tree, self._run, self._place = tree, run, place
        self.superseded = False
        """Whether the store has a newer attempt than this copy: then nothing more is stored."""
        self._asked, self._ended = threading.Event(), threading.Event()
        self._stored: Any = None
        self._thread = threading.Thread(target=self._keep, name="storage", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def asked(self) -> bool:
        """Whether the sweep is to end, or the run is another's by now."""
        return self._asked.is_set()

    def store(self) -> None:
        """Bring the store up to date, unless it has a newer attempt."""
        attempt, step = step_of(self._run)
        listed = self._tree.listed() or {}
        if int(listed.get("attempt", 0)) > attempt:
            self.superseded = True
            self._asked.set()
            return
        self._tree.push(attempt=attempt, step=step)

    def _keep(self) -> None:
        waited = 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            waited += _LOOK_SECONDS
            with suppress(StorageError):  # the store is away: what is here is stored with the next look
                if self._tree.objects.read(self._place.stop) is not None:
                    self._asked.set()
                now = (step_of(self._run), (self._run.path / RESULT).exists())
                if now != self._stored or waited >= _BEAT_SECONDS:
                    self.store()
                    self._stored, waited = now, 0.0


def everything(_: str) -> bool:
    """Whether a run's file belongs to it."""
    return True


def without_weights(name: str) -> bool:
    """Whether a run's file tells how it goes, and is not large."""
    return not name.startswith(f"{CHECKPOINTS}/")
