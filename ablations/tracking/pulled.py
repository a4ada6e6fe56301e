"""What comes from a server is looked at before it becomes a study: names of directories, hashes, forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ablations.study import RUNS, Study
from ablations.tracking.records import StudyRecord
from repro.errors import CheckError, UserError
from repro.files import read_json
from repro.runs.directory import RunDirectory

AGAIN = "run `ablate sync --full` where the study is"
PLAIN = re.compile(r"[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,254}")
"""A name that stays in its directory."""


def check_plan(study: Study, id: str, *, where: str) -> None:
    """Raise CheckError unless `study` is the one called `id` and its runs lie in its own `runs/`."""
    if StudyRecord(study=study).id != id:
        raise CheckError("the plan of another study", where=where, fix=AGAIN)
    for entry in (*study.document["runs"], *study.document.get("superseded", [])):
        folder, _, name = entry["directory"].partition("/")
        if folder != RUNS or not PLAIN.fullmatch(name):
            told = repr(entry["directory"])[:100]
            raise CheckError(f"a run would lie outside of the study, in {told}", where=where, fix="do not trust it")


@contextmanager
def rewording(where: str) -> Iterator[None]:
    """Complaints about files that are not in their place yet name where they came from."""
    try:
        yield
    except UserError as error:
        raise CheckError(f"damaged: {error.what}", where=where, fix=AGAIN) from error


def check_run(run: RunDirectory, hash: str, *, where: str) -> None:
    """Raise CheckError unless the records in `run` are readable and those of the run with `hash`, recomputed."""
    with rewording(where):
        if run.hash() != hash:
            raise CheckError("its configuration is not the planned one")
        shorter = read_json(run.path / "config.json").get("continues")
        if shorter is not None and not (
            isinstance(shorter, str) and shorter.startswith("../") and PLAIN.fullmatch(shorter[3:])
        ):
            raise CheckError("it would go on from outside of the study")
        for path in run.path.rglob("*.json"):
            read_json(path)
        run.status()
        run.environment()
        run.metrics()
        if (run.result() or {"hash": hash}).get("hash", hash) != hash:
            raise CheckError("its result is of another configuration")
        try:
            run.hypotheses("valid")
            run.hypotheses("test")
        except UnicodeDecodeError as error:
            raise CheckError("its translations are not UTF-8") from error


def merged(here: Study, theirs: Study) -> dict[str, Any]:
    """The plan of the two that has more runs. Raises CheckError when they are two studies, or both have grown."""
    if StudyRecord(study=here).id != StudyRecord(study=theirs).id:
        raise CheckError("holds another study", where=str(here.path), fix="choose another directory with --study")
    ours, other = _ids(here), _ids(theirs)
    if other <= ours:
        return here.document
    if not ours <= other:
        what = f"has grown differently: {min(ours - other)} is only here, {min(other - ours)} only there"
        raise CheckError(what, where=str(here.path), fix="choose another directory with --study")
    same_data = here.data.digest == theirs.data.digest and here.data.directory.is_dir()
    return theirs.document | ({"data": here.document["data"]} if same_data else {})


def _ids(study: Study) -> set[str]:
    return {run.id for run in (*study.planned, *study.superseded)}
