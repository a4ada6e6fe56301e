"""The work of one attempt: resume, train, evaluate, save, score, and write the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from repro.config import DecodeConfig
from repro.decoding import scores
from repro.decoding.scores import PROTOCOLS
from repro.runs.directory import MetricLine, RunDirectory, Split, Status
from repro.runs.environment import environment
from repro.runs.events import Interrupted, Observer, Progress, Superseded
from repro.runs.outcome import result_document
from repro.runs.training import Training
from repro.training import checkpoint
from repro.training.counters import Counters
from repro.training.device import device_name
from repro.training.evaluation import Evaluation, evaluate, greedy
from repro.training.parallel import ALONE, Group, LostError
from repro.training.snapshots import Snapshots
from repro.training.trainer import Update
from repro.training.window import Window

_STATUS_SECONDS = 2.0
_MOST_BEHIND = 50
"""Updates that a device may be behind with before they are waited for."""
_SAVING_SHARE = 0.02
"""Largest share of the training time that goes into checkpoints."""


class Right(Protocol):
    """The right to work on a run, as an `Attempt` gives it."""

    number: int

    def still_mine(self) -> bool:
        """Whether nobody else took the run over."""


class Session:
    """One attempt at one run. `carry_out` returns when the run is done and raises why when it is not.

    Where several processes do the run, this is the part of rank 0, which alone writes; the others `follow`.
    """

    def __init__(
        self,
        run: RunDirectory,
        attempt: Right,
        observer: Observer,
        stop: Callable[[], bool | str],
        data_directory: Path | None,
        group: Group = ALONE,
    ) -> None:
        self._run, self._attempt, self._observer, self._stop = run, attempt, observer, stop
        self._group, self._training = group, Training(run, data_directory, group)
        self._config, self._device = self._training.config, self._training.device
        self._prepared, self._trainer = self._training.prepared, self._training.trainer
        self._window = Window()
        train = self._config.train
        self._snapshots = Snapshots(run.checkpoints, train.average_checkpoints, train.average_select)
        self._saved_at = 0.0
        self._saved: checkpoint.Saved | None = None
        self._status_at = 0.0

    def carry_out(self) -> None:
        """Train to the end of the budget, then score and write the result."""
        train = self._config.train
        self._run.write_environment(
            environment()
            | {"device": device_name(self._device), "threads": train.threads, "attempt": self._attempt.number}
            | {"processes": self._group.size}
        )
        self._resume()
        self._trainer.share()
        self._tell_status()
        if way := self._trainer.way:
            self._note(way)
        batches = self._training.batches()
        while self._group.decide(self._counters.progress(train) < 1.0):
            micro_batch_tokens = self._trainer.micro_batch_tokens
            self._trainer.launch(next(batches))
            if self._trainer.micro_batch_tokens != micro_batch_tokens:
                self._tell_smaller()
            if self._settles():
                self._settle()
            if why := self._stop():
                self._settle()
                self._save()
                self._tell_status()
                self._group.decide(False)
                told = why if isinstance(why, str) else "asked to stop"
                raise Interrupted(f"{told}, saved at step {self._counters.step}")
            if self._checkpoint_due():
                self._settle()
                self._save()
            if time.monotonic() - self._status_at > _STATUS_SECONDS:
                self._settle()
                self._tell_status()
        self._save()
        if (now := self._trainer.way) != way:
            self._note(now)
        self._finish()

    @property
    def _counters(self) -> Counters:
        return self._trainer.counters

    # Going on from a checkpoint.

    def _resume(self) -> None:
        warnings: list[str] = []
        newest = checkpoint.load_newest(self._run.checkpoints, warnings)
        for warning in warnings:
            self._note(warning)
        if newest is None:
            self._run.drop_metrics_after(-1)
            return
        self._trainer.restore(newest.weights, newest.optimizer, Counters.read(newest.state["counters"]))
        # A checkpoint without it is of a version that ended a run when memory ran out.
        self._trainer.micro_batch_tokens = newest.state.get("micro_batch_tokens", self._trainer.micro_batch_tokens)
        self._window = Window.read(newest.state["window"])
        self._run.drop_metrics_after(newest.step)
        self._saved_at = self._counters.seconds.train
        before, now = newest.state.get("processes", 1), self._group.size
        others = f" with {now} processes, not {before}: equal up to rounding" if now != before else ""
        self._note(f"goes on from step {newest.step}{others}")

    def _save(self) -> None:
        self._check_mine()
        self._run.sync()
        started = time.perf_counter()
        self._saved = checkpoint.save(
            self._run.checkpoints,
            self._counters.step,
            self._trainer.weights(),
            self._trainer.optimizer_tensors(),
            {
                "counters": self._counters.document(),
                "window": self._window.document(),
                "micro_batch_tokens": self._trainer.micro_batch_tokens,
                "processes": self._group.size,
            },
            confirm=self._check_mine,
        )
        self._counters.seconds.checkpoint += time.perf_counter() - started
        self._saved_at = self._counters.seconds.train

    def _checkpoint_due(self) -> bool:
        saving = self._saved.seconds if self._saved is not None else 0.0
        wait = max(self._config.train.checkpoint_seconds, saving / _SAVING_SHARE)
        return self._counters.seconds.train - self._saved_at >= wait

    def _check_mine(self) -> None:
        """Raise Superseded once a newer owner is at work, whose files are not to be touched."""
        if not self._attempt.still_mine():
            raise Superseded

    # One step.

    def _settles(self) -> bool:
        """Whether the updates launched so far must be over: always on a CPU, where they are, elsewhere before the step
        is used. Updates that turn out to be skipped lower it, so no step that matters is passed by.
        """
        step, train = self._counters.step, self._config.train
        if self._trainer.behind in (0, _MOST_BEHIND):
            return True
        return step % train.log_every == 0 or step % train.evaluate_every == 0 or self._counters.progress(train) >= 1.0

    def _settle(self) -> None:
        """Log and evaluate where the step calls for it, once the updates launched are over."""
        update = None
        for update in self._trainer.settle():
            if update.applied:
                self._window.add(update)
            else:
                self._note(f"skipped an update: loss {update.loss}, gradient norm {update.gradient_norm}")
        if update is None or not update.applied:
            return
        step, train = self._counters.step, self._config.train
        ended = self._counters.progress(train) >= 1.0
        if step % train.log_every == 0 or ended:
            self._log_training(update)
        if step % train.evaluate_every == 0 or ended:
            self._evaluate()

    def _log_training(self, update: Update) -> None:
        counters = self._counters
        loss, nll = self._window.take()
        smaller = {"train/micro_batch_tokens": self._trainer.micro_batch_tokens} if self._trainer.cut_smaller else {}
        self._log(
            smaller
            | {
                "train/loss": loss,
                "train/perplexity": math.exp(min(nll, 700.0)),
                "train/learning_rate": update.learning_rate,
                "train/gradient_norm": update.gradient_norm,
                "train/source_tokens": counters.source_tokens,
                "train/target_tokens": counters.target_tokens,
                "train/flops": counters.flops,
                "train/padding_share": counters.padding_share,
                "train/skipped_steps": counters.skipped,
                "train/target_tokens_per_second": counters.target_tokens_per_second,
                "time/train_seconds": counters.train_seconds,
            }
        )
        self._observer.progress(self._progress(loss=loss, learning_rate=update.learning_rate))

    def _evaluate(self) -> None:
        """Scores on the validation side, as the learning curve shows them."""
        decode = {
            "greedy": greedy(self._config.decode),
            "beam": self._config.decode,
            "none": None,
        }[self._config.train.valid_decode]
        scores = self._score("valid", decode, protocols=("13a",)).scores
        self._check_mine()
        self._snapshots.add(self._counters.step, scores["perplexity"], self._trainer.weights())
        names = ("perplexity", "bleu", "chrf")
        self._log({f"valid/{name}": scores[name] for name in names if scores.get(name) is not None})
        told = f"valid perplexity {scores['perplexity']:.2f}"
        self._note(told + (f", BLEU {scores['bleu']:.1f}" if decode is not None else ""))

    def _score(
        self, split: Split, decode: DecodeConfig | None, protocols: Sequence[scores.Protocol] = PROTOCOLS
    ) -> Evaluation:
        found = evaluate(
            self._trainer.model,
            self._prepared,
            split,
            self._config,
            decode,
            device=self._device,
            seconds=self._counters.seconds,
            protocols=protocols,
        )
        for note in found.notes:
            self._note(note)
        return found

    # The end.

    def _finish(self) -> None:
        averaged = self._snapshots.average()
        if averaged is not None:
            self._trainer.load_weights(averaged)
        valid = self._score("valid", self._config.decode)
        self._tell_status()
        test = self._score("test", self._config.decode)
        self._check_mine()
        checkpoint.save_weights(self._run.weights, self._trainer.weights())
        self._run.write_hypotheses("valid", valid.hypotheses)
        self._run.write_hypotheses("test", test.hypotheses)
        self._run.write_result(
            result_document(
                self._config,
                self._prepared,
                self._trainer,
                epochs=self._training.epochs(),
                saved=self._saved,
                device=device_name(self._device),
                valid=valid.scores,
                test=test.scores,
            )
        )
        self._tell_status()
        self._note(f"done: test BLEU {test.scores['bleu']:.1f}")

    # Telling.

    def _log(self, metrics: dict[str, float]) -> None:
        self._check_mine()
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._run.append_metrics(MetricLine(step=self._counters.step, time=time.time(), metrics=finite))

    def _progress(self, *, loss: float = math.nan, learning_rate: float = math.nan, note: str = "") -> Progress:
        counters = self._counters
        return Progress(
            step=counters.step,
            progress=min(1.0, counters.progress(self._config.train)),
            loss=loss,
            learning_rate=learning_rate,
            target_tokens_per_second=counters.target_tokens_per_second,
            note=note,
        )

    def _note(self, note: str) -> None:
        self._observer.progress(self._progress(note=note))

    def _tell_smaller(self) -> None:
        batch, micro = self._config.train.batch_tokens, self._trainer.micro_batch_tokens
        self._note(f"out of memory: batches of {batch} positions are now computed in parts of {micro}")
        self._tell_status()

    def _tell_status(self) -> None:
        self._check_mine()
        counters = self._counters
        self._status_at = time.monotonic()
        self._run.write_status(
            Status(
                state="running",
                attempt=self._attempt.number,
                step=counters.step,
                progress=min(1.0, counters.progress(self._config.train)),
                train_seconds=counters.train_seconds,
                target_tokens_per_second=counters.target_tokens_per_second,
                micro_batch_tokens=self._trainer.micro_batch_tokens,
                checkpoint_bytes=self._saved.size if self._saved is not None else 0,
                checkpoint_seconds=self._saved.seconds if self._saved is not None else 0.0,
            )
        )


def lead(
    run: RunDirectory,
    attempt: Right,
    observer: Observer,
    stop: Callable[[], bool | str],
    data_directory: Path | None,
    group: Group,
) -> None:
    """Carry out the session of rank 0 of `group`. Raises LostError, with its reason, when another process is gone."""
    try:
        Session(run, attempt, observer, stop, data_directory, group).carry_out()
    except LostError as error:
        cause = group.failure()
        if not cause:
            raise
        raise LostError(f"another process of the run failed, {cause}") from error
