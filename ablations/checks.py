"""What would end a run after minutes and can be told before it starts."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from pathlib import Path

from ablations.room import Room
from repro.accounting.parameters import parameters
from repro.config import RunConfig
from repro.data.corpora import SIDES, SPLITS
from repro.data.prepare import Prepared
from repro.errors import CheckError

BYTES_A_PARAMETER = 4 * (3 * 3 + 1)
"""What a run leaves on disk, in fp32: weights and Adam's two moments in the two checkpoints that stay and in the one
being written, and the final weights. Evaluations that are to be averaged come on top."""
BYTES_A_STUDY = 16 * 2**20
"""MLflow's database and artifacts, the report, logs."""


def check_fits(config: RunConfig, prepared: Prepared) -> None:
    """Raise CheckError, naming split and line, when a sentence is longer than the run of `config` can take."""
    limit = _positions(config)
    for split in SPLITS:
        for side in SIDES:
            longest, line = _longest(prepared, split, side)
            place = f"line {line} of {split} ({side}) has {longest} pieces with the end mark"
            if limit is not None and longest > limit:
                what = f"{place}, learned positions end at {limit}"
                where = f"variant {config.variant}, model.max_positions"
                raise CheckError(what, where=where, fix=f"set model.max_positions to {longest} or more")
            if split == "train" and longest > config.train.batch_tokens:
                what = f"{place}, a batch holds {config.train.batch_tokens}"
                where = f"variant {config.variant}, train.batch_tokens"
                raise CheckError(what, where=where, fix=f"set train.batch_tokens to {longest} or more")


def check_averaging(config: RunConfig) -> None:
    """Raise CheckError when a run of `config`, by its budget in steps, has fewer evaluations than it is to average."""
    train = config.train
    count = math.ceil(train.budget / train.evaluate_every)
    if train.budget_unit == "steps" and train.average_checkpoints > count:
        what = f"{train.average_checkpoints} evaluations are to be averaged, {train.budget:g} steps have {count}"
        fix = f"lower it, or set train.evaluate_every={max(1, int(train.budget // train.average_checkpoints))} or less"
        raise CheckError(what, where=f"variant {config.variant}, train.average_checkpoints", fix=fix)


def check_memory(configs: Iterable[RunConfig], room: Room, prepared: Prepared) -> None:
    """Raise CheckError, naming the variant and what would fit, when training one of `configs` takes more than `room`.

    The estimate is rough; what it lets through and yet does not fit is computed in smaller parts as it runs.
    """
    longest = max(_longest(prepared, "train", side)[0] for side in SIDES)
    for config in configs:
        needed = room.needed(config)
        if needed <= room.bytes:
            continue
        size = room.fitting(config, longest)
        fix = "run fewer at once, or choose a smaller model or a device with more memory"
        if size is not None:
            fix = f"set train.micro_batch_tokens={size}, or run fewer at once"
        what = f"training takes about {needed / 2**30:.1f} GB, there is {room.where}"
        raise CheckError(what, where=f"variant {config.variant}", fix=fix)


def check_disk(study: Path, begun: Iterable[RunConfig]) -> None:
    """Raise CheckError when the disk that holds `study` has too little room for the runs that are to be `begun`."""
    needed = BYTES_A_STUDY
    for config in begun:
        a_parameter = BYTES_A_PARAMETER + 4 * config.train.average_checkpoints
        needed += a_parameter * parameters(config.model, config.data.vocabulary_size)
    free = shutil.disk_usage(study).free
    if free < needed:
        what = f"the disk has {_megabytes(free)} free, these runs need about {_megabytes(needed)}"
        raise CheckError(what, where=str(study), fix="free some space or choose another directory with --study")


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def _positions(config: RunConfig) -> int | None:
    """Rows of the model's table of learned positions; None for a model without one."""
    match config.model.family:
        case "transformer":
            return config.model.max_positions if config.model.positions == "learned" else None
        case "convs2s":
            return config.model.max_positions
        case _:
            return None


def _longest(prepared: Prepared, split: str, side: str) -> tuple[int, int]:
    """Pieces of the longest sentence, the end mark counted, and the line it stands on."""
    encoded = prepared.encoded(split)
    lengths = encoded.src_lengths if side == "src" else encoded.tgt_lengths
    place = int(lengths.argmax())
    return int(lengths[place]) + 1, int(encoded.lines[place])
