"""The work of one attempt: resume, train, evaluate, save, score, and write the result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from repro.config import DecodeConfig, RunConfig
from repro.data.batches import Sampler, collate
from repro.data.pieces import Batch
from repro.data.prepare import Prepared
from repro.decoding.scores import PROTOCOLS, Protocol
from repro.runs.attempts import Attempt
from repro.runs.directory import MetricLine, RunDirectory, Split, Status
from repro.runs.environment import environment
from repro.runs.events import Interrupted, Observer, Progress, Superseded
from repro.runs.outcome import result_document
from repro.training import checkpoint
from repro.training.counters import Counters
from repro.training.device import choose_device, device_name
from repro.training.evaluation import Evaluation, evaluate, greedy
from repro.training.snapshots import Snapshots
from repro.training.trainer import Trainer, Update
from repro.training.window import Window

_STATUS_SECONDS = 2.0
_SAVING_SHARE = 0.02
"""Largest share of the training time that goes into checkpoints."""


class Session:
    """One attempt at one run. `carry_out` returns when the run is done and raises why when it is not."""

    def __init__(
        self,
        run: RunDirectory,
        attempt: Attempt,
        observer: Observer,
        stop: Callable[[], bool],
        data_directory: Path | None,
    ) -> None:
        self._run, self._attempt, self._observer, self._stop = run, attempt, observer, stop
        self._config: RunConfig = run.current_config()
        torch.set_num_threads(self._config.train.threads)
        self._device = choose_device()
        self._prepared = Prepared.load_same(data_directory or run.data_directory(), self._config.data.digest)
        self._trainer = Trainer(self._config, self._prepared.vocabulary().size, self._device)
        self._window = Window()
        encoded = self._prepared.encoded("train")
        self._sampler = Sampler(
            encoded.src_lengths + 1,
            encoded.tgt_lengths + 1,
            batch_tokens=self._config.train.batch_tokens,
            scale=self._config.scale,
            seed=self._config.seed,
            lines=encoded.lines,
        )
        train = self._config.train
        self._snapshots = Snapshots(run.checkpoints, train.average_checkpoints, train.average_select)
        self._saved_at = 0.0
        self._saving_seconds = 0.0
        self._status_at = 0.0

    def carry_out(self) -> None:
        """Train to the end of the budget, then score and write the result."""
        train = self._config.train
        self._run.write_environment(
            environment()
            | {"device": device_name(self._device), "threads": train.threads, "attempt": self._attempt.number}
        )
        self._resume()
        self._tell_status()
        batches = self._batches()
        while self._counters.progress(train) < 1.0:
            update = self._trainer.update(next(batches))
            self._after(update)
            if self._stop():
                self._save()
                self._tell_status()
                raise Interrupted(f"asked to stop, saved at step {self._counters.step}")
            if self._checkpoint_due():
                self._save()
            if time.monotonic() - self._status_at > _STATUS_SECONDS:
                self._tell_status()
        self._save()
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
        self._window = Window.read(newest.state["window"])
        self._run.drop_metrics_after(newest.step)
        self._saved_at = self._counters.seconds.train
        self._note(f"goes on from step {newest.step}")

    def _save(self) -> None:
        self._check_mine()
        self._run.sync()
        started = time.perf_counter()
        checkpoint.save(
            self._run.checkpoints,
            self._counters.step,
            self._trainer.weights(),
            self._trainer.optimizer_tensors(),
            {"counters": self._counters.document(), "window": self._window.document()},
        )
        self._saving_seconds = time.perf_counter() - started
        self._counters.seconds.checkpoint += self._saving_seconds
        self._saved_at = self._counters.seconds.train

    def _checkpoint_due(self) -> bool:
        wait = max(self._config.train.checkpoint_seconds, self._saving_seconds / _SAVING_SHARE)
        return self._counters.seconds.train - self._saved_at >= wait

    def _check_mine(self) -> None:
        if not self._attempt.still_mine():
            raise Superseded

    # One step.

    def _batches(self) -> Iterator[Batch]:
        """Batches from where the counters stand, for ever."""
        encoded = self._prepared.encoded("train")
        started = time.perf_counter()
        for epoch, index, pairs in self._sampler.batches_from(self._counters.epoch, self._counters.next_batch):
            batch: Batch = collate(encoded, pairs)
            self._counters.epoch, self._counters.next_batch = epoch, index + 1
            self._counters.seconds.data += time.perf_counter() - started
            yield batch
            started = time.perf_counter()

    def _after(self, update: Update) -> None:
        """Log and evaluate where the step calls for it."""
        if not update.applied:
            self._note(f"skipped an update: loss {update.loss}, gradient norm {update.gradient_norm}")
            return
        self._window.add(update)
        step, train = self._counters.step, self._config.train
        ended = self._counters.progress(train) >= 1.0
        if step % train.log_every == 0 or ended:
            self._log_training(update)
        if step % train.evaluate_every == 0 or ended:
            self._evaluate()

    def _log_training(self, update: Update) -> None:
        counters = self._counters
        loss, nll = self._window.take()
        self._log(
            {
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
        self._snapshots.add(self._counters.step, scores["perplexity"], self._trainer.weights())
        names = ("perplexity", "bleu", "chrf")
        self._log({f"valid/{name}": scores[name] for name in names if scores.get(name) is not None})
        told = f"valid perplexity {scores['perplexity']:.2f}"
        self._note(told + (f", BLEU {scores['bleu']:.1f}" if decode is not None else ""))

    def _score(
        self, split: Split, decode: DecodeConfig | None, protocols: Sequence[Protocol] = PROTOCOLS
    ) -> Evaluation:
        return evaluate(
            self._trainer.model,
            self._prepared,
            split,
            self._config,
            decode,
            device=self._device,
            seconds=self._counters.seconds,
            protocols=protocols,
        )

    # The end.

    def _finish(self) -> None:
        averaged = self._snapshots.average()
        if averaged is not None:
            self._trainer.load_weights(averaged)
        valid = self._score("valid", self._config.decode)
        self._tell_status()
        test = self._score("test", self._config.decode)
        self._check_mine()
        checkpoint.save_weights(self._run.checkpoints / "final.safetensors", self._trainer.weights())
        self._run.write_hypotheses("valid", valid.hypotheses)
        self._run.write_hypotheses("test", test.hypotheses)
        self._run.write_result(
            result_document(
                self._config,
                self._prepared,
                self._trainer,
                epochs=self._epochs(),
                device=device_name(self._device),
                valid=valid.scores,
                test=test.scores,
            )
        )
        self._tell_status()
        self._note(f"done: test BLEU {test.scores['bleu']:.1f}")

    def _epochs(self) -> float:
        """How often the training text was gone through."""
        counters = self._counters
        return counters.epoch + counters.next_batch / len(self._sampler.epoch(counters.epoch))

    # Telling.

    def _log(self, metrics: dict[str, float]) -> None:
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

    def _tell_status(self) -> None:
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
            )
        )
