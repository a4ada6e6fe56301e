"""The metrics of a run: one JSON line a step, only ever appended to, with a last line torn by a kill left out."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from repro.errors import CheckError
from repro.files import disk_error, write_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class MetricLine:
    """Metrics of one step, e.g. {"train/loss": 2.5}."""

    step: int
    time: float
    """Unix seconds."""
    metrics: dict[str, float]


def read(path: Path) -> list[MetricLine]:
    """All metrics in the order written; a last line torn by a kill is left out, a missing file is an empty one.

    When a metric was written twice for a step (by an owner that had been held dead), the last one counts. Raises
    CheckError naming the line when another line is damaged.
    """
    lines = [line for _, line in _lines(path)]
    last = {(line.step, name): number for number, line in enumerate(lines) for name in line.metrics}
    kept = []
    for number, line in enumerate(lines):
        metrics = {name: value for name, value in line.metrics.items() if last[line.step, name] == number}
        if metrics:
            kept.append(MetricLine(step=line.step, time=line.time, metrics=metrics))
    return kept


def append(path: Path, line: MetricLine) -> None:
    """Append one line, which survives the end of the process at once.

    Raises ValueError for a number that is not finite, CheckError when the disk is full (the file is then as before).
    """
    for name, value in line.metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} at step {line.step} is {value}; leave it out")
    text = json.dumps({"step": line.step, "time": line.time, "metrics": line.metrics}, ensure_ascii=False)
    try:
        _append(path, (text + "\n").encode("utf-8"))
    except OSError as error:
        raise disk_error(error, path) from error


def drop_after(path: Path, step: int) -> None:
    """Keep the lines of steps up to `step`, and no torn one."""
    if not path.exists():
        return
    kept = b"".join(text + b"\n" for text, line in _lines(path) if line.step <= step)
    if kept != path.read_bytes():
        write_bytes(path, kept)


def _lines(path: Path) -> list[tuple[bytes, MetricLine]]:
    """The whole lines of `path`, as bytes and as read."""
    try:
        *texts, _torn = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [(text, _read_line(text, f"{path}:{number}")) for number, text in enumerate(texts, 1)]


def _read_line(text: bytes, where: str) -> MetricLine:
    try:
        document = json.loads(text)
        metrics = {str(name): float(value) for name, value in document["metrics"].items()}
        line = MetricLine(step=int(document["step"]), time=float(document["time"]), metrics=metrics)
        if not all(math.isfinite(value) for value in (line.time, *metrics.values())):
            raise ValueError("a number that is not finite")
        return line
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckError("not a line of metrics", where=where, fix="remove the line") from error


def _append(path: Path, line: bytes) -> None:
    """Append `line` by one write; a torn line before it is cut off, and so is `line` itself when it does not fit."""
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            size = path.read_bytes().rfind(b"\n") + 1
            os.ftruncate(handle, size)
        try:
            written = 0
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
