"""What each process of a run has: its text, the order of its batches and a trainer; and the part of those that only
follow rank 0."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from repro.config import RunConfig
from repro.data.batches import Sampler, collate
from repro.data.pieces import Batch
from repro.data.prepare import Prepared
from repro.runs.directory import RunDirectory
from repro.training.device import choose_device
from repro.training.parallel import Group, LostError
from repro.training.trainer import DivergenceError, Trainer


class Training:
    """A run's text, batches and trainer. Every process of a run makes its own, and all are equal."""

    def __init__(self, run: RunDirectory, data_directory: Path | None, group: Group) -> None:
        self.config: RunConfig = run.current_config()
        torch.set_num_threads(self.config.train.threads)
        self.device = choose_device(group.local_rank)
        self.prepared = Prepared.load_same(data_directory or run.data_directory(), self.config.data.digest)
        self.trainer = Trainer(self.config, self.prepared.vocabulary().size, self.device, group)
        encoded = self.prepared.encoded("train")
        self._sampler = Sampler(
            encoded.src_lengths + 1,
            encoded.tgt_lengths + 1,
            batch_tokens=self.config.train.batch_tokens,
            scale=self.config.scale,
            seed=self.config.seed,
            lines=encoded.lines,
        )

    def batches(self) -> Iterator[Batch]:
        """Batches from where the trainer's counters stand, for ever. The counters follow."""
        encoded, counters = self.prepared.encoded("train"), self.trainer.counters
        started = time.perf_counter()
        for epoch, index, pairs in self._sampler.batches_from(counters.epoch, counters.next_batch):
            batch: Batch = collate(encoded, pairs)
            counters.epoch, counters.next_batch = epoch, index + 1
            counters.seconds.data += time.perf_counter() - started
            yield batch
            started = time.perf_counter()

    def epochs(self) -> float:
        """How often the training text was gone through."""
        counters = self.trainer.counters
        return counters.epoch + counters.next_batch / len(self._sampler.epoch(counters.epoch))


def follow(run: RunDirectory, data_directory: Path | None, group: Group) -> bool:
    """Compute this process's share of every batch until rank 0 says that it is enough; writes nothing.

    Returns whether that went well. When it did not, the reason is left to rank 0, or rank 0 itself is gone.
    """
    try:
        training = Training(run, data_directory, group)
        training.trainer.share()
        batches = training.batches()
        while group.decide(False):
            training.trainer.update(next(batches))
    except DivergenceError:
        return True  # rank 0 has seen the same
    except LostError:
        return False
    except Exception as error:
        group.tell_failure(f"{type(error).__name__}: {error}".splitlines()[0])
        traceback.print_exc()
        return False
    return True
