"""The attention weights of a few translations, as a document or as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.errors import UsageError
from repro.files import write_json, write_text

if TYPE_CHECKING:
    from repro.runs.trained import Trained

MOST = 20
"""Sentences whose weights are written: a page of more would not be read."""


def check_name(path: Path) -> None:
    """Raise UsageError unless `path` says in what form it is to be written."""
    if path.suffix not in (".json", ".html"):
        raise UsageError(
            f"{path.name!r} is neither", where="--attention", fix="name a file that ends in .json or .html"
        )


def write(trained: Trained, run: Path, lines: Sequence[str], path: Path) -> None:
    """Write the weights with which `trained`, of the directory `run`, translates `lines` to `path`.

    {"schema", "run", "variant", "family", "note", "sentences": as `repro.probes.maps.looked_at`}. Raises UsageError for
    a model without attention.
    """
    from reports.probes.maps import NO_EXPLANATION
    from repro.probes.maps import looked_at

    found = looked_at(trained.model, trained.prepared, trained.config, lines)
    if found and not any(sentence["maps"] for sentence in found):
        what = f"a model of the family {trained.config.model.family} has no attention"
        raise UsageError(what, where="--attention", fix="leave it out")
    document: dict[str, Any] = {
        "schema": 1,
        "run": run.resolve().name,
        "variant": trained.config.variant,
        "family": trained.config.model.family,
        "note": NO_EXPLANATION,
        "sentences": found,
    }
    if path.suffix == ".json":
        write_json(path, document)
    else:
        from reports.pages.mechanisms import render_weights

        write_text(path, render_weights(document))
