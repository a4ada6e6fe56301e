"""A run with a longer budget begins where the same run with a shorter one ended: no update is made twice.

The learning rate, the batches and the dropout masks of an update follow from its step, never from the budget. So up to
the end of the shorter budget the two runs are the same bits, but for one thing: at its very end a run logs and
evaluates whatever the step. Where that step is no multiple of `log_every` and `evaluate_every`, the checkpoint before
is taken instead.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from repro.config import RunConfig
from repro.config.differences import changes
from repro.errors import CheckError
from repro.files import read_json, write_bytes, write_json
from repro.runs.directory import RunDirectory
from repro.training.counters import Counters

BUDGET = "train.budget"


def same_but_budget(shorter: RunConfig, longer: RunConfig) -> bool:
    """Whether the two configurations differ in the budget's amount and in nothing else."""
    return changes(shorter, longer).keys() == {BUDGET}


def inherit(run: RunDirectory) -> int | None:
    """Copy into `run`, which has no checkpoint yet, the newest usable one of the run that it continues.

    With it come the metrics up to that step and the weights kept for averaging. The checkpoint is put into place last,
    so a copy that was cut short is made again. For the owner of the newest attempt only. Returns the step; None where
    there is nothing to take: `run` then begins at its first step.
    """
    from repro.training import checkpoint

    place = run.continues()
    if place is None or next(checkpoint.whole(run.checkpoints), None) is not None:
        return None
    source, config = RunDirectory(place), run.current_config()
    try:
        theirs = source.current_config()
    except CheckError:
        return None  # it was removed, or made by another version
    if not same_but_budget(theirs, config):
        return None
    for step, path in checkpoint.whole(source.checkpoints):
        counters = Counters.read(read_json(path / checkpoint.STATE)["counters"])
        if counters.progress(config.train) < 1.0 and _is_on_the_way(step, counters, theirs, config):
            _copy_metrics(source, run, step)
            _copy_snapshots(source.checkpoints, run.checkpoints, step)
            checkpoint.adopt(path, run.checkpoints)
            return step
    return None


def _is_on_the_way(step: int, counters: Counters, theirs: RunConfig, ours: RunConfig) -> bool:
    """Whether the longer run passes through the very state of the shorter one's checkpoint at `step`."""
    train = ours.train
    if counters.progress(theirs.train) >= 1.0:
        return step % train.log_every == 0 and step % train.evaluate_every == 0
    # Of the best weights, the evaluation at the shorter run's end may have pushed out some that we would keep.
    return not (train.average_checkpoints and train.average_select == "best")


def _copy_metrics(source: RunDirectory, run: RunDirectory, step: int) -> None:
    lines = [line for line in source.metrics() if line.step <= step]
    documents: list[dict[str, Any]] = [
        {"step": line.step, "time": line.time, "metrics": line.metrics} for line in lines
    ]
    text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
    write_bytes(run.path / "metrics.jsonl", text.encode("utf-8"))


def _copy_snapshots(source: Path, target: Path, step: int) -> None:
    """The weights kept at evaluations up to `step`, with their index."""
    index = source / "snapshots.json"
    if not index.exists():
        return
    target.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in read_json(index) if entry["step"] <= step]
    for entry in entries:
        name = f"snapshot-{entry['step']:08d}.safetensors"
        if (source / name).exists():
            shutil.copyfile(source / name, target / name)
    write_json(target / index.name, entries)
