"""A directory in the store: its files by the digests of their contents, and one list of them, written last.

Whoever reads the list finds all that it names, so no reader ever sees a result without the scores and weights that it
tells of. Files are sent once for each content. Names that begin with a dot are a process's own and stay where they are.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.storage.objects import Objects, StorageError
from repro.files import digest_of_file

LIST = "list.json"
CLAIMS = "attempts"
RESULT = "result.json"
"""Of a run's files, that which is written last and put into place last."""
CHECKPOINTS = "checkpoints"

_SEEN = ".stored.json"
"""The list that a directory was last brought to, in it."""
_LOOKS = 20
_PAUSE_SECONDS = 0.5


@dataclass(kw_only=True)
class Tree:
    """The directory called `name` in the store, and its copy `local` here."""

    objects: Objects
    name: str
    local: Path
    _digests: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)
    """By file: its size and time of change when its digest was taken."""

    def listed(self) -> dict[str, Any] | None:
        """The list as it is in the store now: "files" by name, "attempt" and "step" of a run."""
        return self.objects.read_json(f"{self.name}/{LIST}")

    def push(self, **about: Any) -> None:
        """Bring the store to what is here. `about` stands in the list."""
        before = self.listed() or {"files": {}}
        there = {entry["digest"] for entry in before["files"].values()}
        for _ in range(_LOOKS):
            try:
                files = self._scan()
                for name, entry in files.items():
                    if entry["digest"] not in there:
                        self.objects.send(self.local / name, self._content(entry))
                        there.add(entry["digest"])
                break
            except FileNotFoundError:  # an old checkpoint was removed meanwhile
                continue
        else:
            raise StorageError("changes faster than it can be stored", where=str(self.local))
        document = {"schema": 1, "files": files, "time": time.time()} | about
        if {key: before.get(key) for key in about} == about and before["files"] == files:
            return
        self.objects.write_json(f"{self.name}/{LIST}", document)
        kept = {entry["digest"] for entry in files.values()}
        for digest in {entry["digest"] for entry in before["files"].values()} - kept:
            self.objects.remove(self._content({"digest": digest}))
        self._note(document)

    def pull(self, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Any] | None:
        """Bring what is here to the store, files that are `wanted` by their names; the list, None when there is none.

        Raises StorageError when contents that are listed are gone, or are others.
        """
        for _ in range(_LOOKS):
            document = self.listed()
            if document is None:
                return None
            if self._bring(document["files"], wanted):
                kept = {name: entry for name, entry in self._noted().get("files", {}).items() if not wanted(name)}
                brought = {name: entry for name, entry in document["files"].items() if wanted(name)}
                self._note(document | {"files": kept | brought})
                return document
            time.sleep(_PAUSE_SECONDS)
        raise StorageError("the storage has lost files", where=f"{self.objects.url}/{self.name}")

    def _bring(self, files: dict[str, dict[str, Any]], wanted: Callable[[str], bool]) -> bool:
        """Whether all was there: the list may have been replaced since it was read."""
        seen = self._noted().get("files", {})
        for name in sorted(filter(wanted, files), key=lambda name: (name == RESULT, name)):
            entry, path = files[name], self.local / name
            if path.exists() and seen.get(name, {}).get("digest") == entry["digest"]:
                if name.startswith(CLAIMS) and seen[name] != entry:
                    os.utime(path)  # a sign of life that its owner gave, by the clock of this disk
                continue
            if not self._fetch(entry, path):
                return False
        for name in seen:
            if name not in files and wanted(name):
                self._drop(self.local / name)
        return True

    def _fetch(self, entry: dict[str, Any], path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.pulled")
        try:
            if not self.objects.fetch(self._content(entry), temporary) or digest_of_file(temporary) != entry["digest"]:
                return False
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _drop(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()  # if that was the last one

    def _scan(self) -> dict[str, dict[str, Any]]:
        """The files here. One that is written last is looked for first: what it tells of is then there."""
        first = [self.local / RESULT] if (self.local / RESULT).exists() else []
        found = {}
        for path in [*first, *sorted(self.local.rglob("*"))]:
            place = path.relative_to(self.local)
            if any(part.startswith(".") for part in place.parts) or not path.is_file():
                continue
            if path.name == RESULT and not first:
                continue
            stat = path.stat()
            stamp = (stat.st_size, stat.st_mtime_ns)
            name = place.as_posix()
            known = self._digests.get(name)
            digest = known[1] if known is not None and known[0] == stamp else digest_of_file(path)
            self._digests[name] = (stamp, digest)
            found[name] = {"digest": digest, "size": stat.st_size}
            if place.parts[0] == CLAIMS:
                found[name]["beat"] = stat.st_mtime_ns
        return found

    def _content(self, entry: dict[str, Any]) -> str:
        return f"{self.name}/contents/{entry['digest']}"

    def _note(self, document: dict[str, Any]) -> None:
        self.local.mkdir(parents=True, exist_ok=True)
        temporary = self.local / f"{_SEEN}.new"
        temporary.write_text(json.dumps(document))
        temporary.replace(self.local / _SEEN)

    def _noted(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.local / _SEEN).read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def forget(self) -> None:
        """Remove the copy here."""
        shutil.rmtree(self.local, ignore_errors=True)
