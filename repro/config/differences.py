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


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in document.items():
        values.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return values


def _shown(values: dict[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "nothing"
