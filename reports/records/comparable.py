"""What may stand in one column: scores of one protocol, on one reference, over one vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from reports.records.study import SEARCH, Run, Study
from repro.errors import CheckError, UsageError

_MUST_AGREE = {
    "BLEU signatures of the test side": ("test", "signatures", "bleu"),
    "test references": ("test", "reference_sha256"),
    "validation references": ("valid", "reference_sha256"),
    "vocabularies (perplexity is per piece)": ("digests", "vocabulary"),
    "corpora": ("digests", "corpus"),
}
"""What every finished run of a table must have in common, and where its result tells it."""


def check_no_search(study: Study) -> None:
    """Raise UsageError for a search: its rows were trained on unequal budgets, so that no table can compare them."""
    if study.kind == SEARCH:
        raise UsageError(
            "a search: its rows were trained on unequal budgets and are not comparable at equal budget",
            where=str(study.path),
            fix="see ablate status, which ranks them by what was seen",
        )


def check_comparable(study: Study, *, mixed: bool = False) -> None:
    """Raise CheckError when finished runs of `study` differ in signature, reference, vocabulary or corpus.

    `mixed`: they were asked for side by side; `odd_runs` then says which to mark.
    """
    if not mixed:
        check_runs_comparable(study.finished, str(study.path))


_APART = (
    "score the runs again with one version (ablate evaluate RUN), report them as separate studies, or ask for them "
    "side by side (ablate report --mixed), each marked"
)


def check_runs_comparable(runs: Iterable[Run], where: str, *, fix: str = _APART) -> None:
    """Raise CheckError with `fix` when the finished `runs` differ in signature, reference, vocabulary or corpus."""
    finished = [run for run in runs if run.done]
    for what, path in _MUST_AGREE.items():
        first: dict[str, str] = {}
        for run in finished:
            first.setdefault(str(run.value(*path)), run.id)
        if len(first) > 1:
            shown = " and ".join(f"{value} ({run})" for value, run in list(first.items())[:2])
            raise CheckError(
                f"{len(first)} different {what} cannot stand in one table: {shown}",
                where=where,
                fix=fix,
            )


def odd_runs(study: Study) -> Mapping[str, str]:
    """The finished runs that are not as most are, each with what differs: "BLEU signatures of the test side"."""
    odd: dict[str, list[str]] = {}
    for what, path in _MUST_AGREE.items():
        counts = Counter(str(run.value(*path)) for run in study.finished)
        usual = next(iter(counts.most_common(1)), ("", 0))[0]
        for run in study.finished:
            if str(run.value(*path)) != usual:
                odd.setdefault(run.id, []).append(what)
    return {run: ", ".join(differences) for run, differences in odd.items()}


def agreed(study: Study, *path: str) -> str:
    """The one value at `path` in the results of all finished runs; empty without any."""
    return next((str(value) for run in study.finished if (value := run.value(*path)) is not None), "")
