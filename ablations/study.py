"""A study: table x scale x seeds, frozen in `study.json`. It may grow by variants and seeds, and in nothing else."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ablations.selection import Selection
from ablations.tables import variants_of
from repro import SEMANTICS_VERSION, __version__
from repro.config import RunConfig
from repro.config.differences import differences
from repro.errors import CheckError, UsageError
from repro.files import disk_error, read_json, write_json
from repro.runs.directory import RunDirectory
from repro.shapes import Shape, check_shape

STUDIES = Path("studies")
"""Where studies live unless a command says otherwise, relative to the working directory."""

PLAN = "study.json"
RUNS = "runs"
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
        {"id": str, "variant": str, "seed": int, "hash": str, "directory": str, "same_as?": (str, type(None))},
    ],
}


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
    def planned(self) -> list[StudyRun]:
        """Every planned run in the plan's order, those that are another's included."""
        return [
            StudyRun(
                id=entry["id"],
                variant=entry["variant"],
                seed=entry["seed"],
                hash=entry["hash"],
                path=self.path / entry["directory"],
                same_as=entry.get("same_as"),
            )
            for entry in self.document["runs"]
        ]

    @property
    def runs(self) -> list[StudyRun]:
        """The runs that are trained, each directory once."""
        return [run for run in self.planned if run.same_as is None]


def study_path(name: str) -> Path:
    """The study called `name`: a directory, or a name under `studies/`. Raises CheckError when there is neither."""
    for path in (Path(name), STUDIES / name):
        if (path / PLAN).is_file():
            return path
    raise CheckError(
        "no study here", where=name, fix="name a directory made by `ablate run`, or a study under studies/"
    )


def default_path(selection: Selection) -> Path:
    """Where the study of a selection lives unless `--study` says otherwise."""
    parts = (selection.table, selection.scale.name, selection.profile)
    return STUDIES / "-".join(part for part in parts if part)


def open_study(path: Path, selection: Selection, seeds: Iterable[int], data: Data) -> tuple[Study, list[StudyRun]]:
    """The study in `path`, made or grown so that it holds the rows of `selection` with each of `seeds`; and these runs.

    The directories of these runs exist afterwards. Of two processes that call at once one creates and the other
    adopts. Raises CheckError (exit code 3) when `path` holds a study of another table, scale, configuration, corpus or
    code-semantics version, naming what differs.
    """
    selection = selection.with_data(data.digest)
    wanted = {config.run_id(): config for seed in seeds for config in (row.with_seed(seed) for row in selection.rows)}
    with _locked(path):
        if (path / PLAN).is_file():
            study = Study.load(path)
            _check(study, selection, wanted.values())
        else:
            study = Study(path=path, document=_new(path, selection, data))
        if _grow(study.document, selection, wanted.values()):
            write_json(path / PLAN, study.document)
    asked = [run for run in study.planned if run.id in wanted]
    for run in asked:
        trained = next(other for other in study.runs if other.path == run.path)
        config = dataclasses.replace(wanted[run.id], variant=trained.variant)
        RunDirectory.create(path / RUNS, config, data.directory)
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
        "data": {
            "corpus": data.corpus,
            "directory": str(data.directory),
            "digest": data.digest,
            "vocabulary_size": data.vocabulary_size,
        },
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "semantics": SEMANTICS_VERSION,
        "base": selection.base.document(),
        "variants": [],
        "runs": [],
    }


def _check(study: Study, selection: Selection, wanted: Iterable[RunConfig]) -> None:
    """Raise CheckError when `study` is not of this selection."""
    labels = {"table": selection.table, "scale": selection.scale.name, "semantics": SEMANTICS_VERSION}
    faults = [
        f"{name} = {study.document.get(name)} instead of {asked}"
        for name, asked in labels.items()
        if study.document.get(name) != asked
    ]
    if not faults:
        faults = differences(_base_of(study), selection.base)
    if not faults:
        hashes = {(run.variant, run.seed): run.hash for run in study.planned}
        faults = [
            f"variant {config.variant} has another definition now"
            for config in wanted
            if hashes.get((config.variant, config.seed), config.hash()) != config.hash()
        ]
    if faults:
        raise CheckError(
            "the study belongs to another configuration: " + "; ".join(dict.fromkeys(faults)),
            where=str(study.path),
            fix="choose another directory with --study",
        )


def _base_of(study: Study) -> RunConfig:
    """The base that `study` was frozen with."""
    try:
        return RunConfig.read(study.document["base"])
    except UsageError as error:
        what = f"its base cannot be read ({error})"
        raise CheckError(what, where=str(study.path / PLAN), fix="use the version that made it") from error


def _grow(document: dict[str, Any], selection: Selection, wanted: Iterable[RunConfig]) -> bool:
    """Add what is new to the plan; whether anything was.

    Variants stand in the table's order and runs by seed, then in the table's order, so that a grown study reads like
    one made at once and a study that was cut short holds whole tables.
    """
    variants = {entry["id"]: entry for entry in document["variants"]}
    runs = {entry["id"]: entry for entry in document["runs"]}
    before = len(variants) + len(runs)
    for row in selection.rows:
        of = row.variant
        plan = {"id": of.id, "group": of.group, "title": of.title, "changes": dict(row.changes)}
        variants.setdefault(of.id, plan)
    for config in wanted:
        id, hash = config.run_id(), config.hash()
        twin = next((entry for entry in runs.values() if entry["hash"] == hash and entry["id"] != id), None)
        entry = {"id": id, "variant": config.variant, "seed": config.seed, "hash": hash, "directory": f"{RUNS}/{id}"}
        if twin is not None:
            entry |= {"directory": twin["directory"], "same_as": twin.get("same_as", twin["id"])}
        runs.setdefault(id, entry)
    names = [variant.id for variant in variants_of(selection.table)]
    place = {id: index for index, id in enumerate(dict.fromkeys([*names, *variants]))}
    document["variants"] = sorted(variants.values(), key=lambda entry: place[entry["id"]])
    document["runs"] = sorted(runs.values(), key=lambda entry: (entry["seed"], place[entry["variant"]]))
    document["seeds"] = sorted({entry["seed"] for entry in runs.values()})
    return len(variants) + len(runs) > before


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
