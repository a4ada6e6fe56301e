"""A finished run's model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from repro.config import RunConfig
from repro.data.prepare import Prepared
from repro.errors import CheckError
from repro.models.build import build_model
from repro.models.seq2seq import Seq2Seq
from repro.runs.directory import RunDirectory
from repro.training.device import choose_device
from repro.training.weights import load_weights


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run's model with its trained weights."""

    config: RunConfig
    model: Seq2Seq[Any, Any]
    prepared: Prepared
    device: torch.device

    @staticmethod
    def load(path: Path, data_directory: Path | None = None) -> Trained:
        """The trained model of the run in `path`. Raises CheckError when it is not done or its files are damaged."""
        run = RunDirectory(path)
        config = run.config()
        if not run.weights.exists():
            raise _no_weights(run)
        torch.set_num_threads(config.train.threads)
        device = choose_device()
        prepared = Prepared.load_same(data_directory or run.data_directory(), config.data.digest)
        model = build_model(config.model, prepared.vocabulary().size, 0, device)
        weights = load_weights(run.weights)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in weights or weights[name].shape != parameter.shape:
                    raise CheckError(f"lacks {name!r} of this model", where=str(run.weights))
                parameter.copy_(weights[name])
        model.eval()
        return Trained(config=config, model=model, prepared=prepared, device=device)


def _no_weights(run: RunDirectory) -> CheckError:
    state = run.status().state
    if state == "done":
        what = "is done, but its weights are not here: a published or pulled record has none"
        return CheckError(what, where=str(run.path), fix="train it again, with `ablate train` or in another study")
    return CheckError(f"has no trained weights, it is {state}", where=str(run.path), fix="finish it first")
