"""result.json: what came of a run. Everything in it but the seconds and speeds is the same on every execution."""

from __future__ import annotations

from typing import Any

from repro.config import RunConfig
from repro.config.paper import differs_from_paper
from repro.data.prepare import Prepared
from repro.models.seq2seq import count_parameters
from repro.training.checkpoint import Saved
from repro.training.trainer import Trainer

TIMES = frozenset({"train_seconds", "seconds", "target_tokens_per_second", "checkpoint"})
"""The keys of result.json that hold times or speeds: all that may differ between two executions of a run."""


def result_document(
    config: RunConfig,
    prepared: Prepared,
    trainer: Trainer,
    *,
    epochs: float,
    saved: Saved | None,
    device: str,
    valid: dict[str, Any],
    test: dict[str, Any],
) -> dict[str, Any]:
    """The result of a finished run; keys as documented in the project's design, seconds without start-up.

    `epochs`: how often the training text was gone through, the last time perhaps in part. `saved`: the last checkpoint.
    """
    counters, train = trainer.counters, config.train
    return {
        "variant": config.variant,
        "table": config.table,
        "scale": config.scale,
        "seed": config.seed,
        "run_id": config.run_id(),
        "hash": config.hash(),
        "corpus": config.data.corpus,
        "parameters": count_parameters(trainer.model),
        "steps": counters.step,
        "skipped_steps": counters.skipped,
        "epochs": epochs,
        "budget": {"unit": train.budget_unit, "amount": train.budget},
        "source_tokens": counters.source_tokens,
        "target_tokens": counters.target_tokens,
        "padding_share": counters.padding_share,
        "train_flops": counters.flops,
        "padded_flops": counters.padded_flops,
        "flops": {
            "source": counters.flops_source,
            "target": counters.flops_target,
            "attention": counters.flops_attention,
            "softmax": counters.flops_softmax,
        },
        "train_seconds": counters.train_seconds,
        "seconds": {
            "train": counters.seconds.train,
            "data": counters.seconds.data,
            "evaluate": counters.seconds.evaluate,
            "decode": counters.seconds.decode,
            "checkpoint": counters.seconds.checkpoint,
        },
        "target_tokens_per_second": counters.target_tokens_per_second,
        "checkpoint": None if saved is None else {"bytes": saved.size, "seconds": saved.seconds},
        "valid": valid,
        "test": test,
        "digests": {"corpus": prepared.digest, "vocabulary": prepared.vocabulary_sha256},
        "differs_from_paper": differs_from_paper(config),
        "threads": train.threads,
        "processes": trainer.processes,
        "micro_batch_tokens": trainer.micro_batch_tokens,
        "device": device,
        "precision": trainer.precision,
    }
