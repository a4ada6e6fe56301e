"""A sweep: what is missing of a study, planned from disk, carried out by Ray, and looked up on disk again."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ablations.cluster import Carry, Cluster, Resources
from ablations.looks import Look, look
from ablations.nodes import Shared
from ablations.progress import Teller, watching
from ablations.study import Study, StudyRun
from ablations.worker import EXECUTE, Order
from repro.runs.execute import AfterDeath
from repro.runs.owned import OWNER, owned_directory
from repro.runs.processes import Process

if TYPE_CHECKING:
    from ablations.storage.home import Home

_PREFIX = ".sweep-"
_WAIT_SECONDS = 2.0
_ONCE_MORE = "; once more to end at once"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a sweep came to."""

    looks: tuple[Look, ...]
    """The runs that were asked for, as they stand now."""
    interrupted: bool
    """Whether the user ended it."""

    @property
    def unfinished(self) -> list[Look]:
        """Runs without an outcome: failed, stopped or never begun."""
        return [found for found in self.looks if not found.finished]


class Stop:
    """The wish to end a sweep in order: a file that its workers see, wherever they are."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "stop"
        self.asked = threading.Event()

    def ask(self) -> None:
        """Let the runs save and stop."""
        self.asked.set()
        self.path.touch()


def sweep(
    study: Study,
    asked: Sequence[StudyRun],
    resources: Resources,
    teller: Teller,
    *,
    wants_gpu: bool = False,
    after_death: AfterDeath = "resume",
    execute: str = EXECUTE,
    carry: Carry = Cluster.run,
    by: Mapping[str, str] | None = None,
) -> Outcome:
    """Carry out what is missing of `asked`, each run once (and retried), and wait for runs that others work on.

    Run directories are the truth: what to do is read from them before and what came of it afterwards. Where nothing is
    missing Ray is not even imported. SIGINT and SIGTERM let all runs save and stop; a second one ends at once.
    `by`: the job that the sweep is in, kept with the claims. A job's signals, SIGUSR1 among them, only let runs save
    and stop, however often they come.
    """
    runs = each_once(asked)
    tried: set[Path] = set()
    with ExitStack() as stack:
        folder = stack.enter_context(_folder(study.path))
        stop = stack.enter_context(_stoppable(folder, teller, patient=by is not None))
        shared = _shared(folder, runs) if resources.address and resources.storage is None else None
        place = None
        if resources.storage is not None:
            home = stack.enter_context(_home(resources.storage, resources.weights, study, runs, folder, stop))
            shared, place, carry = home.shared(), home.place(), home.fetching(carry)
        order = Order(
            run="",
            stop=str(stop.path),
            driver=Process.current().document(),
            sweep=folder.name,
            after_death=after_death,
            shared=asdict(shared) if shared is not None else None,
            gpu_share=min(1.0, resources.gpus_per_run or 1.0),
            execute=execute,
            storage=place,
            by=dict(by or {}),
        )
        cluster: Cluster | None = None
        while not stop.asked.is_set():
            looks = [look(run) for run in runs]
            held = [found for found in looks if found.status.state == "running"]
            todo = [
                found for found in looks if not found.finished and found not in held and found.run.path not in tried
            ]
            if todo:
                if cluster is None:
                    ray = f"joining the Ray at {resources.address}" if resources.address else "starting Ray"
                    teller.say(f"{ray} for {len(todo)} of {len(runs)} runs")
                    cluster = stack.enter_context(
                        Cluster(resources, wants_gpu=wants_gpu, scratch=folder, shared=shared, say=teller.say)
                    )
                    if wants_gpu and not cluster.gpus_per_run:
                        teller.say("no GPU here: runs of this scale will take very long")
                    stack.enter_context(watching(runs, teller))
                tried |= _carry_out(todo, cluster, order, carry, teller)
            elif held:
                teller.say_once(f"waiting for {len(held)} runs that another process works on")
                stop.asked.wait(_WAIT_SECONDS)
            else:
                break
    return Outcome(looks=tuple(look(run) for run in asked), interrupted=stop.asked.is_set())


def each_once(asked: Sequence[StudyRun]) -> list[StudyRun]:
    """The runs of `asked`, one a directory: of several that come to one, that whose name it bears if it is there."""
    found: dict[Path, StudyRun] = {}
    for run in asked:
        if run.path not in found or run.same_as is None:
            found[run.path] = run
    return list(found.values())


def _carry_out(todo: Sequence[Look], cluster: Cluster, order: Order, carry: Carry, teller: Teller) -> set[Path]:
    """Let the cluster do the runs; the paths of those that need no more tries here.

    A run whose processes died, as often as Ray tries, is tried on as long as it gets on: machines may be taken away
    many times in the days that a run takes.
    """
    reasons = carry(
        cluster, [replace(order, run=str(before.run.path.absolute()), processes=cluster.processes) for before in todo]
    )
    tried = set()
    for before in todo:
        run, found = before.run, look(before.run)
        if found.status.state == "running":
            continue  # somebody else was quicker: it is theirs, and waited for
        if found.status.state == "stopped" and found.status.step > before.status.step:
            continue
        tried.add(run.path)
        reason = reasons.get(str(run.path.absolute()))
        if reason and not found.finished and not found.status.reason:
            teller.say(f"{run.variant} seed {run.seed}: {reason}")
    return tried


def _shared(folder: Path, runs: Sequence[StudyRun]) -> Shared:
    """What every node of a cluster must find as it is here: this sweep's own file, and the prepared data."""
    from repro.data.prepared import MANIFEST

    data = {run.directory.data_directory() / MANIFEST for run in runs}
    return Shared.here(folder, [folder / OWNER, *sorted(data)])


def _home(url: str, weights: bool, study: Study, runs: Sequence[StudyRun], folder: Path, stop: Stop) -> Home:
    from ablations.storage.home import Home

    return Home(url, study, runs, sweep=folder.name, asked=stop.asked.is_set, stop=stop.ask, weights=weights)


@contextmanager
def _folder(study: Path) -> Iterator[Path]:
    """The directory of this sweep, in which its workers find its wishes and Ray keeps its notes, until left."""
    folder = owned_directory(study.absolute(), _PREFIX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _stoppable(folder: Path, teller: Teller, *, patient: bool) -> Iterator[Stop]:
    """While inside, the first SIGINT or SIGTERM asks the runs to stop and the second raises KeyboardInterrupt.

    `patient`: SIGUSR1 asks, too, and nothing raises.
    """
    stop = Stop(folder)

    def handle(number: int, _: FrameType | None) -> None:
        if stop.asked.is_set():
            if patient:
                return
            raise KeyboardInterrupt
        stop.ask()
        teller.say(f"{signal.Signals(number).name}: runs save and stop" + ("" if patient else _ONCE_MORE))

    heeded = (signal.SIGINT, signal.SIGTERM, *((signal.SIGUSR1,) if patient else ()))
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
