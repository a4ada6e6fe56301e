"""SVG without what no eye sees: digits below a hundredth of a pixel, names that nothing refers to, bare groups."""

from __future__ import annotations

import re

_LONG = re.compile(r"-?\d+\.\d{3,}")
_PLACED = re.compile(r' (x|y|width|height|transform)="([^"]*)"')
_PATH = re.compile(r' d="([^"]*)"')
_FONTS = re.compile(r"font-family: [^;\"]*")
_GROUP = re.compile(r"(<g\b[^>]*>|</g>)")


def compacted(svg: str) -> str:
    """The same picture in two thirds of the characters, equal on every machine whatever fonts it has.

    Coordinates are rounded to a hundredth of a unit.
    """
    text = _PATH.sub(lambda found: f' d="{_path(found[1])}"', svg)
    text = _PLACED.sub(lambda found: f' {found[1]}="{_rounded(found[2])}"', text)
    text = _FONTS.sub("font-family: 'DejaVu Sans', sans-serif", text)
    return _without_plain_groups(_without_unused_ids(re.sub(r">\s+<", "><", text)))


def _path(commands: str) -> str:
    """Rounded, and a line that follows a point or a line without its letter: two more numbers are one more line."""
    kept, last = [], ""
    for part in _rounded(commands).split():
        if not part.isalpha():
            kept.append(part)
            continue
        if part != "L" or last not in ("M", "L"):
            kept.append(part)
        last = part
    return " ".join(kept)


def _rounded(text: str) -> str:
    return _LONG.sub(_to_a_hundredth, text)


def _to_a_hundredth(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def _without_unused_ids(text: str) -> str:
    used = set(re.findall(r"#([\w.-]+)", text))
    used |= {name for names in re.findall(r'aria-labelledby="([^"]*)"', text) for name in names.split()}
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)


def _without_plain_groups(text: str) -> str:
    kept: list[bool] = []
    parts = []
    for part in _GROUP.split(text):
        if part == "</g>":
            if kept.pop():
                parts.append(part)
        elif part.startswith("<g") and _GROUP.fullmatch(part) and not part.endswith("/>"):
            kept.append(part != "<g>")
            if kept[-1]:
                parts.append(part)
        else:
            parts.append(part)
    return "".join(parts)
