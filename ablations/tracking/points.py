"""Metric values as MLflow wants them: from the growing metrics.jsonl of a run and from its result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.tracking.names import entity_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One finite value of one metric at one step."""

    key: str
    step: int
    value: float
    milliseconds: int
    """Unix time of the value's own making, not of its sending."""


class Tail:
    """Reads what is new in a run's metrics.jsonl, and everything again when the file was rewritten after a resume."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._last = b""
        """The last line read: still there, at its place, unless the file was rewritten."""

    def read(self) -> list[Point]:
        """The points of the whole lines that were not returned before, in the file's order.

        After a rewrite also points that were. A torn last line waits for its rest; a damaged line is left out: the
        run's own reader reports it.
        """
        try:
            with self._path.open("rb") as file:
                start = self._offset - len(self._last)
                file.seek(start)
                content = file.read()
                if not content.startswith(self._last):
                    self._offset, self._last = 0, b""
                    file.seek(0)
                    content = file.read()
        except FileNotFoundError:
            return []
        new = content[len(self._last) : content.rfind(b"\n") + 1]
        if not new:
            return []
        self._offset += len(new)
        lines = new.split(b"\n")[:-1]
        self._last = lines[-1] + b"\n"
        return [point for line in lines for point in _points_of(line)]


def _points_of(text: bytes) -> Iterator[Point]:
    try:
        document = json.loads(text)
        step, milliseconds, metrics = int(document["step"]), int(document["time"] * 1000), dict(document["metrics"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return
    for name, value in metrics.items():
        if is_number(value):
            yield Point(key=entity_name(name), step=step, value=float(value), milliseconds=milliseconds)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; truth values are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_FINAL = {
    "parameters": "model/parameters",
    "steps": "train/steps",
    "epochs": "train/epochs",
    "skipped_steps": "train/skipped_steps",
    "source_tokens": "train/source_tokens",
    "target_tokens": "train/target_tokens",
    "padding_share": "train/padding_share",
    "train_flops": "train/flops",
    "padded_flops": "train/padded_flops",
    "train_seconds": "time/train_seconds",
    "target_tokens_per_second": "train/target_tokens_per_second",
}
"""Numbers of result.json and their metric names."""
_SO_FAR = frozenset(_FINAL.values())
"""Totals and averages since the start: the last point of their curve is the result."""


def final_points(result: Mapping[str, Any], curves: set[str], milliseconds: int) -> list[Point]:
    """The flat metrics of a finished run. `curves` are the metrics that metrics.jsonl holds.

    A metric without a curve stands at step 0: the pages then show it as a bar, not as a curve of one point. A total
    with a curve gets its last point. A score that has a curve (validation BLEU, decoded greedily while training) and
    that of the finished model (decoded by beam search) are two things: the latter stands under `valid_final/bleu`.
    """
    points = []
    for key, value in _final_values(result):
        step = 0
        if key in curves and key in _SO_FAR:
            step = int(result["steps"])
        elif key in curves:
            part, _, rest = key.partition("/")
            key = f"{part}_final/{rest}"
        points.append(Point(key=key, step=step, value=float(value), milliseconds=milliseconds))
    return points


def _final_values(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for field, key in _FINAL.items():
        if is_number(result.get(field)):
            yield key, result[field]
    seconds = result.get("seconds", {})
    for part, value in _numbers(seconds):
        if part != "train" or "train_seconds" not in result:
            yield f"time/{part}_seconds", value
    for part, value in _numbers(result.get("flops", {})):
        yield f"train/{part}_flops", value
    for split in ("valid", "test"):
        for name, value in _numbers(result.get(split, {})):
            yield f"{split}/{name}", value


def _numbers(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The finite numbers of a nested document by path, as metric names."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif is_number(value):
            # Buckets of lengths and distances end in "10+", which MLflow refuses.
            yield entity_name(f"{prefix}{name}".replace("+", " or more")), value
