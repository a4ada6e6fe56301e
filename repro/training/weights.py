"""Named tensors in safetensors files that carry their own digest; nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from repro.errors import CheckError
from repro.files import write_whole

WEIGHTS = "weights.safetensors"
"""The name of the weights inside a checkpoint's directory."""

_DIGEST = "sha256"


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write `weights` to `path`, whole or not at all; the same tensors give the same bytes.

    Raises CheckError when the disk is full.
    """
    write_whole(path, lambda file: write_tensors(file, weights))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of the file `path`, or of the checkpoint `path`, on the CPU.

    Raises CheckError when the file is missing or damaged.
    """
    file = path / WEIGHTS if path.is_dir() else path
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        raise CheckError("no such file", where=str(file)) from error
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(file)) from error
    return read_tensors(content, file)


def average(files: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in `files` (files or checkpoints), summed in fp64 in the order of their names and given
    in their own dtype.

    The same files, named in any order, give the same bits. Tensors of whole numbers must be equal in all. Raises
    CheckError when there is no file, or when one is missing, damaged or of another model.
    """
    if not files:
        raise CheckError("no weights to average")
    paths = sorted(files)
    first = load_weights(paths[0])
    sums = {name: value.double() if value.is_floating_point() else value for name, value in first.items()}
    for path in paths[1:]:
        weights = load_weights(path)
        _check_alike(first, weights, path)
        for name, value in weights.items():
            if value.is_floating_point():
                sums[name] += value.double()
            elif not torch.equal(sums[name], value):
                raise CheckError(f"{name!r} holds other whole numbers than in {paths[0]}", where=str(path))
    return {
        name: (total / len(paths)).to(first[name].dtype) if total.is_floating_point() else total
        for name, total in sums.items()
    }


def write_tensors(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` to `file` as safetensors, with a digest of names, shapes and numbers in the header."""
    plain = _plain(tensors)
    file.write(save(plain, {_DIGEST: _digest(plain)}))


def read_tensors(content: bytes, where: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file's bytes. Raises CheckError naming `where` when it is damaged."""
    try:
        # Cloned, because torch's own memory is aligned alike in every process; a view into the file is not.
        tensors = {name: value.clone() for name, value in load(content).items()}
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
    except (SafetensorError, ValueError) as error:
        raise CheckError(f"damaged ({error})", where=str(where)) from error
    noted = header.get("__metadata__", {}).get(_DIGEST)
    if noted is not None and noted != _digest(tensors):
        raise CheckError("damaged (its numbers do not fit its digest)", where=str(where))
    return tensors


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, contiguous, sorted by name; a tensor that shares its memory with another one is copied."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name in sorted(tensors):
        value = tensors[name].detach().to("cpu").contiguous()
        if value.untyped_storage().data_ptr() in seen:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value
    return plain


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode("ascii"))
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_alike(first: Mapping[str, Tensor], other: Mapping[str, Tensor], where: Path) -> None:
    for name in sorted(first.keys() | other.keys()):
        here, there = first.get(name), other.get(name)
        if here is None or there is None or (here.shape, here.dtype) != (there.shape, there.dtype):
            raise CheckError(
                f"is of another model ({name!r} differs)", where=str(where), fix="average one run's weights"
            )
