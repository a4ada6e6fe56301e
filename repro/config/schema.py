"""Frozen dataclasses to and from plain documents, and `key=value` settings, with errors that name the key."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from repro.errors import UsageError

T = TypeVar("T")

LARGEST_INTEGER = 2**53
"""The largest whole number that a float, and so every reader of JSON, keeps exactly."""


def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name; looked up once, because this takes most of the time of a hash."""
    return _look_up(kind)


_look_up = functools.cache(typing.get_type_hints)


def from_document(kind: type[T], document: Mapping[str, Any], where: str = "") -> T:
    """An instance of the dataclass `kind` from `document`; unknown or missing keys, wrong types raise UsageError."""
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{where}.{key}" if where else key
        if key not in hints:
            raise unknown_key(path, [f"{where}.{name}" if where else name for name in hints])
        values[key] = _parse(hints[key], value, path)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and field.name not in values:
            raise UsageError(f"{field.name!r} is missing", where=where)
    return kind(**values)


def unknown_key(key: str, known: list[str]) -> UsageError:
    """The error for a key that does not exist, with the nearest ones that do."""
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return UsageError(
        f"unknown key {key!r}", fix="did you mean " + " or ".join(near) + "?" if near else "known: " + ", ".join(known)
    )


def parse_text(hint: Any, text: str, where: str) -> Any:
    """`text`, as typed on a command line, read as a value of the type `hint`."""
    options = _alternatives(hint)
    if str in options or any(typing.get_origin(option) is typing.Literal for option in options):
        with_words: Any = text
        if type(None) in options and text in ("none", "null") and not _literal_has(options, text):
            with_words = None
        return _parse(hint, with_words, where)
    try:
        value = json.loads(text)
    except ValueError:  # not JSON, or a number of thousands of digits
        value = {"none": None, "True": True, "False": False}.get(text, text)
    return _parse(hint, value, where)


def _literal_has(options: tuple[Any, ...], text: str) -> bool:
    return any(text in typing.get_args(option) for option in options if typing.get_origin(option) is typing.Literal)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _parse(hint: Any, value: Any, where: str) -> Any:
    for option in _alternatives(hint):
        matched, parsed = _match(option, value, where)
        if matched:
            return parsed
    raise UsageError(f"{value!r} is not {_describe(hint)}", where=where)


def _match(option: Any, value: Any, where: str) -> tuple[bool, Any]:
    """Whether `value` is of the type `option`, and its parsed form."""
    origin = typing.get_origin(option)
    if origin is typing.Literal:
        return value in typing.get_args(option), value
    if origin is tuple:
        return _match_tuple(typing.get_args(option), value, where)
    if option is type(None):
        return value is None, None
    if option is bool:
        return isinstance(value, bool), value
    if option is int:
        return _match_integer(value, where)
    if option is float:
        good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
        return good, float(value) + 0.0 if good else value  # -0.0 becomes 0.0: equal settings have one text form
    if option is str:
        return isinstance(value, str), value
    if dataclasses.is_dataclass(option) and isinstance(option, type):
        return _match_dataclass(option, value, where)
    raise TypeError(f"{where}: configuration fields of type {option} are not supported")


def _match_integer(value: Any, where: str) -> tuple[bool, Any]:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return False, value
    if abs(value) > LARGEST_INTEGER:
        raise UsageError("too large a number", where=where, fix=f"the largest is {LARGEST_INTEGER}")
    return True, value


def _match_tuple(items: tuple[Any, ...], value: Any, where: str) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, value
    if len(items) == 2 and items[1] is Ellipsis:
        return True, tuple(_parse(items[0], item, where) for item in value)
    if len(items) != len(value):
        return False, value
    return True, tuple(_parse(item, part, where) for item, part in zip(items, value, strict=True))


def _match_dataclass(option: type, value: Any, where: str) -> tuple[bool, Any]:
    if isinstance(value, option):
        return True, value
    if not isinstance(value, Mapping):
        return False, value
    # A union of dataclasses is told apart by its `family` field.
    family = _hints(option).get("family")
    if family is not None and value.get("family") not in typing.get_args(family):
        return False, value
    return True, from_document(option, value, where)


def _describe(hint: Any) -> str:
    parts = []
    for option in _alternatives(hint):
        if typing.get_origin(option) is typing.Literal:
            parts.append("one of " + ", ".join(str(word) for word in typing.get_args(option)))
        elif option is type(None):
            parts.append("none")
        elif dataclasses.is_dataclass(option):
            parts.append(getattr(option, "__name__", str(option)))
        else:
            parts.append(
                {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(
                    option, str(option)
                )
            )
    return " or ".join(parts)


def to_document(config: Any) -> dict[str, Any]:
    """The plain document of a dataclass: what `from_document` reads back to an equal instance.

    Equal instances give equal texts, too: 100 in a field of type float is written as 100.0, so that a configuration
    made in code has the hash of the one read from a file.
    """
    as_made = json.loads(json.dumps(dataclasses.asdict(config)))
    as_read = from_document(type(config), as_made)
    document: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(as_read), allow_nan=False))
    return document


def replace_key(config: T, key: str, text: str, where: str = "--set") -> T:
    """`config` with the dotted `key` set from the command-line `text`; raises UsageError for an unknown key."""
    return _replace(config, key.split("."), "", text, where)


def _replace(config: T, path: list[str], prefix: str, text: str, where: str) -> T:
    """`config`, itself at the dotted key `prefix`, with `path` below it set."""
    hints = _hints(type(config))
    head, *below = path
    key = f"{prefix}.{head}" if prefix else head
    if head not in hints:
        raise unknown_key(".".join([key, *below]), known_keys(config, prefix))
    current = getattr(config, head)  # a declared field: checked on the line above
    if below and not dataclasses.is_dataclass(current):
        raise unknown_key(".".join([key, *below]), [key])
    if below:
        value: Any = _replace(current, below, key, text, where)
    elif dataclasses.is_dataclass(current):
        raise UsageError(
            f"{key!r} is a group of keys", where=where, fix="name one, e.g. " + known_keys(current, key)[0]
        )
    else:
        value = parse_text(hints[head], text, f"{where} {key}")
    return dataclasses.replace(config, **{head: value})  # type: ignore[type-var]


def known_keys(config: Any, prefix: str = "") -> list[str]:
    """All dotted keys of `config` that hold values."""
    keys: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)  # a declared field
        path = f"{prefix}.{field.name}" if prefix else field.name
        keys.extend(known_keys(value, path) if dataclasses.is_dataclass(value) else [path])
    return keys
