"""In what two configurations differ, key by key."""

from __future__ import annotations

import json
from typing import Any

from repro.config.run import RunConfig

LABELS = ("variant", "table")
"""Keys outside a run's identity."""


def differences(a: RunConfig, b: RunConfig) -> list[str]:
    """One line for each key whose resolved value differs, e.g. "model.d_model = 64 instead of 128": `a`'s value, then
    `b`'s. Labels (variant, table) are left out: they are no part of a run's identity.
    """
    ours, theirs = _flat(a.resolved().document()), _flat(b.resolved().document())
    keys = [*theirs, *(key for key in ours if key not in theirs)]  # another family has other keys
    return [
        f"{key} = {_shown(ours, key)} instead of {_shown(theirs, key)}"
        for key in keys
        if key not in LABELS and (key not in ours or key not in theirs or ours[key] != theirs[key])
    ]


def changes(old: RunConfig, new: RunConfig) -> dict[str, str]:
    """Dotted key to "1500 -> 2000" for each key whose resolved value differs, labels left out; long texts are cut."""
    before, after = _flat(old.resolved().document()), _flat(new.resolved().document())
    return {
        key: f"{_shortly(before, key)} -> {_shortly(after, key)}"
        for key in [*after, *(key for key in before if key not in after)]
        if key not in LABELS and (key not in before or key not in after or before[key] != after[key])
    }


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in document.items():
        values.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return values


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "nothing"


def _shortly(values: dict[str, Any], key: str) -> str:
    value = values.get(key, "nothing")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # 1500.0 steps are 1500
    return value[:12] if isinstance(value, str) else json.dumps(value)
