"""The training core: data, models, training, decoding, metrics, accounting and run records.

Needs torch, numpy, sentencepiece, sacrebleu and safetensors; knows nothing of Ray, MLflow or reports.
"""

__version__ = "0.1.0"

SEMANTICS_VERSION = 2
"""Raised whenever the same configuration would give other results than before; part of every run's hash."""
