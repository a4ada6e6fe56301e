"""The README of a published study: what was run, on what, what came out, what is missing, and how to make it again."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ablations.estimate import seconds_by_row
from ablations.looks import Look
from ablations.published.form import COPY, SUMS
from ablations.published.records import OUTCOMES
from ablations.study import ARCHIVE, Study
from ablations.tables import variants_of
from repro.config.profiles import profile_settings
from repro.data.corpora import corpus
from repro.errors import UsageError
from repro.runs.attempts import claims

if TYPE_CHECKING:
    from reports.pages.sections import Report
    from reports.records.study import Run


def readme(study: Study, looks: Sequence[Look], report: Report) -> str:
    """In Markdown; the same for the same records. `looks`: where the runs of the staged `study` stand."""
    from reports.pages.markdown import escape
    from reports.pages.published import short_table

    section = report.sections[0]
    opening = [statement.text for statement in section.summary[:2] if statement.text]
    parts = [
        f"# {escape(section.title)}",
        *(escape(text) for text in opening),
        "The report is [report/report.md](report/report.md), and as one page for a browser `report/index.html`.",
        "## What was run",
        _facts(study, looks, section.study.finished),
        "The same from nothing (`ablate plan` tells the cost first):",
        _block(commands(study)),
        *_text(study),
        "## What came out",
        short_table(report).rstrip("\n"),
        "Every value of this table is a line of `cells.csv`, in the same words and unrounded, with the runs that it "
        "comes from; `results.csv` has these run by run.",
        "## What is missing",
        _missing(study, looks),
        "## Files",
        _FILES,
        _not_here(study),
        "## Build it again, check it, go on with it",
        _AGAIN,
    ]
    return "\n\n".join(parts) + "\n"


_FILES = f"""\
| file | what it is |
| :--- | :--- |
| `report/` | the report as `ablate report` makes it: page, text, figures |
| `results.csv` | a row a run: scores with signatures, FLOPs, seconds, machine, versions, digests |
| `evaluations.csv` | a row an evaluation: the learning curves |
| `cells.csv` | a row a cell of the report's tables |
| `SCHEMA.md` | every column of the three |
| `{COPY}` | the frozen plan |
| `{ARCHIVE}` | the records: of runs configuration, environment, metrics, result and test translations; of probes |
| `{SUMS}` | digests of all these files |"""

_AGAIN = f"""\
In this directory, with `ABLATE_DATA` where you keep corpora (`ablate publish` prepares this one there if need be),

    export ABLATE_DATA=/tmp/corpora
    ablate publish . /tmp/again && diff -r . /tmp/again

makes everything but `{ARCHIVE}` from `{ARCHIVE}`, byte for byte with the same version of the program and the packages
of its `constraints.txt`; `sha256sum -c {SUMS}` checks the files alone.

    ablate unpack . STUDY

makes a study of it in the directory `STUDY`, outside of this one: `ablate status`, `report`, `compare` and `sync`
work there, and `ablate run` with `--study STUDY` does what is missing, more seeds or more rows, and nothing twice.
What needs weights trains anew."""


def _not_here(study: Study) -> str:
    from reports.formats import counted

    told = "Not here: weights, translations of the validation side, names of hosts, users and jobs"
    if study.superseded:
        told += f", and the records of {counted(len(study.superseded), 'run')} of what the study was before it changed"
    return told + "."


def _text(study: Study) -> list[str]:
    """Where its corpus comes from, unless the program makes it."""
    name = study.data.corpus
    origin = corpus(name).origin
    if origin == "generated":
        return []
    if_any = "Where it cannot be downloaded" if origin == "download" else "Where it is not prepared"
    return [f"The corpus is `{name}`. {if_any}, `--source DIR` tells these commands and `ablate publish` its text."]


def commands(study: Study) -> list[str]:
    """The commands that make the study from nothing: one, or more where rows have different numbers of seeds."""
    document = study.document
    seeds: dict[str, int] = {}
    for run in study.planned:
        seeds[run.variant] = max(seeds.get(run.variant, 0), run.seed)
    all_rows = _rows(study)
    parts = ["ablate", "run", study.table, "--scale", study.scale]
    more = ["--profile", document["profile"]] if document.get("profile") else []
    for text in _settings(document):
        more += ["--set", text]
    found = []
    for count in sorted(set(seeds.values())):
        rows = [row for row, number in seeds.items() if number == count]
        only = [] if set(rows) == set(all_rows) else ["--only", ",".join(row for row in all_rows if row in rows)]
        found.append(shlex.join([*parts, "--seeds", str(count), *only, *more, "--study", f"studies/{_name(study)}"]))
    return found


def _rows(study: Study) -> list[str]:
    """The rows of the study's tables, in order, and those that it has besides."""
    try:
        known = [variant.id for variant in variants_of(study.table)]
    except UsageError:  # a table of another version
        known = []
    return list(dict.fromkeys([*known, *(entry["id"] for entry in study.document["variants"])]))


def _settings(document: dict[str, Any]) -> list[str]:
    """The settings that were given beside those of the profile."""
    from ablations.scales import SCALES

    given, profile = list(document["set"]), document.get("profile")
    if profile and document["scale"] in SCALES:
        theirs = list(profile_settings(profile, SCALES[document["scale"]].base.document()))
        if given[: len(theirs)] == theirs:
            return given[len(theirs) :]
    return given


def _name(study: Study) -> str:
    return str(study.document.get("study", "study"))


def _facts(study: Study, looks: Sequence[Look], finished: Sequence[Run]) -> str:
    from reports.formats import listed, plain
    from reports.pages.markdown import escape
    from reports.records.machines import machine
    from reports.records.study import at

    data, train = study.data, study.document["base"].get("train", {})
    done = sum(found.status.state == "done" for found in looks)
    rows = [
        ("study", f"`{_name(study)}`: {study.table} at scale {study.scale}"),
        ("rows", str(len(study.document["variants"]))),
        ("seeds", listed(_texts(study.document["seeds"]))),
        ("runs", f"{done} of {len(looks)} done"),
        ("budget of base", f"{plain(train.get('budget'))} {train.get('budget_unit', '')}"),
        ("corpus", f"{data.corpus}, {data.vocabulary_size} joint pieces, digest `{data.digest}`"),
        ("from, to", _dates(found for found in looks if found.status.state == "done")),
        ("machines", _counted(machine(run) for run in finished)),
        ("systems", _counted(_joined(run, "python", "platform") for run in finished)),
        ("packages", _counted(_versions(at(run.environment, "versions")) for run in finished)),
        ("code", _counted(_code(run) for run in finished)),
    ]
    return "\n".join(["| | |", "| :--- | :--- |", *(f"| {name} | {_cell(escape, text)} |" for name, text in rows)])


def _cell(escape: Any, text: str) -> str:
    """Escaped, but for code."""
    return "`".join(part if number % 2 else escape(part) for number, part in enumerate(text.split("`")))


def _texts(values: Iterable[object]) -> list[str]:
    return [str(value) for value in values]


def _dates(done: Iterable[Look]) -> str:
    """From the first attempt at a finished run to the end of the last."""
    begun, ended = [], []
    for found in done:
        begun += [claim.started for claim in claims(found.run.directory)]
        ended.append(found.status.updated)
    times = [seconds for seconds in (*begun, *ended) if seconds]
    return f"{_moment(min(times))}, {_moment(max(times))}" if times else "not known"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _joined(run: Run, *names: str) -> str:
    from reports.records.study import at

    found = [str(at(run.environment, name) or "") for name in names]
    return ", ".join(f"Python {text}" if name == "python" else text for name, text in zip(names, found, strict=True))


def _versions(versions: object) -> str:
    if not isinstance(versions, dict):
        return ""
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)


def _code(run: Run) -> str:
    from reports.records.study import at

    commit, dirty = at(run.environment, "code", "commit"), at(run.environment, "code", "dirty")
    return f"commit `{commit}`" + (" with changes" if dirty else "") if commit else "no checkout"


def _counted(texts: Iterable[str]) -> str:
    """Each text once, most frequent first, with the number of runs where there are several."""
    from reports.formats import counted

    found = Counter(text for text in texts if text)
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(
        f"{text} ({counted(number, 'run')})"
        for text, number in sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
    )


def _missing(study: Study, looks: Sequence[Look]) -> str:
    """The runs without a result, row by row, with what they would take on the machines of the others."""
    from reports.formats import counted, duration, listed
    from reports.pages.markdown import escape

    left = [found for found in looks if found.status.state != "done"]
    if not left:
        return f"Nothing: all {counted(len(looks), 'run')} are done."
    seconds = seconds_by_row(study, looks)
    rows: dict[str, list[Look]] = {}
    order = _rows(study)
    for found in sorted(left, key=lambda found: (order.index(found.run.variant), found.run.seed)):
        rows.setdefault(found.run.variant, []).append(found)
    lines = ["| row | seeds | why | estimate, a run |", "| :--- | :--- | :--- | ---: |"]
    for row, runs in rows.items():
        why = dict.fromkeys(_why(found) for found in runs)
        time = duration(seconds[row]) if row in seconds else "not known"
        seeds = listed(_texts(found.run.seed for found in runs))
        lines.append(f"| {escape(row)} | {seeds} | {escape('; '.join(why))} | {time} |")
    known = [seconds[found.run.variant] for found in left if found.run.variant in seconds]
    total = f", about {duration(math.fsum(known))} of work one after the other" if len(known) == len(left) else ""
    told = f"{counted(len(left), 'run')} of {len(looks)}{total} (estimate: from the seconds of the finished runs)."
    return told + "\n\n" + "\n".join(lines)


def _why(found: Look) -> str:
    if found.status.state not in OUTCOMES:
        return "not finished"
    return f"{found.status.state}: {found.status.reason}" if found.status.reason else found.status.state


def _block(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
