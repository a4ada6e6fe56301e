"""The page of probes: what was measured of mechanisms in a study, without its table. It needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from reports.claims.verdicts import in_words
from reports.pages.templates import TEMPLATES
from reports.pages.templating import environment
from reports.probes.maps import weights
from reports.probes.pages import pages_of
from reports.probes.parts import Page
from reports.probes.records import PLACE
from repro.files import write_text

PAGE = "index.html"
TITLE = "Why it works: mechanisms, measured"


def write_page(study: Path, order: Sequence[str]) -> Path:
    """Write the page of the probes in the study's directory, in this order; return its path."""
    path = study / PLACE / PAGE
    write_text(path, render(pages_of(study, order), TITLE))
    return path


def render(pages: Sequence[Page], title: str) -> str:
    """The page as HTML."""
    return _filled("mechanisms.html.j2", pages=pages, title=title)


def render_weights(document: Mapping[str, Any]) -> str:
    """The page of the attention weights of a few translations; `document` as `ablate translate --attention` writes."""
    sentences = [(sentence, weights(sentence)) for sentence in document["sentences"]]
    title = f"Where {document['run']} looks"
    return _filled("weights.html.j2", document=document, sentences=sentences, title=title)


def _filled(template: str, **what: Any) -> str:
    found = environment(autoescape=True)
    found.globals |= {"in_words": in_words}
    style = Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))
    return found.get_template(template).render(style=style, **what)
