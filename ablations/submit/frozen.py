"""What a submission is to do, frozen: `STUDY/jobs/<token>.work.json`.

It lists run directories, whose configurations are theirs. A study that grows or changes later changes no such list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ablations.study import StudyRun
from repro.config.schema import from_document
from repro.errors import CheckError, UsageError
from repro.files import read_json, write_json
from repro.runs.directory import RunDirectory
from repro.runs.execute import AfterDeath
from repro.shapes import Shape, check_shape

JOBS = "jobs"
"""The directory of submissions, in a study: lists, records, scripts, logs."""
Mode = Literal["array", "ray", "ray-job"]
"""A SLURM array, a Ray inside a SLURM job, or a job on a Ray that runs anyway."""

_SUFFIX = ".work.json"
_SCHEMA = 1
_SHAPE: Shape = {
    "schema": int,
    "token": str,
    "mode": str,
    "code": str,
    "runs": [str],
    "options": dict,
    "command": str,
    "request": dict,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How the runs are to be run."""

    wants_gpu: bool = False
    """Whether the scale is meant for a GPU."""
    cpus_per_run: float = 1.0
    gpus_per_run: float | None = None
    processes_per_run: int = 1
    """On each node."""
    at_once: int | None = None
    after_death: AfterDeath = "resume"


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """One submission's work."""

    study: Path
    token: str
    """Unique: names the submission to the scheduler, too."""
    mode: Mode
    code: str
    """The snapshot, relative to the study."""
    runs: tuple[str, ...]
    """Run directories, relative to the study. The task of number N begins at place N."""
    options: Options = Options()
    command: str = ""
    """What the user said, to be said again."""
    request: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What the scheduler was asked for, so that a submission that was cut short can be completed."""

    @staticmethod
    def load(study: Path, token: str) -> Frozen:
        """The submission `token` of the study in `study`. Raises CheckError when there is none."""
        path = _path(study, token)
        if not path.is_file():
            raise CheckError("no such submission", where=str(path), fix="submit again")
        return Frozen.read(study, read_json(path), path)

    @staticmethod
    def read(study: Path, document: Any, path: Path) -> Frozen:
        """The submission that `document`, found at `path`, tells of. Raises CheckError when it is none."""
        check_shape(document, _SHAPE, path, fix="submit again")
        if document["schema"] != _SCHEMA:
            raise CheckError("is of another version", where=str(path), fix="use the version that made it")
        try:
            options = from_document(Options, document["options"])
        except UsageError as error:
            raise CheckError(str(error), where=str(path), fix="submit again") from error
        return Frozen(
            study=study,
            token=document["token"],
            mode=document["mode"],
            code=document["code"],
            runs=tuple(document["runs"]),
            options=options,
            command=document["command"],
            request=document["request"],
        )

    def document(self) -> dict[str, Any]:
        """All of it, but where its study is."""
        document = {"schema": _SCHEMA} | dataclasses.asdict(self)
        document.pop("study")
        return document

    def write(self) -> None:
        """Keep it in the study."""
        write_json(_path(self.study, self.token), self.document())

    def forget(self) -> None:
        """Remove it: it never came to a queue."""
        _path(self.study, self.token).unlink(missing_ok=True)

    def run(self, number: int) -> StudyRun:
        """The run at place `number` of the list. Raises CheckError when its directory is gone or damaged."""
        return _run(self.study / self.runs[number])

    def listed(self) -> list[StudyRun]:
        """The runs in the list's order, without those whose directories are gone or damaged: these fail alone."""
        found = []
        for number in range(len(self.runs)):
            with suppress(CheckError):
                found.append(self.run(number))
        return found


def submissions(study: Path) -> list[Frozen]:
    """Every submission of the study in `study`, oldest first; damaged ones are left out."""
    paths = sorted((study / JOBS).glob(f"*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns)
    found = []
    for path in paths:
        try:
            found.append(Frozen.load(study, path.name.removesuffix(_SUFFIX)))
        except CheckError:
            continue  # its jobs, if there are any, say so when they begin
    return found


def _path(study: Path, token: str) -> Path:
    return study / JOBS / f"{token}{_SUFFIX}"


def _run(path: Path) -> StudyRun:
    directory = RunDirectory(path)
    config = directory.config()
    return StudyRun(id=directory.run_id(), variant=config.variant, seed=config.seed, hash=directory.hash(), path=path)
