"""Names and values in the form MLflow takes: allowed characters, cut-offs, addresses without passwords."""

from __future__ import annotations

import hashlib
import re
from typing import Any
from urllib.parse import urlsplit, urlunsplit

LONGEST_PARAM = 6000
"""Characters of a parameter's value that MLflow keeps."""
LONGEST_TAG = 5000
"""Characters of a tag's value that every MLflow store keeps (newer ones take 8000)."""
LONGEST_NAME = 250
"""Characters of a metric's, parameter's or tag's name."""

_REFUSED = re.compile(r"[^\w/.\- ]")
_WORDS = {"%": "percent", "@": "at", "&": "and", "+": "plus"}


def entity_name(name: str) -> str:
    """`name` as a metric or parameter name that MLflow accepts, the name itself where it can be.

    A name that has to change ends in four hex digits of its own digest, so that no two names become one.
    """
    cleaned = _REFUSED.sub(lambda match: _WORDS.get(match[0], "_"), name)
    # MLflow wants names that are also plain relative paths.
    cleaned = "/".join(part for part in cleaned.split("/") if part not in ("", ".", ".."))
    if cleaned == name and 0 < len(name) <= LONGEST_NAME:
        return name
    ending = "-" + hashlib.sha256(name.encode()).hexdigest()[:4]
    return (cleaned or "unnamed")[: LONGEST_NAME - len(ending)] + ending


def text_of(value: Any) -> str:
    """A configuration value as a parameter shows it: none, true and false as on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return " ".join(text_of(item) for item in value)
    return str(value)


def cut(text: str, longest: int) -> str:
    """`text`, or its beginning and a remark where it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    remark = f" ... [cut, {len(text)} characters in all]"
    return text[: longest - len(remark)] + remark


def shown(uri: str) -> str:
    """`uri` without user name, password and query: what may be printed and stored."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return uri.split("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
