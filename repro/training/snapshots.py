"""Weights kept at evaluations, to be averaged before testing (Vaswani et al. 2017, section 6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from repro.files import read_json, write_json
from repro.training.weights import average, save_weights

Selection = Literal["last", "best"]


class Snapshots:
    """At most `keep` weight files under `checkpoints/`: the last ones, or those with the least validation perplexity.

    What is kept follows from the evaluations alone, so a resumed run keeps what an uninterrupted one would.
    """

    def __init__(self, checkpoints: Path, keep: int, selection: Selection) -> None:
        self._folder, self._keep, self._selection = checkpoints, keep, selection
        self._index_path = checkpoints / "snapshots.json"

    def add(self, step: int, perplexity: float, weights: Mapping[str, Tensor]) -> None:
        """Keep `weights` of `step`, unless `keep` better or later ones are there."""
        if not self._keep:
            return
        index = [entry for entry in self._index() if entry["step"] < step]
        index.append({"step": step, "perplexity": perplexity})
        kept = self._kept(index)
        if index[-1] in kept:
            save_weights(self._path(step), weights)
        # The whole history stays in the index: after a resume the choice is made from the same list again.
        write_json(self._index_path, index)
        names = {self._path(entry["step"]) for entry in kept}
        for path in self._folder.glob("snapshot-*.safetensors"):
            # A file of a later step is another, newer owner's or is written again soon.
            if path not in names and int(path.stem.split("-")[1]) <= step:
                path.unlink(missing_ok=True)

    def average(self) -> dict[str, Tensor] | None:
        """The mean of the kept weights, the same bits for the same files; None when averaging is off.

        Raises CheckError when a file is missing or damaged: never the average of fewer.
        """
        if not self._keep:
            return None
        return average([self._path(entry["step"]) for entry in self._kept(self._index())])

    def _kept(self, index: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self._selection == "last":
            return index[-self._keep :]
        return sorted(index, key=lambda entry: (entry["perplexity"], entry["step"]))[: self._keep]

    def _index(self) -> list[dict[str, Any]]:
        return list(read_json(self._index_path)) if self._index_path.exists() else []

    def _path(self, step: int) -> Path:
        return self._folder / f"snapshot-{step:08d}.safetensors"
