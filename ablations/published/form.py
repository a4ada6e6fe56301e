"""A published directory: which files it has, their digests, and what is read of it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from ablations.published.archive import AGAIN, unpacked
from ablations.study import ARCHIVE
from repro.errors import CheckError

README, SUMS = "README.md", "SHA256SUMS"
COPY = "plan.json"
"""The study's plan, to be read; under another name than in a study, which a published one is not."""
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def is_published(path: Path) -> bool:
    """Whether `path` is a published study."""
    return (path / ARCHIVE).is_file() and (path / SUMS).is_file()


def read_archive(path: Path) -> bytes:
    """The archive of the published study in `path`. Raises CheckError when it is not what was published."""
    if not is_published(path):
        fix = f"name a directory made by `ablate publish`, with {ARCHIVE} and {SUMS}"
        raise CheckError("no published study here", where=str(path), fix=fix)
    content = (path / ARCHIVE).read_bytes()
    if hashlib.sha256(content).hexdigest() != _listed(path).get(ARCHIVE):
        raise CheckError(f"damaged (its digest is not the one in {SUMS})", where=str(path / ARCHIVE), fix=AGAIN)
    return content


def read_records(path: Path) -> dict[str, bytes]:
    """The records of the published study in `path` by their names in the study; see `archive.unpacked`."""
    return unpacked(read_archive(path), str(path / ARCHIVE))


def sums_of(files: Mapping[str, bytes]) -> bytes:
    """The digests of `files` as `sha256sum` writes and checks them."""
    return "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())
    ).encode()


def check_free(path: Path, *, force: bool) -> None:
    """Raise CheckError unless `path` is free, empty, or, with `force`, a published study and nothing else."""
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckError("is no directory", where=str(path), fix="choose another place")
    here = {file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir()}
    if here and not force:
        fix = "choose another directory; a published study is replaced with --force"
        raise CheckError("is not empty", where=str(path), fix=fix)
    known = {SUMS, *_listed(path)} if is_published(path) else set()
    if strange := sorted(here - known):
        what = f"holds {strange[0]!r}, which is no file of a published study"
        raise CheckError(what, where=str(path), fix="choose another directory, or move that file")


def _listed(path: Path) -> dict[str, str]:
    """The files that SHA256SUMS lists, with their digests; none where it is missing or damaged."""
    try:
        lines = (path / SUMS).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    return {found[2]: found[1] for line in lines if (found := _LINE.fullmatch(line))}
