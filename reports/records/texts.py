"""The text that the runs of a study were scored on, where it is still at hand, and what they made of it."""

from __future__ import annotations

from pathlib import Path

from reports.records.comparable import agreed
from reports.records.study import Run, Study
from repro.data.text import read_lines
from repro.errors import CheckError
from repro.files import digest_of_file, read_json
from repro.runs.directory import RunDirectory


def reference_of(study: Study) -> Path | None:
    """The untouched reference file of the test side, when it is at hand and the one that the runs were scored on."""
    found = _raw_test(study)
    return found[1] if found is not None else None


def lines_of_test(study: Study) -> tuple[list[str], list[str]] | None:
    """Sources and references of the test side; None unless those that the runs were scored on are at hand."""
    found = _raw_test(study)
    if found is None or not found[0].is_file():
        return None
    sources, references = map(read_lines, found)
    return (sources, references) if len(sources) == len(references) else None


def _raw_test(study: Study) -> tuple[Path, Path] | None:
    """The source and the reference file of the test side; the reference is there and the one that was scored on."""
    scored_on = agreed(study, "test", "reference_sha256")
    folders = [study.path / str(study.data.get("directory", ""))]  # an absolute directory stays as it is
    folders += [folder for run in study.finished[:1] if (folder := _data_directory(run)) is not None]
    for folder in folders:
        try:
            # The prepared corpus's own reader needs torch, which a report does without.
            languages = read_json(folder / "manifest.json")["languages"]
            source, reference = (folder / "raw" / f"test.{language}" for language in languages)
            if reference.is_file() and digest_of_file(reference) == scored_on:
                return source, reference
        except (CheckError, KeyError, TypeError, ValueError):
            continue
    return None


def _data_directory(run: Run) -> Path | None:
    try:
        return RunDirectory(run.path).data_directory()
    except (CheckError, KeyError):
        return None
