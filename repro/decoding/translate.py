"""Lines of text to lines of text: batches by length, output in the order of the input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from repro.config.run import DecodeConfig
from repro.data.pieces import EOS, PAD, UNK
from repro.data.text import is_blank
from repro.decoding.beam import BeamSearch, Hypothesis
from repro.errors import CheckError
from repro.models.seq2seq import Seq2Seq
from repro.shortage import is_shortage, release

_SHORT = 16
"""Sentences under this many pieces count as that many when a batch is filled: what is generated may outgrow them."""


class Coder(Protocol):
    """What translation needs of a vocabulary."""

    def encode(self, lines: list[str], /) -> list[list[int]]:
        """The pieces of each line, without special ones but the unknown piece."""

    def decode(self, ids: list[int], /) -> str:
        """The text of the pieces `ids`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Translations:
    """Translated lines, one for each source line and in the same order."""

    lines: list[str]
    hypotheses: list[Hypothesis | None]
    """None for a blank line, which the model never sees."""
    source_pieces: int
    unknown_pieces: int
    """Of `source_pieces`, those that the vocabulary did not know."""
    batch_tokens: int
    """`decode.batch_tokens`, or less where memory ran out and batches were halved: the lines are the same."""

    @property
    def capped_share(self) -> float:
        """Share of the translated lines (0 to 1, blank ones left out) that were cut at their cap."""
        found = [hypothesis for hypothesis in self.hypotheses if hypothesis is not None]
        return sum(hypothesis.capped for hypothesis in found) / len(found) if found else 0.0

    @property
    def unknown_share(self) -> float:
        """Share of the source pieces (0 to 1) that the vocabulary did not know."""
        return self.unknown_pieces / self.source_pieces if self.source_pieces else 0.0


def translate_lines(
    model: Seq2Seq[Any, Any],
    vocabulary: Coder,
    lines: Sequence[str],
    config: DecodeConfig,
    *,
    device: torch.device | str = "cpu",
    first_line: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Translations:
    """Translate `lines` with `model`, which is on `device`; a blank line gives an empty line.

    A line of more pieces, with its end mark, than `model.max_positions` raises CheckError before anything is
    translated; its number counts from `first_line`, for text that comes in parts. `progress` is told lines done and
    lines in all.
    """
    encoded = vocabulary.encode(list(lines))
    sources = [[] if is_blank(line) else pieces for line, pieces in zip(lines, encoded, strict=True)]
    _refuse_too_long(sources, model.max_positions, first_line)
    filled = [number for number, pieces in enumerate(sources) if pieces]
    found: list[Hypothesis | None] = [None] * len(sources)
    texts = [""] * len(sources)
    limits = [config.batch_tokens]
    hypotheses = search_all(model, [sources[number] for number in filled], config, device=device, smaller=limits.append)
    for done, (index, hypothesis) in enumerate(hypotheses, start=1):
        found[filled[index]] = hypothesis
        texts[filled[index]] = vocabulary.decode(list(hypothesis.ids))
        if progress is not None:
            progress(done, len(filled))
    return Translations(
        lines=texts,
        hypotheses=found,
        source_pieces=sum(len(pieces) for pieces in sources),
        unknown_pieces=sum(pieces.count(UNK) for pieces in sources),
        batch_tokens=limits[-1],
    )


def search_all(
    model: Seq2Seq[Any, Any],
    sources: Sequence[Sequence[int]],
    config: DecodeConfig,
    *,
    device: torch.device | str = "cpu",
    smaller: Callable[[int], object] | None = None,
) -> Iterator[tuple[int, Hypothesis]]:
    """Search the sentences `sources` (pieces without the end mark) batch by batch, the longest ones first.

    Yields the index into `sources` and the best hypothesis of every sentence once, in the order of the batches. Where
    memory runs out, batches are halved from there on, which changes no result; `smaller` is then told what stands in
    for `config.batch_tokens`. The model's parameters stay as they are until the last is found. Raises CheckError when a
    single sentence does not fit.
    """
    lengths = [len(source) for source in sources]
    order, start, tokens = _longest_first(lengths), 0, config.batch_tokens
    searcher = BeamSearch(model, config)
    while start < len(order):
        batch = order[start : start + _size(lengths[order[start]], tokens, config.beam)]
        found = _searched(searcher, [sources[index] for index in batch], device)
        if found is None:
            release()
            tokens = _halved(len(batch), lengths[batch[0]], config)
            if smaller is not None:
                smaller(tokens)
            continue
        yield from zip(batch, found, strict=True)
        start += len(batch)


def batches_by_length(lengths: Sequence[int], config: DecodeConfig) -> Iterator[list[int]]:
    """Indices into `lengths` (pieces without the end mark) in batches of similar length, the longest first.

    Sentences x longest x beam stays within `config.batch_tokens`; a longer sentence makes a batch of its own. The
    longest come first so that a batch too big for the device fails at once.
    """
    order, start = _longest_first(lengths), 0
    while start < len(order):
        size = _size(lengths[order[start]], config.batch_tokens, config.beam)
        yield order[start : start + size]
        start += size


def padded(sources: Sequence[Sequence[int]]) -> Tensor:
    """[batch, src_len] of `sources`, each ended by the end mark and padded."""
    rows = [torch.tensor([*source, EOS], dtype=torch.int64) for source in sources]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def _width(longest: int) -> int:
    """Positions that a sentence of `longest` pieces counts as."""
    return max(longest + 1, _SHORT)


def _size(longest: int, tokens: int, beam: int) -> int:
    """Sentences of at most `longest` pieces that go into a batch of `tokens`."""
    return max(1, tokens // (_width(longest) * beam))


def _halved(sentences: int, longest: int, config: DecodeConfig) -> int:
    """The tokens of a batch of half of `sentences`. Raises CheckError when there is but one."""
    if sentences == 1:
        raise CheckError(
            f"out of memory: a single sentence of {longest} pieces with a beam of {config.beam} does not fit",
            where="decode",
            fix="run fewer at once, lower decode.beam or decode.extra_length, or take a device with more memory",
        )
    return sentences // 2 * _width(longest) * config.beam


def _searched(
    searcher: BeamSearch, sources: Sequence[Sequence[int]], device: torch.device | str
) -> list[Hypothesis] | None:
    """The best hypothesis of each of `sources`; None when memory ran out."""
    try:
        return searcher.search(padded(sources).to(device))
    except (RuntimeError, MemoryError) as error:
        if not is_shortage(error):
            raise
        return None


def _refuse_too_long(sources: Sequence[Sequence[int]], max_positions: int | None, first_line: int) -> None:
    if max_positions is None:
        return
    long = [index for index, pieces in enumerate(sources) if len(pieces) + 1 > max_positions]
    if long:
        others = f" and {len(long) - 1} more" if len(long) > 1 else ""
        raise CheckError(
            f"{len(sources[long[0]]) + 1} pieces with the end mark, learned positions end at {max_positions}",
            where=f"line {first_line + long[0]}{others}",
            fix="shorten or split it, or train with a larger model.max_positions",
        )
