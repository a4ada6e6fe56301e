"""Text that means itself in Markdown."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"([\\`*_\[\]~|$])")
_FIRST = re.compile(r"^(?:[-+=#]+(?=\s|$)|\d+(?=[.)](?:\s|$)))")


def escape(text: object) -> str:
    """`text` on one line with every sign that Markdown or HTML would read as its own made harmless."""
    plain = re.sub(r"[\r\n]+", " ", str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _FIRST.sub(_harmless_start, _SPECIAL.sub(r"\\\1", plain))


def _harmless_start(found: re.Match[str]) -> str:
    """A backslash before a sign; after a number it goes before the point that would make a list of it."""
    return found.group() + "\\" if found.group()[0].isdigit() else "\\" + found.group()
