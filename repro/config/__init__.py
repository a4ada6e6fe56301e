"""Frozen, validated configuration."""

from repro.config.model import TransformerConfig
from repro.config.run import DataConfig, DecodeConfig, ModelConfig, RunConfig, TrainConfig

__all__ = ["DataConfig", "DecodeConfig", "ModelConfig", "RunConfig", "TrainConfig", "TransformerConfig"]
