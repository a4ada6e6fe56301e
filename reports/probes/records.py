"""What probes wrote into a study: `STUDY/probes/NAME.json`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from reports.formats import listed
from repro.errors import CheckError
from repro.files import read_json
from repro.shapes import Shape, check_shape

PLACE = "probes"
"""The folder of the documents in a study's directory."""
_SCHEMA = 1
_SHAPE: Shape = {
    "schema": int,
    "probe": str,
    "title": str,
    "scale": str,
    "seeds": [int],
    "runs": [{"id": str, "variant": str, "seed": int, "directory": str, "hash": str}],
    "version": str,
    "figures": dict,
    "results": [{"seed": int, "rows": dict}],
}


@dataclass(frozen=True, slots=True)
class Probed:
    """One probe's document."""

    document: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The probe's name."""
        return str(self.document["probe"])

    @property
    def title(self) -> str:
        """What it is about."""
        return str(self.document["title"])

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """What was measured, a seed each."""
        results: Sequence[Mapping[str, Any]] = self.document["results"]
        return results

    @property
    def alone(self) -> Any:
        """What was measured without a trained model, with the first seed."""
        return self.results[0]["measured"]

    @property
    def rows(self) -> list[str]:
        """The rows that were trained and measured, in order."""
        return list(dict.fromkeys(row for result in self.results for row in result["rows"]))

    def of(self, row: str) -> list[Mapping[str, Any]]:
        """What was measured on `row`, a seed each."""
        return [result["rows"][row] for result in self.results if row in result["rows"]]

    def first(self, row: str) -> Mapping[str, Any]:
        """What was measured on `row` with its first seed."""
        return self.of(row)[0]

    def mean(self, row: str, value_of: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        """The mean over seeds of a value of `row`; None where no seed has one."""
        values = [value for document in self.of(row) if (value := value_of(document)) is not None]
        return fmean(values) if values else None

    @property
    def origin(self) -> str:
        """Where the numbers come from, in words."""
        seeds = self.document["seeds"]
        seeded = f"seed{'s' if len(seeds) != 1 else ''} {listed([str(seed) for seed in seeds])}"
        runs = ", ".join(run["id"] for run in self.document["runs"])
        machine = self.document.get("machine", {})
        told = f"Version {self.document['version']}, scale {self.document['scale']}, {seeded}"
        told += f", measured on {machine['cpu']}" if machine.get("cpu") else ""
        return f"{told}. " + (f"Runs: {runs}." if runs else "No trained model is needed.")


def load_probes(study: Path, order: Iterable[str] = ()) -> list[Probed]:
    """The documents in the study's directory, those named in `order` first. Raises CheckError for one that is none."""
    found = {}
    for path in sorted((study / PLACE).glob("*.json")):
        document = read_json(path)
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            raise CheckError("not a document of this version", where=str(path), fix="probe again")
        check_shape(document, _SHAPE, path, fix="probe again")
        found[document["probe"]] = Probed(document)
    first = [name for name in order if name in found]
    return [found[name] for name in dict.fromkeys([*first, *found])]
