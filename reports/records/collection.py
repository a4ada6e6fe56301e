"""Several studies as few: what is one experiment, planned in parts, becomes one study again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reports.records.comparable import check_no_search
from reports.records.study import BASE, STATES, Run, Study, Variant, load_study
from repro.files import digest_of

_LABELS = {"variant", "table", "scale", "seed"}
"""Keys of base's configuration that name it and change nothing."""

_FURTHEST: tuple[str, ...] = ("done", "running", "stopped", "failed", "diverged", "unreadable", "missing")
"""Of two copies of one run, the one whose state comes first here is read."""
assert set(_FURTHEST) == set(STATES)


def load_studies(paths: Sequence[Path]) -> list[Study]:
    """The studies in `paths`, each directory once, in the order given; those of one experiment merged into one.

    One experiment: the same scale, configuration of base and corpus digest, and no row or run that the two plan
    differently. The merged study has every row once, in the tables' order, and every run once; equal hash is equal run,
    and of two copies the one that came further is read. Raises CheckError where there is no study,
    UsageError for a search.
    """
    merged: list[Study] = []
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        study = load_study(path)
        check_no_search(study)
        for index, other in enumerate(merged):
            if _is_one(other, study):
                merged[index] = _merged(other, study)
                break
        else:
            merged.append(study)
    return merged


def _is_one(first: Study, second: Study) -> bool:
    """Whether the two are parts of one experiment."""
    if _experiment(first) != _experiment(second):
        return False
    changes = {variant.id: dict(variant.changes) for variant in first.variants}
    hashes = {(run.variant, run.seed): run.hash for run in first.runs}
    return all(changes.get(variant.id, variant.changes) == variant.changes for variant in second.variants) and all(
        hashes.get((run.variant, run.seed), run.hash) == run.hash for run in second.runs
    )


def _experiment(study: Study) -> str:
    base = {key: value for key, value in study.planned_base.items() if key not in _LABELS}
    return digest_of({"scale": study.scale, "base": base, "digest": study.data.get("digest")})


def _merged(first: Study, second: Study) -> Study:
    # The longer table has more of the order: a tour's few rows fall into their places in it.
    longest = sorted((first, second), key=lambda study: -len(study.variants))
    variants = {variant.id: variant for study in longest for variant in study.variants}
    order = sorted(variants, key=lambda id: id != BASE)
    return replace(
        first,
        name=f"{first.name} + {second.name}",
        table="+".join(_each_once([*first.table.split("+"), *second.table.split("+")])),
        seeds=tuple(sorted({*first.seeds, *second.seeds})),
        overrides=tuple(_each_once([*first.overrides, *second.overrides])),
        created=min(first.created, second.created),
        version=" and ".join(_each_once([*first.version.split(" and "), second.version])),
        variants=tuple(variants[id] for id in order),
        runs=tuple(_runs([*first.runs, *second.runs], [variants[id] for id in order])),
    )


def _runs(runs: Sequence[Run], variants: Sequence[Variant]) -> list[Run]:
    """Every planned run once, in the rows' order; those that are another row's run share its records."""
    place = {variant.id: number for number, variant in enumerate(variants)}
    best: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: _FURTHEST.index(run.state)):
        best.setdefault(run.hash, run)
    planned = {(run.variant, run.seed, run.hash): run for run in reversed(runs)}
    first: dict[str, str] = {}
    entries = []
    for run in sorted(planned.values(), key=lambda run: (run.seed, place[run.variant])):
        same_as = first.setdefault(run.hash, run.id)
        labels: dict[str, Any] = {"id": run.id, "variant": run.variant, "seed": run.seed}
        entries.append(replace(best[run.hash], **labels, same_as=None if same_as == run.id else same_as))
    return entries


def _each_once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))
