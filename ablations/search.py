"""A search: samples of a space, run by Ray Tune under ASHA, each of them an ordinary run directory.

ASHA (asynchronous successive halving; Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning") stops
samples early whose validation score is not among the best of those that came to the same rung. Its memory is on disk:
every sample's scores are in its metrics, so a search that is gone on with tells them to a new scheduler first. What it
decides is written beside the sample before the sample is stopped.
"""

from __future__ import annotations

import contextvars
import dataclasses
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.cluster import Carry, Cluster
from ablations.looks import STOPPED_BY_ASHA, look
from ablations.selection import Selection
from ablations.study import Study
from ablations.worker import Order, load, work
from repro.files import read_json, write_json
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status
from repro.runs.events import Progress

VERDICT = "asha.json"
"""In a sample's directory: at which step ASHA stopped it, and at what score."""

_POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The objective of a sample at one evaluation."""

    step: int
    value: float


def scores(run: RunDirectory, objective: str) -> list[Score]:
    """The objective of `run` at each of its evaluations, by rising step."""
    found = {line.step: line.metrics[objective] for line in run.metrics() if objective in line.metrics}
    return [Score(step=step, value=value) for step, value in sorted(found.items())]


# The driver's side.


def carrier(selection: Selection) -> Carry:
    """How a sweep lets Ray do the samples of a search: under ASHA, after those that are settled."""
    assert selection.search is not None, "a search"
    rules, budget = selection.search, round(selection.base.train.budget)
    objective = str(rules["objective"])

    def carry(cluster: Cluster, orders: Sequence[Order]) -> dict[str, str]:
        study = Study.load(Path(orders[0].run).parents[1])
        settled = [
            dataclasses.replace(orders[0], run=str(run.path.absolute())) for run in study.runs if look(run).finished
        ]
        scheduler = _asha(
            mode="max" if objective == "valid/bleu" else "min",
            grace=int(rules["grace"]),
            reduction=int(rules["reduction"]),
            budget=budget,
        )
        # Settled ones first: ASHA then compares with all that was seen before.
        return cluster.run([*settled, *orders], trainable=_trainable(objective), scheduler=scheduler)

    return carry


def _asha(*, mode: str, grace: int, reduction: int, budget: int) -> Any:
    """Ray's scheduler, which writes down whom it stops before it does."""
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler

    class Asha(ASHAScheduler):  # type: ignore[misc]
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = str(super().on_trial_result(tune_controller, trial, result))
            if decision == TrialScheduler.STOP and not result["settled"]:
                verdict = {"step": result["step"], "score": result["score"]}
                write_json(Path(trial.config["order"]["run"]) / VERDICT, verdict)
            return decision

    return Asha(
        time_attr="step", metric="score", mode=mode, grace_period=grace, reduction_factor=reduction, max_t=budget
    )


def _trainable(objective: str) -> Any:
    """The class whose instances, one a worker, do one sample after the other for Tune."""
    from ray import tune

    class Worker(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.sample = Sample(Order(**config["order"]), objective)

        def step(self) -> dict[str, Any]:
            return self.sample.next()

        def cleanup(self) -> None:
            self.sample.end()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.sample.end()
            self.sample = Sample(Order(**new_config["order"]), objective)
            return True

    return Worker


# The worker's side.


class Sample:
    """One sample in a worker: its scores one after the other, those of earlier attempts first.

    The run itself is done in a thread, which waits after every score for what becomes of it.
    """

    def __init__(self, order: Order, objective: str) -> None:
        self.execute = order.execute
        self._order, self._objective = order, objective
        self._run = RunDirectory(Path(order.run))
        self._settled = _is_settled(self._run)
        budget = self._run.config().train.budget
        self._known = deque(score for score in scores(self._run, objective) if score.step < budget)
        self._last: Score | None = None
        self._told: queue.Queue[Score | BaseException | None] = queue.Queue()
        self._go, self._ended = threading.Semaphore(0), threading.Event()
        self._thread: threading.Thread | None = None
        self.why = ""
        """Why the run is to stop; empty as long as it is not."""

    def next(self) -> dict[str, Any]:
        """The next score, as a result for Tune; "done" once there is no further one. Raises what the run raised."""
        if self._known:
            return self._result(self._known.popleft())
        if self._settled or self._is_condemned():
            return self._result(None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._do, name="sample", daemon=True)
            self._thread.start()
        else:
            self._go.release()
        told = self._told.get()
        if isinstance(told, BaseException):
            self._thread.join()
            raise told
        return self._result(told)

    def end(self) -> None:
        """Let the run stop, if it runs, and write down why where it was ASHA's will."""
        self._ended.set()  # a run that is not waiting for a decision meets it at its next evaluation
        if self._thread is not None:
            self._thread.join()
        self._write_verdict()

    def _result(self, score: Score | None) -> dict[str, Any]:
        done = score is None
        if score is None:
            score = max(scores(self._run, self._objective), key=lambda each: each.step, default=None)
        self._last = score or Score(step=0, value=0.0)
        return {"step": self._last.step, "score": self._last.value, "done": done, "settled": self._settled or done}

    def _is_condemned(self) -> bool:
        return (self._run.path / VERDICT).exists()

    def _write_verdict(self) -> None:
        """End a sample that ASHA stopped on the strength of scores that an earlier attempt had left."""
        if self._is_condemned() and not _is_settled(self._run):
            attempt = attempts.claim(self._run)
            if attempt is not None:
                attempt.end("stopped", self._verdict())

    # In the run's thread.

    def _do(self) -> None:
        _SAMPLE.set(self)
        try:
            work(dataclasses.replace(self._order, execute=f"{__name__}:{execute_sample.__name__}"))
        except BaseException as error:  # told to Tune by `next`, in its own thread
            self._told.put(error)
        else:
            self._told.put(None)

    def progress(self, event: Progress) -> None:
        """After an evaluation: tell the score and wait for what is decided. The last one is told with the end."""
        if not event.note or event.progress >= 1.0:
            return
        score = max(scores(self._run, self._objective), key=lambda each: each.step, default=None)
        if score is None or score.step != event.step or (self._last is not None and score.step <= self._last.step):
            return
        self._told.put(score)
        while not self._go.acquire(timeout=_POLL_SECONDS):
            if self._ended.is_set() or Path(self._order.stop).exists():
                self.why = self._verdict()
                return

    def _verdict(self) -> str:
        """Why the sample is to stop."""
        if self._is_condemned():
            found = read_json(self._run.path / VERDICT)
            return f"{STOPPED_BY_ASHA} at step {found['step']} ({self._objective} {found['score']:.2f})"
        return "asked to stop"


_SAMPLE: contextvars.ContextVar[Sample] = contextvars.ContextVar("sample")


def execute_sample(run: RunDirectory, *, stop: Callable[[], bool], **more: Any) -> Status:
    """Do the run of this thread's sample, watched and stopped by it."""
    sample = _SAMPLE.get()
    status: Status = load(sample.execute)(run, observer=sample, stop=lambda: sample.why or stop(), **more)
    return status


def _is_settled(run: RunDirectory) -> bool:
    status = run.status()
    return status.state in ("done", "diverged") or status.reason.startswith(STOPPED_BY_ASHA)
