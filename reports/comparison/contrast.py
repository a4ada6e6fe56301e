"""How a comparison of two rows is shown: on a terminal, and as a page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from reports.comparison.rows import Comparison, Score
from reports.formats import DASH, fixed, scientific, signed
from reports.pages.templates import TEMPLATES
from reports.statistics.measures import Measure
from reports.statistics.significance import Test

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LARGE = 1e9


def show(of: Comparison, console: Console) -> None:
    """Print `of`."""
    from rich.text import Text

    console.print(Text(heading(of), style="bold"))
    console.print(_grid(["", "first", "second", "second minus first"], score_lines(of.scores), left=1))
    for line in test_lines(of):
        console.print(Text(line))
    if of.settings:
        console.print(_grid(["setting", "first", "second"], of.settings, left=3))
    if of.lengths:
        console.print(_grid(length_headings(of), length_lines(of), left=1))
    for number, sentence in enumerate(of.sentences):
        if number == 0:
            console.print(Text(sentences_title(of), style="bold"))
        console.print(Text(f"line {sentence.number}, chrF {signed(sentence.gain, 1)}", style="dim"))
        for name, text in (
            ("source", sentence.source),
            ("reference", sentence.reference),
            ("first", sentence.first),
            ("second", sentence.second),
        ):
            console.print(Text(f"  {name:9} {text}"), soft_wrap=True)


def page(of: Comparison) -> str:
    """`of` as HTML; all of it is escaped but for our own style sheet."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"fixed": fixed, "signed": signed}
    template = environment.from_string(Path(__file__).with_name("compare.html.j2").read_text(encoding="utf-8"))
    return template.render(
        of=of,
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        heading=heading(of),
        scores=score_lines(of.scores),
        tests=test_lines(of),
        length_headings=length_headings(of),
        lengths=length_lines(of),
        sentences_title=sentences_title(of),
    )


def heading(of: Comparison) -> str:
    """The two rows in one line."""
    names = [f"{side.name}" for side in (of.first, of.second)]
    return f"{names[0]} (first) and {names[1]} (second)"


def score_lines(scores: Sequence[Score]) -> list[list[str]]:
    """A line a quantity: name with unit, first, second, second minus first."""
    return [[score.title + (f" ({score.unit})" if score.unit else ""), *_triple(score)] for score in scores]


def length_headings(of: Comparison) -> list[str]:
    """The headings of `length_lines`."""
    return [f"words of the {of.by or 'source'}", "sentences", "BLEU, first", "BLEU, second", "second minus first"]


def length_lines(of: Comparison) -> list[list[str]]:
    """A line a length: its words, sentences, BLEU of the first and of the second, second minus first."""
    return [[part.span.words, fixed(part.sentences, 0), *_triple(part.bleu)] for part in of.lengths]


def test_lines(of: Comparison) -> list[str]:
    """What the tests say, and by which signature the scores were made."""
    lines = [line for test in (of.tests.seeds, of.tests.test_set) for line in _test(test)]
    return [*(lines or ["No pair of runs with one seed: nothing to test."]), f"BLEU signature: {of.signature or DASH}"]


def sentences_title(of: Comparison) -> str:
    """What the sentences shown are."""
    return f"The sentences that differ most by chrF, seed {of.seed}: first those the second does better"


def _test(test: Test | None) -> Iterator[str]:
    if test is None:
        return
    p = "no p" if test.p is None else f"p = {test.p:.2g}"
    yield f"{test.name}: {p}; {test.detail}"


def _triple(score: Score) -> list[str]:
    return [
        _measure(score.first, score.digits),
        _measure(score.second, score.digits),
        _measure(score.difference, score.digits, sign=True),
    ]


def _measure(values: Measure, digits: int, *, sign: bool = False) -> str:
    """The mean with its interval and how many seeds it is of."""
    if values.mean is None:
        return DASH
    shown = scientific(values.mean) if abs(values.mean) >= _LARGE else (signed if sign else fixed)(values.mean, digits)
    interval = values.interval
    if interval is not None and interval.half and abs(values.mean) < _LARGE:
        shown += f" ±{fixed(interval.half, digits)}"
    return f"{shown} (n = {values.n}{f' of {values.planned}' if values.n < values.planned else ''})"


def _grid(headings: Sequence[str], lines: Sequence[Sequence[str]], *, left: int) -> Table:
    """Lines under headings; the first `left` columns are words, the others numbers."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(headings):
        grid.add_column(name, justify="left" if number < left else "right")
    for line in lines:
        grid.add_row(*(Text(text) for text in line))
    return grid
