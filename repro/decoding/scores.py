"""BLEU and chrF by sacreBLEU, each with its signature; nothing here needs torch."""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Literal

from repro.decoding.tokenise import compound_tokens, moses_version
from repro.errors import CheckError

logger = logging.getLogger(__name__)

Protocol = Literal["13a", "intl", "compound"]

PROTOCOLS: tuple[Protocol, ...] = ("13a", "intl", "compound")
"""The ways of counting words that fidelity asks for; 13a is the field's default, compound the paper's own."""

LENGTH_EDGES = (10, 20, 30, 40, 50)
"""Where the groups of `bleu_by_length` end, in words; the last group is open."""

_MARKS = {
    "@@": ("subword-nmt", re.compile(r"@@(?= |$)")),
    "▁": ("sentencepiece", re.compile("▁")),
    "@-@": ("Moses", re.compile("@-@")),
}


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
    protocols: Sequence[Protocol] = PROTOCOLS,
) -> dict[str, Any]:
    """Corpus scores (0 to 100, cased) of `hypotheses` against `references`, line i against line i.

    Keys: `bleu` (protocol 13a), `bleu_intl`, `bleu_compound` (Moses tokens of the target `language`, "de", compounds
    split; see `repro.decoding.tokenise`), as far as `protocols` asks for them, and `chrf`; `signatures`, one for each
    score; `sentences`; `warnings`, also logged; `unavailable`, the reason for each score that is None: the compound
    protocol needs sacremoses and a language.
    Raises CheckError when there is nothing to score or the sides differ in number.
    """
    _check(hypotheses, references)
    from sacrebleu.metrics import CHRF

    scores: dict[str, Any] = {}
    signatures: dict[str, str] = {}
    unavailable: dict[str, str] = {}
    if "13a" in protocols:
        scores["bleu"], signatures["bleu"] = _bleu(hypotheses, references, "13a")
    if "intl" in protocols:
        scores["bleu_intl"], signatures["bleu_intl"] = _bleu(hypotheses, references, "intl")
    if "compound" in protocols:
        try:
            scores["bleu_compound"], signatures["bleu_compound"] = _compound_bleu(hypotheses, references, language)
        except (ModuleNotFoundError, _NoLanguageError) as error:
            scores["bleu_compound"], unavailable["bleu_compound"] = None, str(error)
    chrf = CHRF()
    scores["chrf"] = chrf.corpus_score(hypotheses, [references]).score
    signatures["chrf"] = str(chrf.get_signature())
    return {
        **scores,
        "signatures": signatures,
        "unavailable": unavailable,
        "sentences": len(references),
        "warnings": segmentation_warnings(hypotheses),
    }


def bleu_by_length(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    edges: Sequence[int] = LENGTH_EDGES,
) -> list[dict[str, Any]]:
    """BLEU (13a, cased) of the sentences of each length in words, of the references or of the `sources` if given.

    A document for each group that has sentences, the shortest first: `by` ("source" or "reference": whose words are
    counted), `from` and `to` (words, both inside; `to` is None for the last, open group), `sentences`, `bleu`. Raises
    CheckError as `score` does.
    """
    _check(hypotheses, references)
    by, measured = ("reference", references) if sources is None else ("source", sources)
    if len(measured) != len(references):
        raise CheckError(f"{len(measured)} sources for {len(references)} references", where="scores")
    members: list[list[int]] = [[] for _ in range(len(edges) + 1)]
    for line, text in enumerate(measured):
        members[bisect_left(edges, len(text.split()))].append(line)
    groups: list[dict[str, Any]] = []
    for start, end, lines in zip([0, *(edge + 1 for edge in edges)], [*edges, None], members, strict=True):
        if lines:
            bleu, _ = _bleu([hypotheses[line] for line in lines], [references[line] for line in lines], "13a")
            groups.append({"by": by, "from": start, "to": end, "sentences": len(lines), "bleu": bleu})
    return groups


def segmentation_warnings(hypotheses: Sequence[str]) -> list[str]:
    """A line for each kind of segmentation mark that `hypotheses` still hold; each is logged as well."""
    warnings = []
    for mark, (maker, pattern) in _MARKS.items():
        count = sum(pattern.search(line) is not None for line in hypotheses)
        if count:
            warning = (
                f"{count} of {len(hypotheses)} hypotheses hold the {maker} mark {mark!r}: "
                "join the segments before scoring"
            )
            logger.warning(warning)
            warnings.append(warning)
    return warnings


class _NoLanguageError(Exception):
    """The compound protocol was asked for without a target language."""


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if not references:
        raise CheckError("no references to score against", where="scores", fix="give a test set with at least one line")
    if len(hypotheses) != len(references):
        raise CheckError(
            f"{len(hypotheses)} hypotheses for {len(references)} references",
            where="scores",
            fix="line i of the one must translate line i of the other",
        )


def _bleu(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> tuple[float, str]:
    """Corpus BLEU and its signature."""
    from sacrebleu.metrics import BLEU

    # `force` only silences the advice about text that looks tokenised: some corpora end their sentences with " .".
    metric = BLEU(tokenize=tokenize, force=True)
    bleu: float = metric.corpus_score(hypotheses, [references]).score
    return bleu, str(metric.get_signature())


def _compound_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str | None) -> tuple[float, str]:
    if language is None:
        raise _NoLanguageError("no target language given")
    tokens = compound_tokens(hypotheses, language), compound_tokens(references, language)
    bleu, signature = _bleu(*tokens, "none")
    return bleu, f"{signature}|words:moses-{language}+compounds|sacremoses:{moses_version()}"
