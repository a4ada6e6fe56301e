"""What may stand in one column: scores of one protocol, on one reference, over one vocabulary."""

from __future__ import annotations

from reports.records import Study
from repro.errors import CheckError

_MUST_AGREE = {
    "BLEU signatures of the test side": ("test", "signatures", "bleu"),
    "test references": ("test", "reference_sha256"),
    "validation references": ("valid", "reference_sha256"),
    "vocabularies (perplexity is per piece)": ("digests", "vocabulary"),
    "corpora": ("digests", "corpus"),
}
"""What every finished run of a table must have in common, and where its result tells it."""


def check_comparable(study: Study) -> None:
    """Raise CheckError when finished runs of `study` differ in signature, reference, vocabulary or corpus."""
    for what, path in _MUST_AGREE.items():
        first: dict[str, str] = {}
        for run in study.finished:
            first.setdefault(str(run.value(*path)), run.id)
        if len(first) > 1:
            shown = " and ".join(f"{value} ({run})" for value, run in list(first.items())[:2])
            raise CheckError(
                f"{len(first)} different {what} cannot stand in one table: {shown}",
                where=str(study.path),
                fix="score the runs again with one version (ablate evaluate RUN), or report them as separate studies",
            )


def agreed(study: Study, *path: str) -> str:
    """The one value at `path` in the results of all finished runs; empty without any."""
    return next((str(value) for run in study.finished if (value := run.value(*path)) is not None), "")
