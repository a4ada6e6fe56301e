"""What a study directory says, in the words of the tracking store: names, tags, parameters, states, files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from ablations.study import SEARCH_WARNING, Study, StudyRun
from ablations.tracking.artifacts import HYPOTHESES, RUN_FILES
from ablations.tracking.names import LONGEST_PARAM, LONGEST_TAG, cut, entity_name, text_of
from repro.errors import CheckError
from repro.files import digest_of
from repro.runs.attempts import claims
from repro.runs.directory import Status

STUDY_ID = "ablate.study_id"
RUN_ID = "ablate.run_id"
KIND = "ablate.kind"
CREATED = "ablate.created"
"""When the MLflow run was made (Unix seconds): of two for one identity the older stays."""
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
"""Markdown that the pages show as a run's description."""

MLFLOW_STATE = {
    "running": "RUNNING",
    "done": "FINISHED",
    "failed": "FAILED",
    "diverged": "FAILED",
    "stopped": "KILLED",
}
"""A begun run's state to MLflow's."""


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """The study's plan as the parent run shows it."""

    study: Study

    @cached_property
    def id(self) -> str:
        """The study's identity, which it keeps when its directory is moved or renamed."""
        document = self.study.document
        plan = {name: document.get(name) for name in ("study", "table", "scale", "created")}
        # The corpus that it was created with: it may have been given another one since.
        first = next((was.get("data") for was in document.get("history", [])), None)
        plan["data"] = first.get("digest") if isinstance(first, dict) else self.study.data.digest
        return digest_of(plan)[:16]

    @cached_property
    def superseded(self) -> set[str]:
        """Ids of the runs of what the study was before its base, its corpus or the code changed."""
        return {run.id for run in self.study.superseded}

    @cached_property
    def runs(self) -> list[StudyRun]:
        """All that are to be trained or were, each directory once. A superseded one may have been removed."""
        left = [run for run in self.study.superseded if run.path.exists()]
        return list({run.path: run for run in (*left, *self.study.runs)}.values())

    @property
    def experiment(self) -> str:
        """The experiment's name."""
        return f"{self.study.table}/{self.study.scale}"

    @cached_property
    def variants(self) -> dict[str, dict[str, Any]]:
        """The plan's rows by id."""
        return {variant["id"]: variant for variant in self.study.document["variants"]}

    @cached_property
    def twins(self) -> dict[str, list[str]]:
        """For a run's id: further variants that come to the same configuration and are not trained again."""
        found: dict[str, list[str]] = {}
        for run in self.study.planned:
            if run.same_as is not None:
                found.setdefault(run.same_as, []).append(run.variant)
        return found

    @property
    def started(self) -> int:
        """When the study was created, Unix milliseconds."""
        try:
            created = datetime.fromisoformat(str(self.study.document.get("created")))
        except ValueError:
            return int((self.study.path / "study.json").stat().st_mtime * 1000)
        return int((created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp() * 1000)

    def params(self) -> dict[str, str]:
        """What the study is about and never changes."""
        data = self.study.data
        return {
            "table": self.study.table,
            "scale": self.study.scale,
            "corpus": data.corpus,
            "vocabulary_size": str(data.vocabulary_size),
            "set": cut(text_of(self.study.document.get("set", [])), LONGEST_PARAM) or "none",
        }

    def tags(self) -> dict[str, str]:
        """The study's tags; seeds and variants may grow."""
        document = self.study.document
        tags = {
            "mlflow.source.name": f"ablate run {self.study.table} --scale {self.study.scale}",
            "mlflow.source.type": "LOCAL",
            "ablate.study": self.study.name,
            STUDY_ID: self.id,
            KIND: "study",
            "table": self.study.table,
            "scale": self.study.scale,
            "seeds": text_of(document.get("seeds", [])),
            "variants": text_of(list(self.variants)),
            "corpus_digest": self.study.data.digest,
            "directory": str(self.study.path.resolve()),
            "version": text_of(document.get("version")),
            "warning": self.warning,
            NOTE: self._note(),
        }
        return {name: cut(value, LONGEST_TAG) for name, value in tags.items()}

    @property
    def warning(self) -> str:
        """What must stand beside the study's figures; empty for a table at one budget."""
        return SEARCH_WARNING if self.study.searched else ""

    def _note(self) -> str:
        seeds = text_of(self.study.document.get("seeds", []))
        return (
            f"Study `{self.study.name}`: table `{self.study.table}` at scale `{self.study.scale}`, "
            f"{len(self.variants)} variants, seeds {seeds}. Its runs are the child runs; this is a copy of what "
            f"stands in `{self.study.path.resolve()}`, brought up to date by `ablate sync`."
            + (f" **{self.warning}**" if self.warning else "")
        )

    def files(self) -> dict[str, Path]:
        """The artifacts of the parent: the plan and the report, by their names there."""
        report = self.study.path / "report"
        found = {"study.json": self.study.path / "study.json"}
        for path in sorted(report.rglob("*")):
            inside = path.relative_to(self.study.path)
            if path.is_file() and not any(part.startswith(".") for part in inside.parts):
                found[inside.as_posix()] = path
        return found

    def fingerprint(self) -> str:
        """Changes whenever the plan or the report does."""
        return _stamp(self.files().values())


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run's directory, read once."""

    study: StudyRecord
    run: StudyRun
    status: Status
    settings: Mapping[str, Any]
    """The resolved configuration by dotted key."""
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    """Empty while the run is not done."""
    started: int
    """Unix milliseconds of the first attempt; 0: not begun."""

    @staticmethod
    def read(study: StudyRecord, run: StudyRun) -> RunRecord:
        """The record of `run`. Raises CheckError when its files are damaged."""
        directory = run.directory
        status = directory.status()
        attempts = claims(directory)
        result = directory.result() if status.state == "done" else None
        if directory.hash() != run.hash:
            raise CheckError("holds another run than the planned one", where=str(run.path))
        return RunRecord(
            study=study,
            run=run,
            status=status,
            settings=dict(_flat(directory.config().document())),
            environment=directory.environment() or {},
            result=result or {},
            started=int((attempts[0].started if attempts else status.updated) * 1000),
        )

    @property
    def superseded(self) -> bool:
        """Whether the study has another run in its place."""
        return self.run.id in self.study.superseded

    @property
    def begun(self) -> bool:
        """Whether there is anything to show."""
        return self.status.state != "planned"

    @property
    def settled(self) -> bool:
        """Whether nobody works on the run."""
        return self.status.state not in ("planned", "running")

    @property
    def ended(self) -> int:
        """When the run last changed, Unix milliseconds."""
        return max(int(self.status.updated * 1000), self.started)

    @property
    def name(self) -> str:
        """The run's name on the pages."""
        return f"{self.run.variant} seed {self.run.seed}"

    def params(self) -> dict[str, str]:
        """The resolved configuration."""
        return {entity_name(key): cut(text_of(value), LONGEST_PARAM) for key, value in self.settings.items()}

    def identity(self) -> dict[str, str]:
        """The tags by which the run is found again; set in the same request that makes it."""
        return {
            STUDY_ID: self.study.id,
            KIND: "superseded" if self.superseded else "run",
            RUN_ID: self.run.id,
            "ablate.hash": self.run.hash,
            "ablate.study": self.study.study.name,
        }

    def tags(self) -> dict[str, str]:
        """Everything that is said of the run in tags, without what is unknown."""
        variant = self.study.variants.get(self.run.variant, {})
        changes = variant.get("changes", {})
        tags = {
            **self.identity(),
            "mlflow.source.name": f"ablate run {self.study.study.table} --scale {self.study.study.scale}",
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": self.environment.get("code", {}).get("commit"),
            "variant": self.run.variant,
            "same_as_variant": " ".join(self.study.twins.get(self.run.id, [])),
            "group": variant.get("group"),
            "title": variant.get("title"),
            "changes": _in_words(changes),
            "superseded": self.run.why if self.superseded else "",
            "warning": self.study.warning,
            NOTE: f"{variant.get('title', self.run.variant)}: {_in_words(changes) or 'nothing changed'}.",
            "seed": self.run.seed,
            "attempt": self.status.attempt,
            "state": self.status.state,
            "reason": self.status.reason,
            "host": self.environment.get("host") or self.status.host,
            "directory": str(self.run.path.resolve()),
            **self._provenance(),
        }
        return {name: cut(text_of(value), LONGEST_TAG) for name, value in tags.items() if value is not None}

    def _provenance(self) -> dict[str, Any]:
        """Code, machine, data and signatures, as far as they are known."""
        test = self.result.get("test", {})
        signatures = test.get("signatures", {})
        digests = self.result.get("digests", {})
        code, slurm = self.environment.get("code", {}), self.environment.get("slurm", {})
        job, task = slurm.get("SLURM_ARRAY_JOB_ID", slurm.get("SLURM_JOB_ID")), slurm.get("SLURM_ARRAY_TASK_ID")
        return {
            "commit": code.get("commit"),
            "dirty": code.get("dirty"),
            "slurm_job": job if task is None else f"{job}_{task}",
            "corpus_digest": digests.get("corpus") or self.study.study.data.digest,
            "vocabulary_digest": digests.get("vocabulary"),
            "reference_digest": test.get("reference_sha256"),
            "valid_reference_digest": self.result.get("valid", {}).get("reference_sha256"),
            **{f"signature.{name}": signature for name, signature in signatures.items()},
            "differs_from_paper": ", ".join(map(str, self.result.get("differs_from_paper", []))) or None,
        }

    def files(self) -> dict[str, Path]:
        """The run's artifacts by their names: those that are final, all of them once it is settled.

        They are all that `ablate pull` needs to make the directory again, but for checkpoints.
        """
        if not self.settled:
            return {"config.json": self.run.path / "config.json"}
        attempts = [f"attempts/{claim.path.name}" for claim in claims(self.run.directory)]
        names = (*RUN_FILES, *attempts, *HYPOTHESES)
        return {name: self.run.path / name for name in names if (self.run.path / name).is_file()}


def fingerprint(run: StudyRun) -> str:
    """Changes whenever the run's records or its place in the plan do; empty for a run that has not begun.

    A look at sizes and times only.
    """
    attempts = run.path / "attempts"
    try:
        # Times of claims change with every heartbeat; their number and sizes change when one begins or ends.
        begun = sorted((entry.name, entry.stat().st_size) for entry in os.scandir(attempts) if entry.name[0] != ".")
    except FileNotFoundError:
        begun = []
    stamp = _stamp(run.path / name for name in (*RUN_FILES[1:], *HYPOTHESES))
    if not begun and stamp == _NOTHING:
        return ""
    return hashlib.sha256(f"{begun} {stamp}{run.why}".encode()).hexdigest()[:16]


def _stamp(paths: Iterable[Path]) -> str:
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        stamps.append((path.name, stat.st_size, stat.st_mtime_ns))
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:16]


_NOTHING = _stamp([])


def _in_words(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {text_of(value)}" for key, value in changes.items())


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
