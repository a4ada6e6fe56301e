"""sacreBLEU's paired approximate randomisation for BLEU, with its own numbers but for many systems at once.

sacreBLEU (`--paired-ar`) scores 20 000 shuffled systems one by one for each comparison. Here the same shuffles (numpy's
generator, the same seed) are applied by one matrix product and scored as arrays; where rounding could matter, which is
at ties, sacreBLEU's own function decides. So p is sacreBLEU's to the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRIALS, SEED = 10_000, 12_345
"""sacreBLEU's defaults of `--paired-ar-n` and of SACREBLEU_SEED."""

ORDER = 4
"""Longest n-grams of BLEU."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

_TIE = 1e-9
"""Differences in BLEU that are nearer than this are settled by sacreBLEU's own arithmetic."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What the test says of two systems."""

    difference: float
    """BLEU of the system minus that of the baseline."""
    p: float
    """As sacreBLEU reports it: shuffles with a *larger* absolute difference, plus one, over trials plus one."""
    p_with_ties: float
    """The same with shuffles of an *equal* difference counted: what a randomisation test asks for.

    The two differ where few sentences differ, so that many shuffles tie; sacreBLEU's p is then too small, for two
    equal outputs 1/10 001.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grams:
    """The n-grams of one order that the references have, line by line: a level of a tree."""

    keys: Counts
    """Sorted; each joins the place of the first n - 1 words in the level above (at the top, the line) with the last."""
    counts: Counts
    """How often each stands in its line."""
    lines: Counts

    def find(self, keys: Counts) -> Counts:
        """The place of each of `keys`, -1 where the references have no such n-gram."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


class References:
    """One reference a line, ready for many systems."""

    def __init__(self, lines: Sequence[str]) -> None:
        known = sorted({token for line in lines for word in line.split() for token in _tokens(word)})
        self._ids = {token: number for number, token in enumerate(known, 1)}
        self._numbers: dict[str, tuple[int, ...]] = {}
        words, self._lengths = self._flat(lines)
        places = np.repeat(np.arange(len(lines)), self._lengths)
        self._levels: list[_Grams] = []
        above = places
        for order in range(1, ORDER + 1):
            keys = self._keys(words, places, above, order)
            unique, first, inverse, counts = np.unique(
                keys[keys >= 0], return_index=True, return_inverse=True, return_counts=True
            )
            starts = np.flatnonzero(keys >= 0)
            self._levels.append(_Grams(keys=unique, counts=counts, lines=places[starts[first]]))
            above = np.full(len(keys), -1)
            above[starts] = inverse

    def __len__(self) -> int:
        return len(self._lengths)

    def statistics(self, hypotheses: Sequence[str]) -> Counts:
        """BLEU's sufficient statistics [lines, 10]: tokens, reference tokens, matches of 1 to 4, n-grams of 1 to 4.

        `hypotheses`: one for each reference.
        """
        words, lengths = self._flat(hypotheses)
        places = np.repeat(np.arange(len(hypotheses)), lengths)
        matches, totals = [], []
        above = places
        for order, level in enumerate(self._levels, 1):
            found = level.find(self._keys(words, places, above, order))
            counts = np.bincount(found[found >= 0], minlength=len(level.keys))
            # An n-gram counts at most as often as the reference has it.
            matched = np.minimum(counts, level.counts)
            matches.append(np.bincount(level.lines, weights=matched, minlength=len(self)).astype(np.int64))
            totals.append(np.maximum(lengths - order + 1, 0))
            above = found
        return np.stack([lengths, self._lengths, *matches, *totals], axis=1)

    def _flat(self, lines: Sequence[str]) -> tuple[Counts, Counts]:
        """The tokens of all lines in a row, as numbers, 0 where no reference has them; and how many each line has.

        sacreBLEU's rules for 13a look no further than a blank, so words are taken apart one by one, each once.
        """
        numbers: list[int] = []
        lengths: list[int] = []
        for line in lines:
            before = len(numbers)
            for word in line.split():
                found = self._numbers.get(word)
                if found is None:
                    found = self._numbers[word] = tuple(self._ids.get(token, 0) for token in _tokens(word))
                numbers.extend(found)
            lengths.append(len(numbers) - before)
        return np.array(numbers, dtype=np.int64), np.array(lengths, dtype=np.int64)

    def _keys(self, words: Counts, places: Counts, above: Counts, order: int) -> Counts:
        """The key of every n-gram of `order` by its first word; -1 beyond a line's end, or for no n-gram above."""
        count = max(0, len(words) - order + 1)
        inside = places[:count] == places[order - 1 : order - 1 + count]
        keys = above[:count] * (len(self._ids) + 1) + words[order - 1 : order - 1 + count]
        return np.where(inside & (above[:count] >= 0), keys, -1)


def compare(baselines: Sequence[Counts], systems: Sequence[Counts]) -> list[Comparison]:
    """The test for each system against the baseline at the same place; all over the same lines."""
    if not systems:
        return []
    selector = _selector(len(systems[0]))
    return [
        comparison
        for start in range(0, len(systems), _CHUNK)
        for comparison in _compare(selector, baselines[start : start + _CHUNK], systems[start : start + _CHUNK])
    ]


_CHUNK = 32
"""Systems in one matrix product: as many as keep the memory small."""


def signature() -> str:
    """sacreBLEU's signature of BLEU under this test."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="13a", force=True)
    metric.corpus_score(["a"], [["a"]])
    described = metric.get_signature()
    described.update("seed", str(SEED))
    described.update("ar", TRIALS)
    return str(described)


def _compare(selector: NDArray[np.float32], baselines: Sequence[Counts], systems: Sequence[Counts]) -> list[Comparison]:
    moved = np.hstack([base - system for base, system in zip(baselines, systems, strict=True)])
    # Sums stay below 2^24, where float32 holds every whole number.
    swapped = np.rint(selector @ moved.astype(np.float32)).astype(np.int64)
    found = []
    for place, (base, system) in enumerate(zip(baselines, systems, strict=True)):
        width = base.shape[1]
        delta = swapped[:, place * width : (place + 1) * width]
        found.append(_one(base.sum(axis=0), system.sum(axis=0), delta))
    return found


def _one(base: Counts, system: Counts, delta: Counts) -> Comparison:
    """`delta`: by trial, what swapping lines adds to the system and takes from the baseline."""
    difference = _exact(system) - _exact(base)
    first, second = system + delta, base - delta
    shuffled = np.abs(_bleu(first) - _bleu(second))
    close = np.abs(shuffled - abs(difference)) < _TIE
    larger = int(np.count_nonzero(~close & (shuffled > abs(difference))))
    tied = int(np.count_nonzero(close))
    rows, counts = np.unique(np.hstack([first[close], second[close]]), axis=0, return_counts=True)
    for row, count in zip(rows, counts, strict=True):
        if abs(_exact(row[: len(base)]) - _exact(row[len(base) :])) > abs(difference):
            larger += int(count)
            tied -= int(count)
    return Comparison(
        difference=difference,
        p=(larger + 1) / (TRIALS + 1),
        p_with_ties=(larger + tied + 1) / (TRIALS + 1),
    )


@cache
def _selector(lines: int) -> NDArray[np.float32]:
    """Which lines take the baseline's translation in which trial [trials, lines]; drawn as sacreBLEU draws them."""
    drawn = np.random.default_rng(SEED).integers(2, size=(TRIALS, lines), dtype=bool)
    return drawn.astype(np.float32)


def _bleu(statistics: Counts) -> Floats:
    """BLEU of each row of summed statistics [rows, 10], smoothed as sacreBLEU's `exp`."""
    length, reference = statistics[:, 0].astype(float), statistics[:, 1].astype(float)
    matches, totals = statistics[:, 2 : 2 + ORDER].astype(float), statistics[:, 2 + ORDER :].astype(float)
    unmatched = (matches == 0) & (totals > 0)
    smooth = 2.0 ** np.cumsum(unmatched, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precisions = np.where(unmatched, 100.0 / (smooth * totals), 100.0 * matches / totals)
        # Without n-grams of some length sacreBLEU stops there and takes the logarithm of 0 as -9999999999.
        logs = np.where(totals > 0, np.log(precisions), -9999999999.0).mean(axis=1)
        brevity = np.where(length < reference, np.where(length > 0, np.exp(1 - reference / length), 0.0), 1.0)
    return np.where(matches.any(axis=1), brevity * np.exp(logs), 0.0)


def _exact(statistics: Counts) -> float:
    """BLEU of one row of summed statistics by sacreBLEU's own function."""
    score: float = (
        _metric()
        .compute_bleu(
            correct=list(map(int, statistics[2 : 2 + ORDER])),
            total=list(map(int, statistics[2 + ORDER :])),
            sys_len=int(statistics[0]),
            ref_len=int(statistics[1]),
            smooth_method="exp",
        )
        .score
    )
    return score


@cache
def _metric() -> Any:
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="13a", force=True)


def _tokens(word: str) -> list[str]:
    """sacreBLEU's 13a tokens of what stands between two blanks."""
    return str(_metric().tokenizer(word)).split()
