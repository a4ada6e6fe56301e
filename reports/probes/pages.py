"""From a probe's document to its page."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from reports.claims.mechanisms import judged
from reports.probes import extrapolation, layers, longrange, maps, mask, order, saturation, worked
from reports.probes.parts import Page
from reports.probes.records import Probed, load_probes

PAGES: dict[str, ModuleType] = {
    "worked-example": worked,
    "softmax-saturation": saturation,
    "layers": layers,
    "long-range": longrange,
    "order": order,
    "extrapolation": extrapolation,
    "attention-maps": maps,
    "mask": mask,
}
"""The module of each probe: it has `words`, `chart` and `grids`. In the order in which they are told."""


def pages_of(study: Path, order: Iterable[str] = PAGES) -> list[Page]:
    """The pages of the documents in the study's directory; those with nothing measured are left out."""
    return [page(probed) for probed in load_probes(study, order) if probed.name in PAGES and _told(probed)]


def _told(probed: Probed) -> bool:
    return bool(probed.rows) or probed.results[0]["measured"] is not None


def page(probed: Probed) -> Page:
    """One probe's page."""
    module = PAGES[probed.name]
    return Page(
        name=probed.name,
        title=probed.title,
        words=module.words(probed),
        picture=module.chart(probed),
        grids=module.grids(probed),
        verdicts=judged(probed.name, probed.document["figures"]),
        origin=probed.origin,
    )
