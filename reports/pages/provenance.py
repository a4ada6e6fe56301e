"""Where every number comes from: for each row its runs, and for each run its records, code, data and machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from reports.formats import DASH, duration, fixed, moment, plain, share
from reports.records.comparable import agreed
from reports.records.machines import device
from reports.records.study import BASE, Run, Study, Variant, at
from reports.statistics.measures import bleu_on_test, valid_perplexity
from reports.tables.table3 import base_settings
from repro.config.paper import DEPARTURES

_HASH_SHOWN = 12

_SIGNATURES = {
    "bleu": "BLEU signature",
    "bleu_intl": "BLEU signature, intl",
    "bleu_compound": "BLEU signature, compounds split",
    "chrf": "chrF signature",
}
"""Every score that a run may have on its test side, and how the page calls its signature."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunDetails:
    """One run as displayed."""

    key: str
    """Its id in the plan, by which the cells of tables name it."""
    id: str
    """The name of its directory, which rows of one configuration share."""
    link: str
    """The run directory, or the archive that holds it, relative to the report."""
    seed: int
    state: str
    reason: str
    bleu: str
    perplexity: str
    attempts: str
    hash: str
    code: str
    machine: str
    threads: str
    seconds: str
    notes: tuple[str, ...]
    study: str
    """The name of the study's directory."""
    mlflow: str
    """Its run in MLflow; empty where it was not tracked."""
    tree: str
    """Whether the code was as committed: "clean", "changed" or "no checkout"; empty before the run has begun."""
    records: Mapping[str, str]
    """The rest of where its numbers come from: full hash, digests, signatures, package versions, system, job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowDetails:
    """One row with its runs."""

    id: str
    anchor: str
    title: str
    configuration: tuple[str, ...]
    """All settings, for base; those of the model, for another family; the other rows have `changes`."""
    changes: tuple[str, ...]
    absent: tuple[str, ...]
    """For another family: settings of base's model that it does not have."""
    differs: tuple[str, ...]
    """What is not as in the paper, beyond what holds for all rows."""
    states: str
    runs: tuple[RunDetails, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What holds for all runs."""

    facts: Mapping[str, str]
    differs: tuple[str, ...]
    """What is not as in the paper, in every finished run."""


def shared(study: Study) -> Shared:
    """The facts that all finished runs have in common; the table refuses studies whose scores disagree in them."""
    facts = {
        "study": study.name,
        "created": moment(study.created),
        "made by": f"attention-ablations {study.version}",
        "corpus": str(study.data.get("corpus", "")),
        "corpus digest": str(study.data.get("digest", "")),
        "vocabulary": f"{fixed(study.data.get('vocabulary_size', 0), 0)} joint pieces",
        "vocabulary digest": agreed(study, "digests", "vocabulary"),
        **{title: _signature(study, score) for score, title in _SIGNATURES.items()},
        "test references": agreed(study, "test", "reference_sha256"),
        "validation references": agreed(study, "valid", "reference_sha256"),
        "versions": _versions(study),
    }
    everywhere = [set(_differs(run)) for run in study.finished]
    common = set.intersection(*everywhere) if everywhere else set()
    ordered = [line for line in _differs(study.finished[0]) if line in common] if everywhere else []
    return Shared(facts={name: text for name, text in facts.items() if text}, differs=tuple(ordered))


def _signature(study: Study, score: str) -> str:
    """The signature of one score where all finished runs agree, and a word where they do not; empty without any."""
    found = {str(text) for run in study.finished if (text := run.value("test", "signatures", score)) is not None}
    return next(iter(found)) if len(found) == 1 else f"{len(found)} different ones: see the runs" if found else ""


def rows(study: Study, report: Path, *, archive: str = "") -> list[RowDetails]:
    """The details of every row; links start from the directory `report`.

    `archive`: where the run directories are packed, for a report that is read without them; runs then lead there.
    """
    common = set(shared(study).differs)
    return [_row(study, variant, lambda run: archive or _place(run, report), common) for variant in study.variants]


def anchor(variant: str) -> str:
    """The id of a row's details in the page."""
    return "row-" + quote(variant, safe="")


def _place(run: Run, report: Path) -> str:
    return quote(Path(os.path.relpath(run.path.resolve(), report.resolve())).as_posix()) + "/"


def _row(study: Study, variant: Variant, link_of: Callable[[Run], str], common: set[str]) -> RowDetails:
    runs = study.by_variant[variant.id]
    own = [line for run in runs for line in _differs(run) if line not in common]
    own.extend(DEPARTURES.get(str(study.settings(variant.id).get("model.family")), ()))
    done = sum(run.done for run in runs)
    return RowDetails(
        id=variant.id,
        anchor=anchor(variant.id),
        title=variant.title,
        configuration=_configuration(study) if variant.id == BASE else _family(study, variant),
        changes=tuple(f"{key} = {plain(value)}" for key, value in variant.changes.items()),
        absent=_absent(study, variant),
        differs=tuple(dict.fromkeys(own)),
        states=f"{done}/{len(runs)} finished",
        runs=tuple(_run(run, link_of(run)) for run in runs),
    )


def _configuration(study: Study) -> tuple[str, ...]:
    labels = ("variant", "table", "scale", "seed")
    return tuple(f"{key} = {plain(value)}" for key, value in base_settings(study).items() if key not in labels)


def _of_other_family(study: Study, variant: Variant) -> bool:
    settings = study.settings(variant.id)
    return bool(settings) and settings.get("model.family") != base_settings(study).get("model.family")


def _family(study: Study, variant: Variant) -> tuple[str, ...]:
    """The model of a row of another family, whose settings have no columns in the table."""
    if not _of_other_family(study, variant):
        return ()
    settings = study.settings(variant.id).items()
    return tuple(f"{key} = {plain(value)}" for key, value in settings if key.startswith("model."))


def _absent(study: Study, variant: Variant) -> tuple[str, ...]:
    if not _of_other_family(study, variant):
        return ()
    has = study.settings(variant.id)
    return tuple(key for key in base_settings(study) if key.startswith("model.") and key not in has)


def _run(run: Run, link: str) -> RunDetails:
    bleu, perplexity, seconds = bleu_on_test(run), valid_perplexity(run), _wall_clock(run)
    progress = f"at {share(run.progress)} of its budget" if run.state in ("running", "stopped") and run.progress else ""
    return RunDetails(
        key=run.id,
        id=run.path.name,
        link=link,
        seed=run.seed,
        state=run.state,
        reason="; ".join(filter(None, (run.reason, progress))),
        bleu=fixed(bleu, 2) if bleu is not None else DASH,
        perplexity=fixed(perplexity, 3) if perplexity is not None else DASH,
        attempts=str(run.attempts),
        hash=run.hash[:_HASH_SHOWN],
        code=_code(run),
        machine=", ".join(filter(None, (_text(run, "host"), device(run)))) if run.environment else DASH,
        threads=str(run.value("threads") or run.settings.get("train.threads", DASH)),
        seconds=duration(seconds) if seconds else DASH,
        notes=_notes(run),
        study=run.study,
        mlflow=run.mlflow,
        tree=_tree(run),
        records=_records(run),
    )


def _differs(run: Run) -> list[str]:
    lines = run.value("differs_from_paper")
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _text(run: Run, *path: str) -> str:
    value = at(run.environment, *path)
    return "" if value is None else str(value)


def _code(run: Run) -> str:
    commit, dirty = _text(run, "code", "commit"), at(run.environment, "code", "dirty")
    if not commit:
        return "no checkout" if run.environment else DASH
    return commit[:_HASH_SHOWN] + (" + changes" if dirty else "")


def _tree(run: Run) -> str:
    """Whether the code was as committed."""
    if not run.environment:
        return ""
    dirty = at(run.environment, "code", "dirty")
    return "no checkout" if dirty is None else "changed" if dirty else "clean"


def _records(run: Run) -> dict[str, str]:
    """What else a reader needs to find, or to make again, the numbers of a run; only what is known."""
    versions, job = at(run.environment, "versions"), at(run.environment, "slurm")
    known = {
        "configuration hash": run.hash,
        "commit": _text(run, "code", "commit"),
        "corpus digest": run.value("digests", "corpus"),
        "vocabulary digest": run.value("digests", "vocabulary"),
        "test references": run.value("test", "reference_sha256"),
        "validation references": run.value("valid", "reference_sha256"),
        **{title: run.value("test", "signatures", score) for score, title in _SIGNATURES.items()},
        "MLflow run": run.mlflow,
        "device": device(run) if run.environment else "",
        "cores": _text(run, "cores"),
        "precision": run.value("precision"),
        "python": _text(run, "python"),
        "platform": _text(run, "platform"),
        "versions": _pairs(versions),
        "SLURM": _pairs(job),
    }
    return {name: str(value) for name, value in known.items() if value}


def _pairs(document: object) -> str:
    if not isinstance(document, Mapping):
        return ""
    return ", ".join(f"{name} {value}" for name, value in document.items() if value is not None)


def _wall_clock(run: Run) -> float:
    """Seconds of all that the run spent, training, data, evaluation, decoding and checkpoints."""
    parts = run.value("seconds")
    if not isinstance(parts, Mapping):
        return 0.0
    return sum(seconds for seconds in parts.values() if isinstance(seconds, int | float))


def _notes(run: Run) -> tuple[str, ...]:
    """What a reader should know of a finished run before trusting it."""
    notes = []
    if run.same_as is not None:
        notes.append(f"the same run as {run.same_as}")
    if skipped := run.number("skipped_steps"):
        notes.append(f"{fixed(skipped, 0)} updates skipped")
    if capped := run.number("test", "capped_share"):
        notes.append(f"{share(capped)} of translations cut at the length cap")
    if unknown := run.number("test", "unknown_share"):
        notes.append(f"{share(unknown)} of source pieces unknown")
    warnings = run.value("test", "warnings")
    if isinstance(warnings, list):
        notes.extend(str(warning) for warning in warnings)
    return tuple(notes)


def _versions(study: Study) -> str:
    """Package versions where all runs agree, and a word where they do not."""
    seen = {
        tuple(sorted((str(name), str(version)) for name, version in versions.items()))
        for run in study.trained
        if isinstance(versions := at(run.environment, "versions"), Mapping)
    }
    if not seen:
        return ""
    if len(seen) > 1:
        return f"{len(seen)} different sets of package versions: see environment.json of the runs"
    return ", ".join(f"{name} {version}" for name, version in next(iter(seen)))
