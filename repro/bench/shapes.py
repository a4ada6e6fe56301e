"""The shapes that are timed: a configuration with the text it is meant for, drawn instead of read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from repro.config import DataConfig, RunConfig, TrainConfig, TransformerConfig
from repro.data.batches import Sampler, collate
from repro.data.encoded import EncodedPairs
from repro.data.pieces import EOS, Batch
from repro.seeds import derive_seed

_PAIRS = 20_000
_DEVICE_BATCHES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A model with its batches."""

    name: str
    model: TransformerConfig
    vocabulary_size: int
    batch_tokens: int
    device_batch_tokens: int
    """Batches off the CPU, where the paper's fit."""
    src: float
    """Mean source length in pieces with the end mark."""
    tgt: float
    batches: int
    """Batches in a round on a CPU."""

    def config(self, device: str) -> RunConfig:
        """The run's configuration on a device of type `device`."""
        tokens = self.batch_tokens if device == "cpu" else self.device_batch_tokens
        return RunConfig(
            variant=self.name,
            scale="bench",
            model=self.model,
            data=DataConfig(vocabulary_size=self.vocabulary_size),
            train=TrainConfig(batch_tokens=tokens),
        )

    def text(self) -> EncodedPairs:
        """Pairs of pieces, as frequent as words are (Zipf) and with lengths that scatter by half their mean.

        The target's length follows the source's within a fifth, as it does in translations.
        """
        draws = np.random.Generator(np.random.PCG64(derive_seed("bench", self.name)))
        spread = draws.normal(0.0, 0.5, _PAIRS)
        src = _lengths(self.src, spread)
        tgt = _lengths(self.tgt, spread + draws.normal(0.0, 0.2, _PAIRS))
        chances = 1.0 / np.arange(1, self.vocabulary_size - EOS)
        kinds = np.arange(EOS + 1, self.vocabulary_size)

        def side(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
            offsets = np.concatenate(([0], np.cumsum(lengths)))
            return draws.choice(kinds, int(offsets[-1]), p=chances / chances.sum()).astype(np.int32), offsets

        (src_pieces, src_offsets), (tgt_pieces, tgt_offsets) = side(src), side(tgt)
        return EncodedPairs(
            {"src": src_pieces, "tgt": tgt_pieces}, {"src": src_offsets, "tgt": tgt_offsets}, np.arange(1, _PAIRS + 1)
        )

    def round(self, device: str) -> list[Batch]:
        """The batches of one round, the same for every system."""
        text = self.text()
        indices = sampler(text, self.config(device)).epoch(0)
        return [collate(text, rows) for rows in indices[: self.batches if device == "cpu" else _DEVICE_BATCHES]]


def sampler(text: EncodedPairs, config: RunConfig) -> Sampler:
    """What cuts `text` into the batches of `config`."""
    tokens = config.train.batch_tokens
    return Sampler(text.src_lengths + 1, text.tgt_lengths + 1, batch_tokens=tokens, scale="bench", seed=1)


def _lengths(mean: float, spread: NDArray[np.float64]) -> NDArray[np.int64]:
    """[pairs] pieces without the end mark, log-normal about `mean` with it."""
    drawn = np.exp(spread)
    lengths: NDArray[np.int64] = np.clip((mean - 1) * drawn / drawn.mean(), 1, 200).round().astype(np.int64)
    return lengths


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            name="smoke",
            model=TransformerConfig(n_layers=3, d_model=64, d_ff=256, n_heads=8, max_positions=256),
            vocabulary_size=320,
            batch_tokens=512,
            device_batch_tokens=512,
            src=10.4,
            tgt=10.8,
            batches=20,
        ),
        Shape(
            name="multi30k-cpu",
            model=TransformerConfig(n_layers=3, d_model=128, d_ff=512, n_heads=8, max_positions=256),
            vocabulary_size=4000,
            batch_tokens=1024,
            device_batch_tokens=1024,
            src=16.5,
            tgt=17.5,
            batches=8,
        ),
        Shape(
            name="small",
            model=TransformerConfig(n_layers=3, d_model=256, d_ff=1024, n_heads=4),
            vocabulary_size=6000,
            batch_tokens=2000,
            device_batch_tokens=25_000,
            src=22.0,
            tgt=22.0,
            batches=3,
        ),
        Shape(
            name="base",
            model=TransformerConfig(),
            vocabulary_size=40_960,
            batch_tokens=1000,
            device_batch_tokens=25_000,
            src=30.0,
            tgt=30.0,
            batches=1,
        ),
    )
}
"""`smoke` and `multi30k-cpu` are the scales of these names, `base` is the paper's; on a CPU its batches are small."""
