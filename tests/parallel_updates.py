"""Run by test_parallel in several processes at once: updates of one model, and what each process came to.

`python parallel_updates.py RANK SIZE MEETING CORPUS OUT` writes OUT-<case>.safetensors and OUT.json.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_corpus import configuration
from torch import Tensor

from repro.data.batches import collate
from repro.data.pieces import Batch
from repro.data.prepared import Prepared
from repro.errors import CheckError
from repro.training.parallel import ALONE, Group
from repro.training.trainer import Trainer
from repro.training.weights import save_weights

PARTS = 100
"""Positions of a micro-batch; the batches have three or more of them."""


def trainer_of(corpus: Prepared, group: Group = ALONE, **train: Any) -> Trainer:
    return Trainer(configuration(corpus, **({"micro_batch_tokens": PARTS} | train)), 200, torch.device("cpu"), group)


def batches(corpus: Prepared) -> list[Batch]:
    """Three batches of uneven numbers of sentences."""
    encoded = corpus.encoded("train")
    order = np.argsort(encoded.tgt_lengths, kind="stable")
    return [collate(encoded, order[start : start + count]) for start, count in ((100, 23), (300, 31), (420, 17))]


def run_out_above(trainer: Trainer, positions: int, error: Exception) -> None:
    """Let the model run out of memory, as a device would, on more than so many padded source positions."""
    forward = trainer.model.forward

    def limited(src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        if src.numel() > positions:
            raise error
        return forward(src, src_mask, tgt_in)

    trainer.model.forward = limited  # type: ignore[method-assign]


def outcome(trainer: Trainer, updates: list[Any]) -> dict[str, Any]:
    counters = trainer.counters.document()
    del counters["seconds"]
    return {
        "updates": [dataclasses.asdict(update) for update in updates],
        "counters": counters,
        "micro_batch_tokens": trainer.micro_batch_tokens,
    }


def main() -> None:
    """All cases, one after the other."""
    rank, size, meeting, directory, out = sys.argv[1:]
    torch.set_num_threads(1)
    corpus, told = Prepared.load(Path(directory)), {}
    group = Group.meet(int(rank), int(size), Path(meeting))

    def case(name: str, trainer: Trainer, given: list[Batch]) -> None:
        told[name] = outcome(trainer, [trainer.update(batch) for batch in given])
        save_weights(Path(f"{out}-{name}.safetensors"), trainer.weights())

    case("parts", trainer_of(corpus, group), batches(corpus))
    once = trainer_of(corpus, group)
    once.update(batches(corpus)[0])
    save_weights(
        Path(f"{out}-gradient.safetensors"),
        {name: weight.grad for name, weight in once.model.named_parameters() if weight.grad is not None},
    )

    case("whole", trainer_of(corpus, group, micro_batch_tokens=None, batch_tokens=5000), batches(corpus))

    encoded = corpus.encoded("train")
    case("single", trainer_of(corpus, group), [collate(encoded, np.array([5]))])

    short = trainer_of(corpus, group)
    if group.rank == 1:  # one of the devices is smaller than the others
        run_out_above(short, 60, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    case("short", short, batches(corpus))

    poisoned = trainer_of(corpus, group)
    if group.rank == 1:
        forward = poisoned.model.forward
        poisoned.model.forward = lambda *given: forward(*given) * float("nan")  # type: ignore[method-assign]
    case("poisoned", poisoned, batches(corpus)[:2])

    full = trainer_of(corpus, group)
    if group.rank == 1:
        run_out_above(full, 0, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    try:
        full.update(batches(corpus)[0])
    except CheckError as error:
        told["full"] = str(error)

    later = trainer_of(corpus, group)
    if group.rank == 0:
        first = trainer_of(corpus)  # by itself, as before a resume with more processes
        first.update(batches(corpus)[0])
        later.restore(first.weights(), first.optimizer_tensors(), first.counters)
        later.micro_batch_tokens = 77
    later.share()
    case("resumed", later, batches(corpus)[1:])
    Path(f"{out}.json").write_text(json.dumps(told))
    group.close()


if __name__ == "__main__":
    main()
