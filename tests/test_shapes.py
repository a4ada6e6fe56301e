"""Documents from disk are looked at before they are used: what is wrong is named, and nothing else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from repro.errors import CheckError
from repro.shapes import Shape, check_shape

SHAPE: Shape = {"name": str, "steps": int, "loss?": (float, type(None)), "parts?": [{"id": str}], "more?": {"x?": bool}}


@pytest.mark.parametrize(
    "document",
    [
        {"name": "a", "steps": 1},
        {"name": "a", "steps": 1, "loss": None, "unknown": object()},
        {"name": "a", "steps": 1, "loss": 2, "parts": [], "more": {}},
        {"name": "a", "steps": -1, "loss": 2.5, "parts": [{"id": "b"}, {"id": "c", "d": 1}], "more": {"x": True}},
    ],
)
def test_a_document_of_the_shape_passes(document: Any) -> None:
    check_shape(document, SHAPE, Path("x.json"))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "it is None, not an object"),
        ([], r"it is \[\], not an object"),
        ({"steps": 1}, "name is missing"),
        ({"name": 3, "steps": 1}, "name is 3, not a text"),
        ({"name": "a", "steps": "1"}, "steps is '1', not a whole number"),
        ({"name": "a", "steps": 1.5}, "steps is 1.5, not a whole number"),
        ({"name": "a", "steps": True}, "steps is True, not a whole number"),
        ({"name": "a", "steps": None}, "steps is None, not a whole number"),
        ({"name": "a", "steps": 1, "loss": float("inf")}, "loss is inf, not a number or null"),
        ({"name": "a", "steps": 1, "loss": False}, "loss is False, not a number or null"),
        ({"name": "a", "steps": 1, "parts": {}}, r"parts is {}, not a list"),
        ({"name": "a", "steps": 1, "parts": [{"id": "b"}, {}]}, r"parts\[1\]\.id is missing"),
        ({"name": "a", "steps": 1, "more": {"x": 0}}, r"more\.x is 0, not true or false"),
        ({"name": "a" * 500, "steps": "b" * 500}, r"steps is 'b{36}\.\.\., not a whole number"),
    ],
)
def test_the_first_wrong_part_is_named_with_the_file_and_the_remedy(document: Any, words: str) -> None:
    with pytest.raises(CheckError, match=rf"^x\.json: damaged \({words}\) \(put it back\)$"):
        check_shape(document, SHAPE, Path("x.json"), fix="put it back")
