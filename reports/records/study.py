"""A study as its directory tells it: the frozen plan in `study.json` and what became of every run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from repro.errors import CheckError, UsageError
from repro.files import read_json
from repro.runs.directory import RunDirectory
from repro.shapes import Shape, check_shape

State = Literal["done", "failed", "diverged", "stopped", "running", "missing", "unreadable"]
STATES: tuple[State, ...] = ("done", "failed", "diverged", "unreadable", "stopped", "running", "missing")
"""In the order in which summaries count them. missing: planned and not begun. unreadable: its records are damaged."""

_PLAN: Shape = {
    "table": str,
    "kind?": str,
    "scale": str,
    "seeds": [int],
    "set?": [str],
    "base?": dict,
    "data?": {"corpus?": str, "directory?": str, "digest?": str, "vocabulary_size?": int},
    "variants": [{"id": str, "group": str, "title": str, "changes": dict}],
    "runs": [
        {"id": str, "variant": str, "seed": int, "hash": str, "directory": str, "same_as?": (str, type(None))},
    ],
}
"""What a report needs of study.json."""

BASE = "base"
"""The variant that every other row is compared with."""

SEARCH = "search"
"""The kind of a study whose rows are samples of a space, trained on unequal budgets."""

BudgetAxis = Literal["steps", "tokens", "flops", "seconds"]
"""What training is counted in."""

_TRACKED = "tracking.json"
_TOTAL: Mapping[BudgetAxis, str] = {
    "steps": "steps",
    "tokens": "target_tokens",
    "flops": "train_flops",
    "seconds": "train_seconds",
}
_LOGGED: Mapping[BudgetAxis, str] = {
    "tokens": "train/target_tokens",
    "flops": "train/flops",
    "seconds": "time/train_seconds",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One row of the plan."""

    id: str
    group: str
    title: str
    changes: Mapping[str, Any]
    """Dotted configuration key to value: what is not as in base."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One variant with one seed: planned, and perhaps begun or done."""

    id: str
    variant: str
    seed: int
    hash: str
    path: Path
    same_as: str | None
    """The run of another row that comes to the same configuration, and whose directory this one shares."""
    state: State
    reason: str = ""
    """Why it failed, diverged, stopped or cannot be read; empty otherwise."""
    attempts: int = 0
    step: int = 0
    progress: float = 0.0
    """Share of the budget spent, 0 to 1."""
    settings: Mapping[str, Any]
    """The resolved configuration by dotted key; empty where the run has no directory."""
    result: Mapping[str, Any]
    """`result.json` of a finished run; empty otherwise."""
    environment: Mapping[str, Any]
    """Versions, host, processor, commit; empty before the run has begun."""
    study: str = ""
    """The name of the study's directory."""
    mlflow: str = ""
    """Its run in MLflow, as the last sync noted it; empty where it was not tracked."""

    @property
    def done(self) -> bool:
        """Finished, with a result."""
        return self.state == "done"

    def value(self, *path: str) -> Any:
        """What stands at `path` in the result; None where there is nothing."""
        return at(self.result, *path)

    def number(self, *path: str) -> float | None:
        """The finite number at `path` in the result, e.g. ("test", "bleu"); None where there is none."""
        value = self.value(*path)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return float(value)

    @cached_property
    def points(self) -> Mapping[str, list[tuple[int, float]]]:
        """The run's metrics: name to (step, value) by rising step; empty where they cannot be read."""
        series: dict[str, dict[int, float]] = {}
        try:
            lines = RunDirectory(self.path).metrics()
        except CheckError:
            return {}
        for line in lines:
            for name, value in line.metrics.items():
                if math.isfinite(value):
                    series.setdefault(name, {})[line.step] = float(value)
        return {name: sorted(values.items()) for name, values in series.items()}

    def total(self, axis: BudgetAxis) -> float | None:
        """What a finished run spent in all on `axis`."""
        return self.number(_TOTAL[axis])

    def spent(self, axis: BudgetAxis, steps: Sequence[int]) -> list[float | None]:
        """What had been spent on `axis` by each of `steps`: between two times that it was logged on a straight line.

        From nothing at 0 to the result's total at the end; None beyond the last that is known.
        """
        if axis == "steps":
            return [float(step) for step in steps]
        known = {0: 0.0, **dict(self.points.get(_LOGGED[axis], []))}
        last, whole = self.number("steps"), self.total(axis)
        if last is not None and whole is not None:
            known[int(last)] = whole
        at_steps, amounts = zip(*sorted(known.items()), strict=True)
        found = np.interp(steps, at_steps, amounts)
        return [float(amount) if step <= at_steps[-1] else None for step, amount in zip(steps, found, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Table x scale x seeds, as frozen, with its runs in the plan's order."""

    path: Path
    name: str
    table: str
    scale: str
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    """`key=value` settings that were given for the whole study."""
    data: Mapping[str, Any]
    created: str
    version: str
    planned_base: Mapping[str, Any]
    """Base's configuration by dotted key, as planned."""
    variants: tuple[Variant, ...]
    runs: tuple[Run, ...]
    kind: str = ""
    """SEARCH, or empty for a table at one budget."""

    @cached_property
    def by_variant(self) -> Mapping[str, list[Run]]:
        """The runs of every variant, in the plan's order."""
        runs: dict[str, list[Run]] = {variant.id: [] for variant in self.variants}
        for run in self.runs:
            runs[run.variant].append(run)
        return runs

    @cached_property
    def finished(self) -> list[Run]:
        """The runs that have a result, each directory once."""
        return [run for run in self.trained if run.done]

    @cached_property
    def trained(self) -> list[Run]:
        """The planned runs, each directory once."""
        return [run for run in self.runs if run.same_as is None]

    @cached_property
    def seeds_of_rows(self) -> Mapping[tuple[int, ...], int]:
        """The seeds that rows are planned with, and how many rows have them; what most rows have first."""
        rows = Counter(tuple(sorted(run.seed for run in runs)) for runs in self.by_variant.values())
        return dict(rows.most_common())

    def repeats(self, variant: str) -> bool:
        """Whether a row has no run of its own: all are those of other rows that come to the same configuration."""
        return all(run.same_as is not None for run in self.by_variant[variant])

    @property
    def base(self) -> Variant | None:
        """The base row; None in a study without one."""
        return next((variant for variant in self.variants if variant.id == BASE), None)

    def settings(self, variant: str) -> Mapping[str, Any]:
        """The resolved configuration of a variant, from its first run that has one; empty if none has."""
        return next((run.settings for run in self.by_variant[variant] if run.settings), {})


def load_study(directory: Path) -> Study:
    """The study in `directory`. Damaged runs are kept as "unreadable"; a damaged plan raises CheckError."""
    plan = directory / "study.json"
    if not plan.is_file():
        raise CheckError("no study here", where=str(directory), fix="name a directory made by ablate run")
    document = read_json(plan)
    check_shape(document, _PLAN, plan, fix="restore the file")
    known = {entry["id"] for entry in document["variants"]}
    strange = [entry["id"] for entry in document["runs"] if entry["variant"] not in known]
    if strange:
        raise CheckError(f"the run {strange[0]} is of no planned row", where=str(plan), fix="restore the file")
    tracked = _tracked(directory)
    return Study(
        path=directory,
        name=directory.resolve().name,
        table=document["table"],
        scale=document["scale"],
        seeds=tuple(document["seeds"]),
        overrides=tuple(document.get("set", ())),
        data=document.get("data", {}),
        created=str(document.get("created", "")),
        version=str(document.get("version", "")),
        planned_base=flatten(document.get("base", {})),
        variants=tuple(
            Variant(id=entry["id"], group=entry["group"], title=entry["title"], changes=entry["changes"])
            for entry in document["variants"]
        ),
        runs=tuple(_load_run(directory, entry, tracked.get(entry["id"], "")) for entry in document["runs"]),
        kind=document.get("kind", ""),
    )


def at(document: Mapping[str, Any], *path: str) -> Any:
    """What stands at `path` in a nested document; None where there is nothing."""
    value: Any = document
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested document as dotted keys, e.g. {"model.d_model": 512}."""
    return dict(_flat(document, prefix))


def _flat(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _tracked(study: Path) -> dict[str, str]:
    """Run to its MLflow run, as the last sync noted; empty where there is no such note: it is no more than a hint."""
    try:
        stores = read_json(study / _TRACKED)["stores"]
        return {run: str(mark["child"]) for store in stores.values() for run, mark in store["runs"].items()}
    except (CheckError, KeyError, TypeError, AttributeError):
        return {}


def _load_run(study: Path, entry: Mapping[str, Any], mlflow: str) -> Run:
    plan: dict[str, Any] = {name: entry[name] for name in ("id", "variant", "seed", "hash")}
    plan |= {"path": study / entry["directory"], "same_as": entry.get("same_as"), "mlflow": mlflow}
    plan |= {"study": study.resolve().name}
    nothing: dict[str, Any] = {"settings": {}, "result": {}, "environment": {}}
    try:
        return Run(**plan, **(nothing | _records(plan["path"], plan["hash"])))
    except (CheckError, UsageError) as error:
        return Run(**plan, **nothing, state="unreadable", reason=str(error))
    except (KeyError, TypeError, ValueError) as error:
        return Run(**plan, **nothing, state="unreadable", reason=f"its records are damaged ({error!r})")


def _records(path: Path, planned_hash: str) -> dict[str, Any]:
    """The fields of a Run that its directory tells."""
    if not (path / "config.json").is_file():
        return {"state": "missing"}
    directory = RunDirectory(path)
    if directory.hash() != planned_hash:
        raise CheckError(f"it holds the run {directory.hash()[:12]}, planned was {planned_hash[:12]}", where=path.name)
    status = directory.status()
    fields: dict[str, Any] = {
        "settings": flatten(read_json(path / "config.json")["config"]),
        "environment": directory.environment() or {},
    }
    if status.state == "planned":
        return fields | {"state": "missing"}
    return fields | {
        "state": status.state,
        "reason": status.reason,
        "attempts": status.attempt,
        "step": status.step,
        "progress": status.progress,
        "result": directory.result() or {},
    }
