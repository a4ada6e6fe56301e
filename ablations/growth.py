"""How a study's plan changes: rows and seeds are added, and what a changed base, corpus or code makes new is planned
beside the old runs, which are kept as superseded with the reason. Works on the document of `study.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ablations.selection import Row, Selection, rows_of
from ablations.tables import Variant, variants_of
from repro import SEMANTICS_VERSION, __version__
from repro.config import RunConfig
from repro.config.differences import changes
from repro.errors import CheckError, UsageError, UserError
from repro.runs.directory import RunDirectory
from repro.runs.inherit import same_but_budget

PLAN = "study.json"
RUNS = "runs"
SEARCH = "search"
"""The kind, and the table, of a study whose rows are samples of a space."""
_SHOWN = 4
"""Changed keys that a reason names."""

Document = dict[str, Any]


def renew(document: Document, path: Path, selection: Selection, wanted: Iterable[RunConfig], data: Document) -> None:
    """Bring the plan `document` of the study in `path` to the base, the corpus and the code of now.

    Runs that `wanted` or the new base define otherwise go to "superseded"; what the study was goes to "history".
    """
    asked = {(config.variant, config.seed): config for config in wanted}
    why = _changes_of_base(document, path, selection)
    if why:
        _note_history(document, why)
        document |= {
            "set": list(selection.settings),
            "profile": selection.profile,
            "base": selection.base.document(),
            "semantics": SEMANTICS_VERSION,
            "version": __version__,
        }
    if selection.search is not None:
        document["search"] = dict(selection.search)
    if why or not Path(document["data"]["directory"]).is_dir():
        document["data"] = data
    rows = {row.variant.id: row for row in _rows(document, selection)} if why else {}
    kept, gone = [], []
    for entry in document["runs"]:
        now = asked.get((entry["variant"], entry["seed"])) or _now(rows, entry)
        if now is None and not why:
            kept.append(entry)  # nobody asks for it, and nothing says that it is another one now
        elif now is not None and now.hash() == entry["hash"]:
            kept.append(entry)
        else:
            gone.append(_superseded(entry, path, now, why))
    document["runs"] = kept
    if gone or "superseded" in document:
        document["superseded"] = [*document.get("superseded", []), *gone]
    if why:
        left = {entry["variant"] for entry in kept}
        document["variants"] = [_plan(rows[entry["id"]]) for entry in document["variants"] if entry["id"] in left]


def grow(document: Document, selection: Selection, wanted: Iterable[RunConfig]) -> None:
    """Add what is new to the plan.

    Variants stand in the table's order and runs by seed, then in the table's order, so that a grown study reads like
    one made at once and a study that was cut short holds whole tables. A superseded run that is asked for again is
    taken back.
    """
    variants = {entry["id"]: entry for entry in document["variants"]}
    runs = {entry["id"]: entry for entry in document["runs"]}
    old = document.get("superseded", [])
    variants |= {row.variant.id: _plan(row) for row in selection.rows}
    for config in wanted:
        if config.run_id() not in runs:
            runs[config.run_id()] = _new_run(config, runs, old)
    if old:
        document["superseded"] = [entry for entry in old if entry["id"] not in runs]
    place = {id: index for index, id in enumerate(dict.fromkeys([*_order(document, selection), *variants]))}
    document["variants"] = sorted(variants.values(), key=lambda entry: place[entry["id"]])
    document["runs"] = sorted(_with_twins(runs), key=lambda entry: (entry["seed"], place[entry["variant"]]))
    document["seeds"] = sorted({entry["seed"] for entry in runs.values()})


def shorter_run(document: Document, path: Path, config: RunConfig) -> Path | None:
    """The directory of the superseded run that is `config` with another budget and has checkpoints to begin from.

    Of several the one with the longest budget below that of `config`.
    """
    found = []
    for entry in document.get("superseded", []):
        directory = RunDirectory(path / entry["directory"])
        if (entry["variant"], entry["seed"]) != (config.variant, config.seed):
            continue
        try:
            theirs = directory.current_config()
        except CheckError:
            continue  # removed, damaged or of another version: nothing to begin from
        if same_but_budget(theirs, config) and any(directory.checkpoints.glob("step-*")):
            budget = theirs.train.budget
            found.append((budget < config.train.budget, budget, directory.path))
    return max(found)[2] if found else None


def in_words(changed: Mapping[str, str]) -> str:
    """Changed keys as one phrase: "train.budget 1500 -> 2000, model.norm "post" -> "pre""."""
    told = [f"{key} {change}" for key, change in changed.items()]
    return ", ".join(told[:_SHOWN]) + (f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else "")


def _changes_of_base(document: Document, path: Path, selection: Selection) -> str:
    """What of base, corpus and code is not as it was, in words; empty when all is."""
    semantics = document.get("semantics")
    code = f"the code's semantics {semantics} -> {SEMANTICS_VERSION}" if semantics != SEMANTICS_VERSION else ""
    try:
        base = RunConfig.read(document["base"])
    except UsageError as error:
        if code:
            return f"{code}, which cannot read the base of then"
        what = f"its base cannot be read ({error})"
        raise CheckError(what, where=str(path / PLAN), fix="use the version that made it") from error
    return ", ".join(part for part in (code, in_words(changes(base, selection.base))) if part)


def _note_history(document: Document, why: str) -> None:
    kept = ("set", "profile", "data", "semantics", "version", "base")
    was = {key: document[key] for key in kept if key in document}
    document["history"] = [*document.get("history", []), {"until": _stamp(), "why": why, **was}]


def _rows(document: Document, selection: Selection) -> tuple[Row, ...]:
    """The planned rows over the base of `selection`, as far as they still are rows and can be built."""
    if document.get("kind") == SEARCH:
        return selection.rows
    planned = {entry["id"] for entry in document["variants"]}
    known = [variant for variant in variants_of(selection.table) if variant.id in planned]
    return rows_of(selection.base, [variant for variant in known if _can_be_built(variant, selection.base)])


def _can_be_built(variant: Variant, base: RunConfig) -> bool:
    try:
        variant.of(base)
    except UsageError:
        return False
    return True


def _now(rows: Mapping[str, Row], entry: Document) -> RunConfig | None:
    row = rows.get(entry["variant"])
    return row.with_seed(entry["seed"]) if row is not None else None


def _superseded(entry: Document, path: Path, now: RunConfig | None, why: str) -> Document:
    """The entry of a run that the study does not have any more, with what changed between it and the one of `now`."""
    if now is None:
        why += f", over which there is no row {entry['variant']}"
    else:
        try:
            changed = in_words(changes(RunDirectory(path / entry["directory"]).config(), now))
        except UserError:
            changed = ""  # its directory is gone or damaged: the base's changes have to do
        code = why.partition(",")[0] if why.startswith("the code") else ""
        why = ", ".join(part for part in (code, changed) if part) or why or "its row is defined otherwise now"
    return {key: value for key, value in entry.items() if key not in ("replaces", "why")} | {
        "why": why,
        "since": _stamp(),
    }


def _new_run(config: RunConfig, runs: Mapping[str, Document], old: list[Document]) -> Document:
    """The entry of a run that is new to the plan; its records may be there already, as another's."""
    id, hash = config.run_id(), config.hash()
    entry = {"id": id, "variant": config.variant, "seed": config.seed, "hash": hash, "directory": f"{RUNS}/{id}"}
    twin = next((other for other in runs.values() if other["hash"] == hash), None)
    if twin is not None:
        return entry | {"directory": twin["directory"], "same_as": twin.get("same_as") or twin["id"]}
    again = next((other for other in reversed(old) if other["hash"] == hash), None)
    if again is not None:
        entry |= {"directory": again["directory"]}
    before = [other for other in old if (other["variant"], other["seed"]) == (config.variant, config.seed)]
    replaced = next((other for other in reversed(before) if other["id"] != id), None)
    if replaced is not None and again is None:
        entry |= {"replaces": replaced["id"], "why": replaced["why"]}
    return entry


def _with_twins(runs: Mapping[str, Document]) -> list[Document]:
    """The entries of a plan; a run whose twin was superseded stands for itself."""
    entries: dict[str, Document] = {}
    first: dict[str, str] = {}
    for id, entry in runs.items():
        if entry.get("same_as") and entry["same_as"] not in runs:
            entry = {key: value for key, value in entry.items() if key != "same_as"}
            if entry["hash"] in first:
                entry["same_as"] = first[entry["hash"]]
        if not entry.get("same_as"):
            first.setdefault(entry["hash"], id)
        entries[id] = entry
    return list(entries.values())


def _order(document: Document, selection: Selection) -> list[str]:
    """Ids of rows in the order in which a plan lists them."""
    if document.get("kind") == SEARCH:
        return sorted([*(row.variant.id for row in selection.rows), *(entry["id"] for entry in document["variants"])])
    return [variant.id for variant in variants_of(selection.table)]


def _plan(row: Row) -> Document:
    of = row.variant
    return {"id": of.id, "group": of.group, "title": of.title, "changes": dict(row.changes)}


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
