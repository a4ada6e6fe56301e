"""A study: table x scale x seeds, planned in `study.json`.

It grows by variants and seeds. When its base, its corpus or the code's semantics change, what that changes is planned
anew; the runs before stay where they are, as superseded, and `study.json` keeps what the study was.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ablations import growth
from ablations.growth import PLAN, RUNS, SEARCH
from ablations.selection import Selection
from repro import SEMANTICS_VERSION, __version__
from repro.errors import CheckError, UsageError
from repro.files import disk_error, read_json, write_json
from repro.runs.directory import RunDirectory
from repro.shapes import Shape, check_shape

__all__ = ["PLAN", "RUNS", "SEARCH", "SEARCH_WARNING", "STUDIES", "Data", "Study", "StudyRun", "open_study"]
__all__ += ["default_path", "study_path"]

STUDIES = Path("studies")
"""Where studies live unless a command says otherwise, relative to the working directory."""

ARCHIVE = "records.tar.xz"
"""The records of a published study, see `ablations.published`."""

_SCHEMA = 1
_SHAPE: Shape = {
    "table": str,
    "scale": str,
    "base": dict,
    "seeds": [int],
    "set": [str],
    "data": {"corpus": str, "directory": str, "digest": str, "vocabulary_size": int},
    "variants": [{"id": str, "group": str, "title": str, "changes": dict}],
    "runs": [
        {
            "id": str,
            "variant": str,
            "seed": int,
            "hash": str,
            "directory": str,
            "same_as?": (str, type(None)),
            "replaces?": str,
            "why?": str,
        },
    ],
    "kind?": str,
    "search?": {"objective": str, "grace": int, "reduction": int, "seed": int, "space": dict},
    "superseded?": [{"id": str, "variant": str, "seed": int, "hash": str, "directory": str, "why": str, "since": str}],
    "history?": [{"until": str, "why": str, "set": list, "semantics": int}],
}
SEARCH_WARNING = "search: rows trained on unequal budgets, not comparable at equal budget"


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRun:
    """One planned run: a variant with a seed."""

    id: str
    variant: str
    seed: int
    hash: str
    path: Path
    same_as: str | None = None
    """The id of the run that this one is: its variant comes to the same configuration, so it is trained once."""
    replaces: str | None = None
    """The id of the run of this variant and seed that the study had before, under another configuration."""
    why: str = ""
    """What changed between the two, or, of a superseded run, what made it so: "train.budget 1500 -> 2000"."""

    @property
    def directory(self) -> RunDirectory:
        """The run's records."""
        return RunDirectory(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The prepared corpus that a study is about."""

    corpus: str
    directory: Path
    digest: str
    vocabulary_size: int

    def document(self) -> dict[str, Any]:
        """As `study.json` has it."""
        return dataclasses.asdict(self) | {"directory": str(self.directory)}


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study as its `study.json` has it."""

    path: Path
    document: dict[str, Any]

    @staticmethod
    def load(path: Path) -> Study:
        """The study in the directory `path`. Raises CheckError when there is none or it cannot be read."""
        plan = path / PLAN
        if not plan.is_file():
            raise CheckError("no study here", where=str(path), fix="name a directory made by `ablate run`")
        document = read_json(plan)
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise CheckError("not a study of this version", where=str(plan), fix="use the version that made it")
        check_shape(document, _SHAPE, plan, fix="restore the file")
        known = {entry["id"] for entry in document["variants"]}
        strange = [entry["id"] for entry in document["runs"] if entry["variant"] not in known]
        if strange:
            raise CheckError(f"the run {strange[0]} is of no planned row", where=str(plan), fix="restore the file")
        return Study(path=path, document=document)

    @property
    def name(self) -> str:
        """The name of its directory, so that a moved study has its new name."""
        return self.path.resolve().name

    @property
    def table(self) -> str:
        """The table's name, parts joined by "+"."""
        return str(self.document["table"])

    @property
    def scale(self) -> str:
        """The scale's name."""
        return str(self.document["scale"])

    @property
    def data(self) -> Data:
        """The prepared corpus."""
        data = self.document["data"]
        return Data(
            corpus=data["corpus"],
            directory=Path(data["directory"]),
            digest=data["digest"],
            vocabulary_size=data["vocabulary_size"],
        )

    @property
    def searched(self) -> bool:
        """Whether the rows are samples of a space, trained on unequal budgets."""
        return self.document.get("kind") == SEARCH

    @property
    def planned(self) -> list[StudyRun]:
        """Every planned run in the plan's order, those that are another's included."""
        return [_run(self.path, entry) for entry in self.document["runs"]]

    @property
    def superseded(self) -> list[StudyRun]:
        """Runs of what the study was before its base, its corpus or the code changed. They are in no table."""
        return [_run(self.path, entry) for entry in self.document.get("superseded", [])]

    @property
    def runs(self) -> list[StudyRun]:
        """The runs that are trained, each directory once."""
        return [run for run in self.planned if run.same_as is None]


def _run(study: Path, entry: Mapping[str, Any]) -> StudyRun:
    return StudyRun(
        id=entry["id"],
        variant=entry["variant"],
        seed=entry["seed"],
        hash=entry["hash"],
        path=study / entry["directory"],
        same_as=entry.get("same_as"),
        replaces=entry.get("replaces"),
        why=entry.get("why", ""),
    )


def study_path(name: str) -> Path:
    """The study called `name`: a directory, or a name under `studies/`. Raises CheckError when there is neither."""
    for path in (Path(name), STUDIES / name):
        if (path / PLAN).is_file():
            return path
        if (path / ARCHIVE).is_file():
            fix = f"make a study of it: ablate unpack {shlex.quote(str(path))} STUDY"
            raise CheckError("a published study, without run directories", where=name, fix=fix)
    raise CheckError(
        "no study here", where=name, fix="name a directory made by `ablate run`, or a study under studies/"
    )


def default_path(selection: Selection) -> Path:
    """Where the study of a selection lives unless `--study` says otherwise."""
    parts = (selection.table, selection.scale.name, selection.profile)
    return STUDIES / "-".join(part for part in parts if part)


def open_study(path: Path, selection: Selection, seeds: Iterable[int], data: Data) -> tuple[Study, list[StudyRun]]:
    """The study in `path`, made, grown or renewed so that it holds the rows of `selection` with each of `seeds`; and
    these runs.

    The directories of these runs exist afterwards. Of two processes that call at once one creates and the other
    adopts. Where base, corpus or semantics are not as before, the runs that this changes are superseded: they stay on
    disk and in `study.json` with the reason, and the new ones tell which they replace. Raises CheckError (exit code 3)
    when `path` holds a study of another table or scale.
    """
    selection = selection.with_data(data.digest)
    wanted = {config.run_id(): config for seed in seeds for config in (row.with_seed(seed) for row in selection.rows)}
    with _locked(path):
        if (path / PLAN).is_file():
            study = Study.load(path)
            _check_same_table(study, selection)
            before = json.dumps(study.document)
            growth.renew(study.document, path, selection, wanted.values(), data.document())
        else:
            study, before = Study(path=path, document=_new(path, selection, data)), ""
        growth.grow(study.document, selection, wanted.values())
        if json.dumps(study.document) != before:
            write_json(path / PLAN, study.document)
    asked = [run for run in study.planned if run.id in wanted]
    trained = {run.path: run.variant for run in reversed(study.runs)}
    for run in asked:
        config = dataclasses.replace(wanted[run.id], variant=trained[run.path])
        new = run.replaces is not None and not run.directory.made
        shorter = growth.shorter_run(study.document, path, config) if new else None
        RunDirectory.create(path / RUNS, config, data.directory, continues=shorter)
    return study, asked


def _new(path: Path, selection: Selection, data: Data) -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "study": path.resolve().name,
        "table": selection.table,
        "scale": selection.scale.name,
        "seeds": [],
        "profile": selection.profile,
        "set": list(selection.settings),
        "data": data.document(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "semantics": SEMANTICS_VERSION,
        "base": selection.base.document(),
        "variants": [],
        "runs": [],
    } | ({"kind": SEARCH, "search": dict(selection.search)} if selection.search is not None else {})


def _check_same_table(study: Study, selection: Selection) -> None:
    """Raise CheckError when `study` is of another table or scale, or a search by other rules: nothing would stay."""
    asked: dict[str, Any] = {"table": selection.table, "scale": selection.scale.name}
    theirs = {name: study.document[name] for name in asked}
    if selection.search is not None:
        rules = ("objective", "grace", "reduction")
        asked |= {name: selection.search[name] for name in rules}
        theirs |= {name: study.document.get("search", {}).get(name) for name in rules}
    faults = [f"{name} = {theirs[name]} instead of {value}" for name, value in asked.items() if theirs[name] != value]
    if faults:
        raise CheckError(
            "the study belongs to another configuration: " + "; ".join(faults),
            where=str(study.path),
            fix="choose another directory with --study",
        )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone in making or growing the study in `path`, among all processes that share the disk."""
    lock = path / ".lock"
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if isinstance(error, FileExistsError | NotADirectoryError):
            raise UsageError("not a directory", where=str(path), fix="choose another with --study") from error
        raise disk_error(error, path) from error
    try:
        # Some network file systems know no locks. Two processes that start one study there at the same moment then
        # both write its plan, each whole; whichever comes second is checked against it on its next call.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
