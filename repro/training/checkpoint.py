"""Checkpoints: directories `step-00001234/` that are whole or absent, verified when read, the last two kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch import Tensor

from repro.errors import CheckError
from repro.files import disk_error, read_json
from repro.training.weights import WEIGHTS, average, load_weights, read_tensors, save_weights, write_tensors

__all__ = ["Checkpoint", "Saved", "adopt", "average", "load_newest", "load_weights", "save", "save_weights", "whole"]

SCHEMA = 1
KEPT = 2
"""Checkpoints that stay: the newest, and the one before in case that one is damaged."""

OPTIMIZER, STATE, MANIFEST = "optimizer.safetensors", "state.json", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_TEMPORARY = ".step-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint just written."""

    path: Path
    size: int
    """Bytes on disk."""
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint that was read and found whole."""

    path: Path
    step: int
    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    state: dict[str, Any]
    size: int
    """Bytes of weights, optimizer and state."""
    seconds: float
    """Time to read and verify it."""


def save(
    directory: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
    *,
    confirm: Callable[[], None] = lambda: None,
) -> Saved:
    """Write `directory/step-<step>/`, whole or not at all, then remove all but the last two checkpoints.

    `directory` is the run's `checkpoints/`. Tensors may lie on any device. `state` must be plain JSON without NaN. The
    same values give the same bytes. Raises CheckError when the disk is full: the checkpoints before stay untouched.
    `confirm` is called when all is on disk, which may have taken minutes, and nothing has its name yet: it may raise.
    """
    started = time.perf_counter()
    target = _path(directory, step)
    temporary: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _remove_temporaries(directory)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
        temporary.chmod(0o755)
        size = _fill(temporary, step, weights, optimizer, state)
        confirm()
        _put(temporary, target)
        _sync(directory)
        _remove_old(directory, step)
    except OSError as error:
        raise disk_error(error, target) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return Saved(path=target, size=size, seconds=time.perf_counter() - started)


def load_newest(directory: Path, warnings: list[str]) -> Checkpoint | None:
    """The newest whole checkpoint in `directory`, its tensors on the CPU; None when there is none.

    A damaged one is passed over for the one before, with a line appended to `warnings`. Changes nothing on disk.
    """
    for step, path in reversed(_all(directory)):
        try:
            return _load(path, step)
        except CheckError as error:
            warnings.append(f"checkpoint passed over: {error}")
    return None


def whole(directory: Path) -> Iterator[tuple[int, Path]]:
    """Step and path of the checkpoints in `directory` that are whole, newest first. Nothing is unpickled or loaded."""
    return ((step, path) for step, path in reversed(_all(directory)) if _is_whole(path, step))


def adopt(path: Path, directory: Path) -> None:
    """Copy the checkpoint `path` of another run into `directory`, whole or not at all. Raises CheckError."""
    target = directory / path.name
    temporary: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
        temporary.chmod(0o755)
        for name in (WEIGHTS, OPTIMIZER, STATE, MANIFEST):
            content = (path / name).read_bytes()
            _write(temporary / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
        _sync(temporary)
        _put(temporary, target)
        _sync(directory)
    except OSError as error:
        raise disk_error(error, target) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _fill(
    folder: Path,
    step: int,
    weights: Mapping[str, Tensor],
    optimizer: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> int:
    """Write the files of a checkpoint into `folder`; returns their bytes in all."""
    files = {
        WEIGHTS: _write(folder / WEIGHTS, lambda file: write_tensors(file, weights)),
        OPTIMIZER: _write(folder / OPTIMIZER, lambda file: write_tensors(file, optimizer)),
        STATE: _write(folder / STATE, lambda file: file.write(_json(state))),
    }
    manifest = {"schema": SCHEMA, "step": step, "files": files}
    last = _write(folder / MANIFEST, lambda file: file.write(_json(manifest)))
    _sync(folder)
    return sum(int(entry["bytes"]) for entry in [*files.values(), last])


class _Hashing:
    """A file that digests what is written to it, so that it need not be read again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, content: bytes) -> int:
        self.digest.update(content)
        self.size += len(content)
        return self._file.write(content)


def _write(path: Path, write: Callable[[Any], object]) -> dict[str, Any]:
    """Let `write` fill the new file `path`, flush it to disk; returns its manifest entry."""
    with path.open("xb") as file:
        hashing = _Hashing(file)
        write(hashing)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": hashing.size, "sha256": hashing.digest.hexdigest()}


def _put(temporary: Path, target: Path) -> None:
    """Rename `temporary` to `target`; a checkpoint of the same step, from before a resume, makes room."""
    if target.exists():
        _remove(target)
    temporary.rename(target)


def _remove_old(directory: Path, step: int) -> None:
    """Keep the checkpoint of `step` and those just before it; of later ones, left by a run resumed before them, only
    what is whole (it may be a newer owner's).
    """
    found = _all(directory)
    earlier = [path for number, path in found if number < step]
    for path in earlier[: len(earlier) - (KEPT - 1)]:
        _remove(path)
    for number, path in found:
        if number > step and not _is_whole(path, number):
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint, whose name goes first: none is ever seen half removed."""
    aside = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=path.parent))
    path.rename(aside)
    shutil.rmtree(aside)


def _remove_temporaries(directory: Path) -> None:
    """Remove what a killed owner left half written or half removed."""
    for path in directory.glob(_TEMPORARY + "*"):
        shutil.rmtree(path, ignore_errors=True)
    for pattern in (".*.safetensors.*", ".*.json.*"):
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)


def _is_whole(path: Path, step: int) -> bool:
    try:
        entries = _entries(path, step)
        for name in entries:
            _verified(path / name, entries)
    except CheckError:
        return False
    return True


def _load(path: Path, step: int) -> Checkpoint:
    started = time.perf_counter()
    entries = _entries(path, step)
    return Checkpoint(
        path=path,
        step=step,
        weights=read_tensors(_verified(path / WEIGHTS, entries), path / WEIGHTS),
        optimizer=read_tensors(_verified(path / OPTIMIZER, entries), path / OPTIMIZER),
        state=json.loads(_verified(path / STATE, entries)),
        size=sum(entry["bytes"] for entry in entries.values()),
        seconds=time.perf_counter() - started,
    )


def _entries(path: Path, step: int) -> dict[str, Any]:
    """What the manifest of the checkpoint `path` says of each file."""
    manifest = read_json(path / MANIFEST)
    try:
        entries = {name: dict(manifest["files"][name]) for name in (WEIGHTS, OPTIMIZER, STATE)}
        fits = manifest["schema"] == SCHEMA and manifest["step"] == step
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise CheckError("damaged (not the manifest of this step)", where=str(path / MANIFEST))
    return entries


def _verified(path: Path, entries: Mapping[str, Any]) -> bytes:
    """The bytes of one file of a checkpoint. Raises CheckError when they do not fit its manifest entry."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error
    found = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if found != entries[path.name]:
        raise CheckError("damaged (does not fit the manifest)", where=str(path))
    return content


def _path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}"


def _all(directory: Path) -> list[tuple[int, Path]]:
    """Step and path of every checkpoint, oldest first."""
    try:
        named = [(_NAME.fullmatch(path.name), path) for path in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted((int(match[1]), path) for match, path in named if match is not None)


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, sort_keys=True, indent=2, allow_nan=False) + "\n").encode("ascii")


def _sync(directory: Path) -> None:
    """Flush the names in `directory` to disk."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
