"""What a document read from disk must look like before its parts are used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from repro.errors import CheckError

Shape = Any
"""A type, or a tuple of types of which one must fit; `{key: shape}` for an object, where a key that ends in "?" may be
missing and further keys may be there; `[shape]` for a list. `float` takes whole numbers too; no number may be a truth
value or not finite."""

_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    type(None): "null",
}


def check_shape(document: Any, shape: Shape, path: Path, *, fix: str = "") -> None:
    """Raise CheckError naming the file `path` and the first part of `document` that is not of `shape`."""
    wrong = _fault(document, shape, "")
    if wrong:
        raise CheckError(f"damaged ({wrong})", where=str(path), fix=fix)


def _fault(value: Any, shape: Shape, place: str) -> str:
    """What is wrong with `value`, which stands at `place`; empty when nothing is."""
    if isinstance(shape, dict):
        return _fault_in_object(value, shape, place)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _told(value, (list,), place)
        return next(filter(None, (_fault(item, shape[0], f"{place}[{i}]") for i, item in enumerate(value))), "")
    kinds = shape if isinstance(shape, tuple) else (shape,)
    return "" if any(_is(value, kind) for kind in kinds) else _told(value, kinds, place)


def _fault_in_object(value: Any, shape: dict[str, Shape], place: str) -> str:
    if not isinstance(value, dict):
        return _told(value, (dict,), place)
    for key, part in shape.items():
        name = key.removesuffix("?")
        inside = f"{place}.{name}" if place else name
        if name in value:
            if found := _fault(value[name], part, inside):
                return found
        elif name == key:
            return f"{inside} is missing"
    return ""


def _is(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)


def _told(value: Any, kinds: tuple[type, ...], place: str) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return f"{place or 'it'} is {shown}, not {' or '.join(_WORDS[kind] for kind in kinds)}"
