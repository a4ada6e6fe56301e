"""A compacted drawing is the drawing: the same shapes in the same order, to a hundredth of a pixel."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from reports.figures.compact import compacted

DRAWN = ("path", "use", "text", "rect")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def drawn() -> str:
    """Lines, bands, bars, markers and words, as matplotlib writes them."""
    figure = Figure(figsize=(6, 4))
    left, right = figure.subplots(1, 2)
    left.plot([0, 1 / 3, 2, 7.77], [-1.0, 2 / 7, 0.1234567, 3], "o--", label="a  <b> & c")
    left.fill_between([0, 1, 2], [0, 1, 1.1], [1, 2, 2.2], alpha=0.2)
    right.barh([1, 2, 3], [1 / 7, 22 / 7, -1e-9])
    right.errorbar([1, 2], [1, 2], xerr=[0.3, 1 / 3])
    left.legend()
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "x", "font.family": ["DejaVu Sans"]}):
        figure.savefig(buffer, format="svg")
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    return text[text.index("<svg") :]


def shapes(svg: str) -> list[tuple[str, list[str], list[float], str]]:
    """Every drawn thing with the letters of its path, all its numbers, and its words."""
    found = []
    for node in ElementTree.fromstring(svg).iter():
        name = node.tag.rpartition("}")[2]
        if name in DRAWN:
            letters, numbers = _path(node.get("d", ""))
            for key in ("x", "y", "width", "height", "transform"):
                numbers += [float(number) for number in NUMBER.findall(node.get(key, ""))]
            found.append((name, letters, numbers, "".join(node.itertext())))
    return found


def _path(commands: str) -> tuple[list[str], list[float]]:
    """A path with every command spelled out: SVG lets a line follow a point or a line without its letter."""
    letters, numbers, left = list[str](), list[float](), 0
    for part in re.findall(r"[A-Za-z]|-?\d+(?:\.\d+)?", commands):
        if part.isalpha():
            letters.append(part)
            left = {"M": 2, "L": 2, "C": 6, "Q": 4}.get(part, 0)
            continue
        if left == 0:
            assert letters[-1] in "ML"
            letters.append("L")
            left = 2
        numbers.append(float(part))
        left -= 1
    return letters, numbers


def test_the_same_shapes_are_drawn(drawn: str) -> None:
    before, after = shapes(drawn), shapes(compacted(drawn))
    assert len(before) > 40
    assert [(name, letters, words) for name, letters, _, words in after] == [
        (name, letters, words) for name, letters, _, words in before
    ]
    for (*_, exact, _), (*_, rounded, _) in zip(before, after, strict=True):
        assert rounded == pytest.approx(exact, abs=0.0051)


def test_it_is_much_smaller_and_no_smaller_a_second_time(drawn: str) -> None:
    once = compacted(drawn)
    assert len(once) < 0.8 * len(drawn)
    assert compacted(once) == once


def test_every_name_that_is_referred_to_is_there_and_no_other(drawn: str) -> None:
    text = compacted(drawn)
    tree = ElementTree.fromstring(text)
    named = [node.get("id") for node in tree.iter() if node.get("id")]
    assert sorted(named) == sorted(set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", text)))


def test_the_style_of_what_is_drawn_stays(drawn: str) -> None:
    def styles(svg: str) -> list[str | None]:
        nodes = ElementTree.fromstring(svg).iter()
        return [node.get("style") for node in nodes if node.tag.rpartition("}")[2] in ("path", "use")]

    def clips(svg: str) -> int:
        return svg.count("clip-path=")

    assert styles(compacted(drawn)) == styles(drawn)
    assert clips(compacted(drawn)) == clips(drawn)
