"""What was tracked already: a small file in the study that spares asking the store. Never more than a hint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repro.errors import CheckError
from repro.files import read_json, write_json

MARKER = "tracking.json"
_SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One run as it was tracked."""

    child: str
    """The id of its MLflow run."""
    fingerprint: str
    state: str
    ended: int
    """When it last changed, Unix milliseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParentMark:
    """The study as it was tracked."""

    experiment: str
    id: str
    """The id of the parent run."""
    fingerprint: str
    runs: str
    """The runs by state, in words."""
    status: str


@dataclass(kw_only=True)
class Marker:
    """The marks of one study in one store."""

    path: Path
    store: str
    parent: ParentMark | None = None
    runs: dict[str, Mark] = field(default_factory=dict)

    @staticmethod
    def load(study: Path, store: str) -> Marker:
        """The marks of the study in `store`; empty when there are none, they are damaged or were made elsewhere."""
        marker = Marker(path=study / MARKER, store=store)
        try:
            found = _document(marker.path)["stores"][store]
            # A moved study: paths in tags and in the database have to follow.
            if found["place"] == str(study.resolve()):
                marker.parent = ParentMark(**found["parent"]) if found["parent"] is not None else None
                marker.runs = {run_id: Mark(**mark) for run_id, mark in found["runs"].items()}
        except (CheckError, KeyError, TypeError, AttributeError):
            marker.parent, marker.runs = None, {}
        return marker

    def save(self) -> None:
        """Write the marks, keeping those of other stores. Raises CheckError when the disk is full or refuses."""
        try:
            document = _document(self.path)
        except CheckError:
            document = {"schema": _SCHEMA, "stores": {}}
        document["stores"][self.store] = {
            "place": str(self.path.parent.resolve()),
            "parent": asdict(self.parent) if self.parent is not None else None,
            "runs": {run_id: asdict(mark) for run_id, mark in sorted(self.runs.items())},
        }
        write_json(self.path, document)


def _document(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA or "stores" not in document:
        raise CheckError("not a marker of this version", where=str(path))
    return document
