"""What would end a run after minutes and can be told before it starts."""

from __future__ import annotations

from pathlib import Path

from repro.config import RunConfig
from repro.data.corpora import SIDES, SPLITS
from repro.data.prepare import Prepared
from repro.errors import CheckError


def corpus_of(directory: Path, digest: str) -> Prepared:
    """The prepared corpus in `directory`. Raises CheckError unless it is whole and has the `digest`."""
    prepared = Prepared.load(directory)
    if prepared.digest != digest:
        what = f"the prepared corpus changed: its digest is {prepared.digest[:12]}, the study's is {digest[:12]}"
        raise CheckError(what, where=str(directory), fix="put the old files back or start a new study")
    return prepared


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
