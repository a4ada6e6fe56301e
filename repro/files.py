"""Files that are written whole or not at all, canonical JSON, and digests."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from repro.errors import CheckError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk and rename it into place.

    A reader sees the old content or the new, never a part. Raises CheckError when the disk is full or
    refuses to be written; the temporary file is removed in every case.
    """
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(temporary)


def disk_error(error: OSError, path: Path) -> Exception:
    """`error` as a CheckError when the disk is full or may not be written; otherwise `error` itself."""
    if error.errno in _FULL:
        return CheckError("the disk is full", where=str(path), fix="free some space and run the same command again")
    if error.errno in _REFUSED:
        return CheckError("cannot be written", where=str(path), fix="check the permissions or choose another directory")
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
    """The document in `path`. Raises CheckError naming the file when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckError("no such file", where=str(path)) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckError(f"not a JSON document ({error})", where=str(path)) from error


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
