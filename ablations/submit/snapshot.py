"""The program's source as it is at submission, kept in the study: queued jobs run it, whatever is edited later.

`STUDY/code/<digest12>/` holds the packages and `snapshot.json`. It is made whole or not at all, once for each digest,
and put before everything else on the jobs' search path. What the program needs beside itself is what is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from repro import __version__
from repro.errors import CheckError
from repro.files import digest_of, digest_of_file, disk_error, read_json, write_bytes, write_json
from repro.runs.environment import SNAPSHOT, code
from repro.shapes import Shape, check_shape

CODE = "code"
"""The directory of snapshots, in a study."""
PACKAGES = ("repro", "ablations", "reports", "slurm")
SUFFIXES = (".py", ".yaml", ".j2", ".css", ".js", "py.typed")
"""Ends of the names of files that belong to the packages: as their wheel has them."""

_DIGITS = 12
_FIX = "cancel what is queued, remove the snapshot's directory and submit again"
_SHAPE: Shape = {"digest": str, "files": {}, "bytes": int, "version": str}


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A snapshot of the program, there or about to be made."""

    path: Path
    """Goes first on the search path of whatever is to run it."""
    digest: str
    """SHA-256 (hex) over the names and contents of all its files."""
    bytes: int
    """Size of its files together."""
    commit: str | None
    dirty: bool | None


def snapshot(study: Path) -> Snapshot:
    """The snapshot of this program in the study in `study`, made unless it is there.

    Of several processes that make it at once one succeeds and the others take its. Raises CheckError when the one there
    was changed, or the disk is full.
    """
    content = _content()
    found = _described(study, content)
    if found.path.exists():
        _check_same(found)
        return found
    try:
        _make(found, content)
    except OSError as error:
        raise disk_error(error, found.path) from error
    _check_same(found)
    return found


def would_be(study: Path) -> Snapshot:
    """What `snapshot` would give; nothing is written."""
    return _described(study, _content())


def _content() -> dict[str, bytes]:
    """Every file of the packages by its path, read once: what is edited meanwhile is in or not in."""
    content = {}
    for package in PACKAGES:
        root = _root(package)
        for path in sorted(root.rglob("*")):
            place = path.relative_to(root)
            hidden = any(part.startswith(".") or part == "__pycache__" for part in place.parts)
            if not hidden and path.name.endswith(SUFFIXES) and path.is_file():
                content[(Path(package) / place).as_posix()] = path.read_bytes()
    return content


def _root(package: str) -> Path:
    """Where the package is, however it was installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise CheckError("is not installed as files", where=f"package {package}", fix="install the program again")
    return Path(next(iter(found.submodule_search_locations)))


def _described(study: Path, content: Mapping[str, bytes]) -> Snapshot:
    digest = _digest({name: _sha256(data) for name, data in content.items()})
    of = code(_root("repro").resolve().parent)
    return Snapshot(
        path=study.absolute() / CODE / digest[:_DIGITS],
        digest=digest,
        bytes=sum(len(data) for data in content.values()),
        commit=of["commit"],
        dirty=of["dirty"],
    )


def _make(wanted: Snapshot, content: Mapping[str, bytes]) -> None:
    parent = wanted.path.parent
    parent.mkdir(parents=True, exist_ok=True)
    ignore = parent / ".gitignore"  # a copy of a program is nothing that a user's repository should show
    if not ignore.exists():
        write_bytes(ignore, b"*\n")
    temporary = Path(tempfile.mkdtemp(prefix=f".{wanted.path.name}.", dir=parent))
    try:
        for name, data in content.items():
            _write(temporary / name, data)
        write_json(
            temporary / SNAPSHOT,
            {
                "schema": 1,
                "version": __version__,
                "commit": wanted.commit,
                "dirty": wanted.dirty,
                "digest": wanted.digest,
                "bytes": wanted.bytes,
                "files": {name: _sha256(data) for name, data in content.items()},
            },
        )
        temporary.chmod(0o755)
        try:
            temporary.rename(wanted.path)
        except OSError:
            if not wanted.path.exists():  # else another process was quicker: its snapshot is the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444)


def _check_same(found: Snapshot) -> None:
    """Raise CheckError when the files there are not those of the digest."""
    document = read_json(found.path / SNAPSHOT)
    check_shape(document, _SHAPE, found.path / SNAPSHOT, fix=_FIX)
    for name, digest in document["files"].items():
        path = found.path / name
        if not path.is_file() or digest_of_file(path) != digest:
            raise CheckError("was changed after the snapshot was made", where=str(path), fix=_FIX)
    if _digest(document["files"]) != found.digest:
        raise CheckError("is not the snapshot of this program", where=str(found.path), fix=_FIX)


def _digest(files: Mapping[str, str]) -> str:
    return digest_of({"files": dict(files)})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
