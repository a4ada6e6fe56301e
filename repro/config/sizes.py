"""What a model's sizes may be."""

from __future__ import annotations

from repro.errors import UsageError

LARGEST_WIDTH = 2**17
"""Of a layer, a table or a vector: far above any model, and no product of them is beyond what can be counted."""
MOST_LAYERS = 1000
LARGEST_VOCABULARY = 2**24


def check_widths(**values: int) -> None:
    """Raise UsageError, naming the first of `values` that is no width, number of heads or length of a table."""
    _check(LARGEST_WIDTH, values)


def check_layers(**values: int) -> None:
    """Raise UsageError, naming the first of `values` that is no number of layers."""
    _check(MOST_LAYERS, values)


def _check(most: int, values: dict[str, int]) -> None:
    for name, value in values.items():
        if value < 1:
            raise UsageError(f"{name} is {value}, the least is 1", where="model")
        if value > most:
            raise UsageError(f"{name} is {value}, the most is {most}", where="model")
