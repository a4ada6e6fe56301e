"""Records: what a folder remembers of each job, written before the job is, and what its tasks note of themselves."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from repro.errors import CheckError
from repro.files import create_bytes, read_json, write_json
from slurm.request import Request
from slurm.site import Site

_SUFFIX = ".job.json"

End = Literal["running", "again", "ended", "failed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One job for SLURM: the numbers `first` to `first + tasks - 1` of a submission. All of it is frozen, but `job`."""

    token: str
    """Of the submission."""
    ticket: str
    """Of this job alone: ends its name and is its comment, so that it can be found."""
    first: int
    tasks: int
    request: Request
    site: Site
    created: str
    """UTC, as ISO 8601 has it."""
    job: str | None = None
    """SLURM's number; None until sbatch has told it."""
    cancelled: bool = False
    resubmissions: int = 0
    """How many jobs did this one's task before it."""

    @property
    def path(self) -> Path:
        """The file that holds it."""
        return self.request.folder / f"{self.ticket}{_SUFFIX}"

    def script(self) -> Path:
        """The file that sbatch is given."""
        return self.request.folder / f"{self.ticket}.sh"

    def log(self, index: int) -> Path:
        """Where SLURM writes what the task at array index `index` prints."""
        return self.request.folder / f"{self.ticket}{self._of(index)}.log"

    def note(self, index: int) -> Path:
        """Where that task notes how it fares."""
        return self.request.folder / f"{self.ticket}{self._of(index)}.note.json"

    def noted(self) -> str | None:
        """The job's number, if one of its tasks has noted it."""
        notes = (Note.load(self.note(index)) for index in range(self.tasks))
        return next((note.job for note in notes if note is not None), None)

    def _of(self, index: int) -> str:
        return f".{index}" if self.request.mode == "array" else ""

    def save(self) -> None:
        """Write it, whole or not at all."""
        write_json(self.path, self._document())

    def create(self) -> bool:
        """Write it unless it is there already."""
        text = json.dumps(self._document(), indent=2, ensure_ascii=False) + "\n"
        return create_bytes(self.path, text.encode())

    def remove(self) -> None:
        """Forget a job that never was."""
        self.path.unlink(missing_ok=True)
        self.script().unlink(missing_ok=True)

    def _document(self) -> dict[str, Any]:
        told = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return told | {"request": self.request.document(), "site": self.site.model_dump(mode="json")}

    @classmethod
    def load(cls, path: Path) -> Record:
        """The record in `path`, its folder that in which it lies now. Raises CheckError when it is none."""
        document = read_json(path)
        try:
            request = Request.of(document["request"] | {"folder": str(path.parent)})
            site = Site.model_validate(document["site"])
            return cls(**document | {"request": request, "site": site})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckError("is no record of a job", where=str(path), fix="remove it") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """How a task says it fares, for when SLURM does not know it any more."""

    job: str
    state: End
    code: int | None = None
    """The command's exit code; below zero the signal that ended it."""
    restart: int = 0

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        write_json(path, dataclasses.asdict(self))

    @classmethod
    def load(cls, path: Path) -> Note | None:
        """The note in `path`, if there is one that can be read."""
        try:
            return cls(**read_json(path))
        except (CheckError, TypeError):
            return None


def now() -> str:
    """The time in UTC, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def checked(token: str) -> str:
    """`token`, if it may stand in names of files and jobs. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", token):
        raise ValueError(f"{token!r} is no token")
    return token


def records(folder: Path, token: str | None = None, damaged: list[str] | None = None) -> list[Record]:
    """The jobs that `folder` records, those of `token` or all, in the order of their tasks.

    A damaged record is told of in `damaged`; without that it raises CheckError.
    """
    found = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        try:
            found.append(Record.load(path))
        except CheckError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
    mine = [record for record in found if token in {None, record.token}]
    return sorted(mine, key=lambda record: (record.token, record.resubmissions, record.first))


@contextmanager
def locked(folder: Path, token: str) -> Iterator[None]:
    """Alone with the records of `token`: others wait. The lock ends with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{token}.lock").open("wb") as file:
        with suppress(OSError):  # Without locks in a file system, that one alone can create a record is what remains.
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
