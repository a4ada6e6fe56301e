"""Labels beside the points of a scatter plot that do not cover one another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LETTER = 0.60
"""Width of an average letter in units of the font size; wide enough for the fonts that pages use."""

_RADII = (9.0, 15.0, 23.0, 33.0, 45.0, 60.0, 78.0)
_NEAR = 4
"""Radii among which a place is sought that is nearer to no other point; without one, the first free place is taken."""
_ANGLES = tuple(math.pi * eighth / 8 for eighth in (0, 2, 14, 4, 12, 8, 6, 10, 1, 15, 7, 9, 3, 13, 5, 11))


Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Where a label stands, in pixels: its ends, vertically centred, and the point it belongs to."""

    text: str
    x: float
    right: float
    y: float
    height: float
    point: tuple[float, float]
    apart: bool
    """So far from its point that a line should lead there."""


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    bottom: float
    right: float
    top: float

    def distance(self, point: tuple[float, float]) -> float:
        """From `point` to the nearest place of the box."""
        x, y = point
        return math.hypot(max(self.left - x, x - self.right, 0.0), max(self.bottom - y, y - self.top, 0.0))

    def overlap(self, other: _Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return width * height if width > 0 and height > 0 else 0.0


def place(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    *,
    size: float,
    frame: Box,
    obstacles: Sequence[Box] = (),
) -> list[Label]:
    """Labels for the first of `points` (pixels), most important first, inside `frame`.

    They keep off the points and the `obstacles`. Those that find no free place are left
    out. The same points give the same places.
    """
    border = _Box(*frame)
    taken = [_Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    taken += [_Box(*obstacle) for obstacle in obstacles]
    labels: list[Label] = []
    for point, text in zip(points, texts, strict=False):
        found = _free_place(point, text, size, border, taken, [other for other in points if other != point])
        if found is not None:
            label, box = found
            labels.append(label)
            taken.append(box)
    return labels


def _free_place(
    point: tuple[float, float],
    text: str,
    size: float,
    border: _Box,
    taken: list[_Box],
    others: Sequence[tuple[float, float]],
) -> tuple[Label, _Box] | None:
    width, height = _LETTER * size * len(text), 1.15 * size
    tries = [(radius, True) for radius in _RADII[:_NEAR]] + [(radius, False) for radius in _RADII]
    for radius, own in tries:
        for angle in _ANGLES:
            x = point[0] + radius * math.cos(angle)
            y = point[1] + radius * math.sin(angle)
            left = x - width * (1 - math.cos(angle)) / 2
            box = _Box(left - 1, y - height / 2, left + width + 1, y + height / 2)
            inside = box.left >= border.left and box.right <= border.right
            inside = inside and box.bottom >= border.bottom and box.top <= border.top
            if not inside or any(box.overlap(other) for other in taken):
                continue
            apart = radius > _RADII[0] or not own
            # A label is read as that of the nearest point, most of all one without a line.
            near = box.distance(point) * (1.0 if apart else 1.5)
            if own and any(box.distance(other) <= near for other in others):
                continue
            label = Label(text=text, x=left, right=left + width, y=y, height=height, point=point, apart=apart)
            return label, box
    return None
