"""The records of a study that are published: all but weights of runs with an outcome, the plan of the others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from ablations.published.archive import AGAIN, BENCH, PROBES
from ablations.published.discreet import Discreet
from ablations.study import PLAN, RUNS, Study, StudyRun
from ablations.tracking.pulled import check_plan, check_run
from ablations.tracking.records import StudyRecord
from repro.errors import CheckError
from repro.files import read_json, write_bytes
from repro.runs.attempts import claims
from repro.runs.directory import RunDirectory

OUTCOMES = ("done", "diverged", "failed")
"""States of which a run's records are published. One that stopped has no outcome, and without weights no use."""
_NAMED = 3
_AS_IT_IS = ("result.json", "metrics.jsonl", "hypotheses/test.txt")
"""Nothing in these files names a machine. Translations of the validation side, which no report reads, are left out."""


def gathered(path: Path) -> dict[str, bytes]:
    """The records of the study in the directory `path` by their names in it, as strangers may see them.

    Raises CheckError when somebody works on one of its runs, when none is finished, or when records are damaged.
    """
    study = Study.load(path)
    runs = [run for run in study.runs if run.directory.made]
    states = {run.id: run.directory.status().state for run in runs}
    _check_at_rest([run for run in runs if states[run.id] == "running"], path)
    if "done" not in states.values():
        raise CheckError("no run is finished: there is nothing to publish", where=str(path), fix="let one finish first")
    ended = [run for run in runs if states[run.id] in OUTCOMES]
    for run in ended:
        check_run(run.directory, run.hash, where=str(run.path))
    told = Discreet((host for run in ended for host in _hosts(run)), study.document["data"])
    files = {PLAN: _json(told.plan(study.document))}
    for run in runs:
        files |= {f"{RUNS}/{run.path.name}/{name}": content for name, content in _files(run, run in ended, told)}
    for found in sorted([path / BENCH, *(path / PROBES).glob("*.json")]):
        if found.is_file():
            files[found.relative_to(path).as_posix()] = found.read_bytes()
    return files


def place(files: Mapping[str, bytes], study: Path, data: Path) -> None:
    """Write records into the directory `study`, whose corpus is, or will be, in the directory `data`."""
    for name, content in files.items():
        write_bytes(study / name, _at_home(content, name, data))


def _at_home(content: bytes, name: str, data: Path) -> bytes:
    """A record with the corpus where it is here. What is no document stays, to be refused by `check`."""
    if name != PLAN and not name.endswith("/config.json"):
        return content
    try:
        document = json.loads(content)
        if name == PLAN:
            document["data"]["directory"] = str(data)
        else:
            document["data_directory"] = str(data)
        return _json(document)
    except (ValueError, TypeError, KeyError, RecursionError):
        return content


def check(study: Path, names: Collection[str], where: str) -> Study:
    """The study that `place` wrote of the records `names`. Raises CheckError naming the archive `where` for one that is
    damaged, of another run than planned, or of none.
    """
    try:
        found = Study.load(study)
        check_plan(found, StudyRecord(study=found).id, where=where)
        there = {name.split("/")[1] for name in names if name.startswith(f"{RUNS}/")}
        planned = {run.path.name: run for run in found.runs}
        if strange := sorted(there - planned.keys()):
            raise CheckError(f"holds the run {strange[0]!r}, which is not planned", where=where)
        for name in names:
            _check_text(study / name)
        for name in sorted(there):
            check_run(RunDirectory(study / RUNS / name), planned[name].hash, where=f"{where}, run {name}")
    except CheckError as error:
        raise CheckError(error.what, where=error.where.replace(str(study), where), fix=AGAIN) from error
    return found


def _check_text(path: Path) -> None:
    """Raise CheckError for a document that cannot be written again: "\\ud800" is in JSON, but is no text."""
    if path.suffix == ".json":
        try:
            _json(read_json(path))
        except UnicodeEncodeError as error:
            raise CheckError(f"not a JSON document ({error.reason})", where=str(path)) from error


def _check_at_rest(working: list[StudyRun], path: Path) -> None:
    if working:
        told = ", ".join(f"{run.variant} seed {run.seed}" for run in working[:_NAMED])
        told += f" and {len(working) - _NAMED} more" if len(working) > _NAMED else ""
        fix = "wait for them, or let them stop: a stopped run is published as not done"
        raise CheckError(f"somebody works on {told}", where=str(path), fix=fix)


def _hosts(run: StudyRun) -> Iterator[str]:
    """The hosts that the records of `run` name."""
    yield str((run.directory.environment() or {}).get("host") or "")
    yield from (claim.owner.host for claim in claims(run.directory) if claim.owner is not None)
    yield run.directory.status().host


def _files(run: StudyRun, ended: bool, told: Discreet) -> Iterator[tuple[str, bytes]]:
    """The records of a run, whole ones by their names in its directory."""
    yield "config.json", _json(told.config(read_json(run.path / "config.json")))
    if not ended:
        return
    for name, tell in (("environment.json", told.environment), ("status.json", told.status)):
        if (run.path / name).is_file():
            yield name, _json(tell(read_json(run.path / name)))
    for claim in claims(run.directory):
        yield f"attempts/{claim.path.name}", _json(told.claim(read_json(claim.path)))
    for name in _AS_IT_IS:
        if (run.path / name).is_file():
            yield name, (run.path / name).read_bytes()


def _json(document: Any) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
