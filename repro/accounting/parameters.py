"""Numbers of trainable parameters, counted on the model itself without allocating it."""

from __future__ import annotations

from functools import lru_cache

from repro.config import ModelConfig


@lru_cache(maxsize=256)
def parameters(config: ModelConfig, vocabulary_size: int) -> int:
    """Trainable numbers of the model of `config`; a shared matrix counts once. The model is built on torch's "meta"
    device, where tensors have shapes and no storage."""
    from repro.models.build import build_model
    from repro.models.seq2seq import count_parameters

    return count_parameters(build_model(config, vocabulary_size, seed=0, device="meta"))
