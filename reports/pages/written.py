"""What a report wrote, so that the next one can take away what it no longer has; nobody else's file is touched."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from repro.errors import CheckError
from repro.files import digest_of_file, read_json, write_bytes, write_json, write_text

INDEX = "files.json"
"""The list of a report's files with their SHA-256, in its directory."""


class Written:
    """The files of one report, as they are written into `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._before = self._listed()
        self._now: set[str] = set()

    def write(self, name: str, content: bytes | str) -> None:
        """Write one file, whole or not at all; `name` is relative to the directory."""
        path = self.directory / name
        if isinstance(content, str):
            write_text(path, content)
        else:
            write_bytes(path, content)
        self._now.add(name)

    def note(self, names: Iterable[str]) -> None:
        """Count files that another wrote here as the report's."""
        self._now |= set(names)

    def finish(self) -> None:
        """Remove what the report before wrote and this one did not, and write the new list."""
        for name in sorted(self._before - self._now):
            (self.directory / name).unlink(missing_ok=True)
        listed = {name: digest_of_file(self.directory / name) for name in sorted(self._now)}
        write_json(self.directory / INDEX, {"schema": 1, "files": listed})

    def _listed(self) -> set[str]:
        """What the report before wrote; nothing where its list is missing or damaged."""
        try:
            document = read_json(self.directory / INDEX)
        except CheckError:
            return set()
        files = document.get("files") if isinstance(document, dict) else None
        return {name for name in files if _inside(name)} if isinstance(files, dict) else set()


def _inside(name: str) -> bool:
    """Whether a listed name can only be a file of ours: relative, and leading nowhere else."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
