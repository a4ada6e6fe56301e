"""A command's probes from training to pages: the runs they need through the ordinary study, then what is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablations.cluster import Resources
from ablations.conduct import PROBES as DOCUMENTS
from ablations.conduct import conduct, write_report
from ablations.probes.catalogue import PROBES, Probe
from ablations.probes.documents import write_document
from ablations.progress import Teller
from ablations.selection import choose
from ablations.study import PLAN, STUDIES, Study

PAGE = Path("probes", "index.html")
"""The page of all documents, in a study."""
EXTRAPOLATION = "-extrapolation"
"""What the name of the study of short sentences ends in, after the name of the probes' own."""


def probe(
    probes: Sequence[Probe],
    scale: str,
    seeds: Sequence[int],
    *,
    path: Path | None,
    settings: Sequence[str],
    source: Path | None,
    resources: Resources,
    teller: Teller,
    command: str,
) -> int:
    """Train what `probes` need at `scale`, measure, write the page; the exit code: 0 when all runs are done, else 1.

    `path`: the study's directory; None: `studies/probes-SCALE`. A second one beside it holds runs on short sentences.
    """
    place = path or STUDIES / f"probes-{scale}"
    code = 0
    for short in (False, True):
        wanted = [probe for probe in probes if probe.rows and probe.shortened is short]
        if wanted:
            more = wanted[0].settings(scale)
            code |= conduct(
                choose(wanted[0].table, scale, only=rows_of(wanted), settings=(*settings, *more)),
                seeds,
                path=_study(place, short),
                source=source,
                resources=resources,
                teller=teller,
                command=command,
            )
    for one in probes:
        study = _loaded(_study(place, one.shortened)) if one.rows else None
        write_document(one, scale, study, seeds, place, teller.say)
    write_pages(place, teller)
    return code


def rows_of(probes: Sequence[Probe]) -> list[str]:
    """The rows that `probes` need, each once."""
    return list(dict.fromkeys(row for probe in probes for row in probe.rows))


def _study(place: Path, short: bool) -> Path:
    return place.with_name(place.name + EXTRAPOLATION) if short else place


def _loaded(path: Path) -> Study | None:
    return Study.load(path) if (path / PLAN).is_file() else None


def write_pages(place: Path, teller: Teller) -> None:
    """The page of all documents in the study and its report, where they are older than a document."""
    page = place / PAGE
    newest = max(document.stat().st_mtime for document in place.glob(DOCUMENTS))
    if not page.exists() or page.stat().st_mtime <= newest:
        from reports.pages.mechanisms import write_page

        page = write_page(place, list(PROBES))
    teller.say(f"probes: {page}")
    study = _loaded(place)
    if study is not None:
        write_report(study, teller)
