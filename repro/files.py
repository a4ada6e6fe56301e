"""Files that are written whole or not at all, canonical JSON, and digests."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from repro.errors import CheckError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP}
_NO_LINKS = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk and rename it into place.

    A reader sees the old content or the new, never a part. Raises CheckError when the disk is full or
    refuses to be written; the temporary file is removed in every case.
    """
    try:
        with _filled(path, write) as temporary:
            os.replace(temporary, path)
    except OSError as error:
        raise disk_error(error, path) from error


def create_bytes(path: Path, content: bytes) -> bool:
    """Create `path` with `content` unless it exists: of many processes that try at once, exactly one gets True.

    Raises CheckError when the disk is full or refuses to be written. The name appears together with the whole content,
    except on file systems without hard links, where the content follows a moment after the name.
    """
    try:
        with _filled(path, lambda file: file.write(content)) as temporary:
            return _link_new(temporary, path, content)
    except OSError as error:
        raise disk_error(error, path) from error


def _link_new(temporary: Path, path: Path, content: bytes) -> bool:
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system can repeat a request whose answer was lost and then finds our own link.
        return temporary.stat().st_nlink == 2
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise
    return True


@contextmanager
def _filled(path: Path, write: Callable[[IO[bytes]], object]) -> Iterator[Path]:
    """A temporary file beside `path`, filled by `write` and on disk; removed at the end if still there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def disk_error(error: OSError, path: Path) -> Exception:
    """`error` as a CheckError when the disk is full or the place cannot be written; otherwise `error` itself."""
    if error.errno in _FULL:
        return CheckError("the disk is full", where=str(path), fix="free some space and run the same command again")
    if error.errno in _REFUSED:
        return CheckError("cannot be written", where=str(path), fix="check the permissions or choose another directory")
    if error.errno in _MISPLACED:
        what = f"no file can be written here ({error.strerror})"
        return CheckError(what, where=str(path), fix="choose another directory")
    return error


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all."""
    write_whole(path, lambda file: file.write(content))


def write_text(path: Path, content: str) -> None:
    """Write `content` to `path` as UTF-8, whole or not at all."""
    write_bytes(path, content.encode("utf-8"))


def write_json(path: Path, document: Any) -> None:
    """Write `document` as indented JSON, whole or not at all. NaN and infinity are refused with ValueError."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The document in `path`, all its numbers finite as floats. Raises CheckError naming the file when it is missing or
    not JSON.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
    except FileNotFoundError as error:
        raise CheckError("no such file", where=str(path)) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, a number that is none
        raise CheckError(f"not a JSON document ({error})", where=str(path)) from error
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def canonical_json(document: Any) -> str:
    """The one text form of `document` that hashes are taken of: sorted keys, no blanks, no NaN."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(document: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `document`."""
    return hashlib.sha256(canonical_json(document).encode("ascii")).hexdigest()


def digest_of_file(path: Path) -> str:
    """SHA-256 (hex) of the bytes of `path`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
