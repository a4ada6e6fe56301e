"""A sweep: what is missing of a study, planned from disk, carried out by Ray, and looked up on disk again."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ablations.cluster import Cluster, Resources
from ablations.progress import Teller, watching
from ablations.status import Look, look
from ablations.study import Study, StudyRun
from ablations.worker import EXECUTE, Order
from repro.runs.processes import Process

_WAIT_SECONDS = 2.0


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

    def __init__(self, study: Path) -> None:
        self.path = study / f".stop-{uuid.uuid4().hex[:12]}"
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
    execute: str = EXECUTE,
) -> Outcome:
    """Carry out what is missing of `asked`, each run once (and retried), and wait for runs that others work on.

    Run directories are the truth: what to do is read from them before and what came of it afterwards. Where nothing is
    missing Ray is not even imported. SIGINT and SIGTERM let all runs save and stop; a second one ends at once.
    """
    runs = list({run.path: run for run in asked}.values())
    tried: set[Path] = set()
    with ExitStack() as stack:
        stop = stack.enter_context(_stoppable(study.path, teller))
        cluster: Cluster | None = None
        while not stop.asked.is_set():
            looks = [look(run) for run in runs]
            held = [found for found in looks if found.status.state == "running"]
            todo = [
                found.run for found in looks if not found.finished and found not in held and found.run.path not in tried
            ]
            if todo:
                if cluster is None:
                    ray = f"joining the Ray at {resources.address}" if resources.address else "starting Ray"
                    teller.say(f"{ray} for {len(todo)} of {len(runs)} runs")
                    cluster = stack.enter_context(Cluster(resources, wants_gpu=wants_gpu, scratch=study.path))
                    if wants_gpu and not cluster.gpus_per_run:
                        teller.say("no GPU here: runs of this scale will take very long")
                    stack.enter_context(watching(runs, teller))
                tried |= _carry_out(todo, cluster, stop, execute, teller)
            elif held:
                teller.say_once(f"waiting for {len(held)} runs that another process works on")
                stop.asked.wait(_WAIT_SECONDS)
            else:
                break
    return Outcome(looks=tuple(look(run) for run in asked), interrupted=stop.asked.is_set())


def _carry_out(todo: list[StudyRun], cluster: Cluster, stop: Stop, execute: str, teller: Teller) -> set[Path]:
    """Let the cluster do the runs; the paths of those that had their tries here."""
    driver = Process.current().document()
    orders = [
        Order(run=str(run.path.absolute()), stop=str(stop.path.absolute()), driver=driver, execute=execute)
        for run in todo
    ]
    reasons = cluster.run(orders)
    tried = set()
    for run in todo:
        found = look(run)
        if found.status.state == "running":
            continue  # somebody else was quicker: it is theirs, and waited for
        tried.add(run.path)
        reason = reasons.get(str(run.path.absolute()))
        if reason and not found.finished and not found.status.reason:
            teller.say(f"{run.variant} seed {run.seed}: {reason}")
    return tried


@contextmanager
def _stoppable(study: Path, teller: Teller) -> Iterator[Stop]:
    """While inside, the first SIGINT or SIGTERM asks the runs to stop and the second raises KeyboardInterrupt."""
    stop = Stop(study)

    def handle(number: int, _: FrameType | None) -> None:
        if stop.asked.is_set():
            raise KeyboardInterrupt
        stop.ask()
        teller.say(f"{signal.Signals(number).name}: runs save and stop; once more to end at once")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stop.path.unlink(missing_ok=True)
