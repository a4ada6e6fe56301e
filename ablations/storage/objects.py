"""Named contents under a URL: s3://bucket/prefix, gs://bucket/prefix, file:///path, all that fsspec knows.

Only whole contents are written and read, by their full names. Nothing is listed, so no cache of listings misleads.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from repro.errors import CheckError, UsageError
from repro.files import write_whole

_TRIES = 4
_PAUSE_SECONDS = 2.0
_INSTALL = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}


class StorageError(CheckError):
    """The store fails, or has not what it should have: another try may do better."""


class Objects:
    """The contents under `url`. Every call tries some times before it raises StorageError, in one line."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL of no known kind, CheckError where the package for its kind is missing."""
        import fsspec

        self.url = url.rstrip("/")
        kind, separator, rest = self.url.partition("://")
        if not separator or not rest.strip("/"):
            raise UsageError("is no URL", where=f"--storage {url}", fix="s3://BUCKET/PREFIX, gs://... or file:///PATH")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            fix = f"pip install {_INSTALL.get(kind, kind)} here and on all nodes"
            raise CheckError(f"no package for {kind}:// is installed", where=f"--storage {url}", fix=fix) from error
        except ValueError as error:
            fix = "s3://BUCKET/PREFIX, gs://... or file:///PATH"
            raise UsageError(f"{kind}:// is no kind of storage", where=f"--storage {url}", fix=fix) from error
        self._local = Path(self._root) if kind in ("file", "local") else None

    def read(self, name: str) -> bytes | None:
        """What is called `name`, or None."""
        for number in range(_TRIES):
            with self._tried(number):
                try:
                    return bytes(self._fs.cat_file(self._path(name)))
                except FileNotFoundError:
                    return None
        raise AssertionError("a last try returns or raises")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """The document called `name`; None when there is none. Raises StorageError when it is no document."""
        content = self.read(name)
        if content is None:
            return None
        try:
            return dict(json.loads(content))
        except (ValueError, TypeError) as error:
            raise StorageError("is not a document", where=f"{self.url}/{name}", fix="choose another prefix") from error

    def write(self, name: str, content: bytes) -> None:
        """Make `content` what is called `name`: a reader finds all of it or what was there before."""
        for number in range(_TRIES):
            with self._tried(number):
                if self._local is not None:
                    write_whole(self._local / name, lambda file: file.write(content))
                else:
                    self._fs.pipe_file(self._path(name), content)
                return

    def write_json(self, name: str, document: dict[str, Any]) -> None:
        """Make `document` what is called `name`."""
        self.write(name, json.dumps(document, allow_nan=False).encode())

    def send(self, path: Path, name: str) -> None:
        """Make the content of the file `path` what is called `name`. FileNotFoundError when it is gone."""
        for number in range(_TRIES):
            path.stat()
            with self._tried(number):
                if self._local is not None:
                    with path.open("rb") as source:
                        write_whole(self._local / name, lambda file: shutil.copyfileobj(source, file))
                else:
                    self._fs.put_file(str(path), self._path(name))
                return

    def fetch(self, name: str, path: Path) -> bool:
        """Write what is called `name` to the file `path`; False when there is nothing."""
        for number in range(_TRIES):
            with self._tried(number):
                try:
                    self._fs.get_file(self._path(name), str(path))
                    return True
                except FileNotFoundError:
                    return False
        raise AssertionError("a last try returns or raises")

    def remove(self, name: str) -> None:
        """Let nothing be called `name`."""
        for number in range(_TRIES):
            with self._tried(number), suppress(FileNotFoundError):
                self._fs.rm_file(self._path(name))
            return

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _tried(self, number: int) -> Iterator[None]:
        """Swallow what goes wrong, after a pause, unless this is the last try: the loop around goes on."""
        try:
            yield
        except Exception as error:  # each kind of store has kinds of errors of its own
            if number == _TRIES - 1 or isinstance(error, PermissionError):
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                told = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
                fix = "check the address, the credentials and the network, here and on the nodes"
                raise StorageError(f"the storage fails ({told})", where=self.url, fix=fix) from error
            time.sleep(_PAUSE_SECONDS * (number + 1))
