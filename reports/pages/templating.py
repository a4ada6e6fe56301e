"""How templates are found and filled."""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from reports.figures.drawing import renamed
from reports.formats import moment, plain, significant
from reports.pages.templates import TEMPLATES
from reports.probes.parts import folds
from reports.probes.templates import TEMPLATES as PROBES


def environment(*, autoescape: bool) -> Environment:
    """An environment of our templates, in which an unknown name is an error; `drawn` shows a drawing in a page."""
    found = Environment(
        loader=FileSystemLoader([TEMPLATES, PROBES]),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "moment": moment,
        "plainly": plain,
        "significantly": significant,
        "drawn": lambda inline, prefix: Markup(renamed(inline, prefix)),
    }
    found.globals["folds"] = folds
    return found
