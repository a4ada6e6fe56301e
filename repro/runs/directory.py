"""A run directory: the truth about one run, readable by anyone, movable, every file whole or absent."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from repro import SEMANTICS_VERSION
from repro.config.differences import LABELS, differences
from repro.config.run import RunConfig
from repro.config.schema import from_document
from repro.errors import CheckError, UsageError, UserError
from repro.files import create_bytes, digest_of, disk_error, read_json, write_json, write_text
from repro.runs import attempts, metrics
from repro.runs.metrics import MetricLine
from repro.shapes import Shape, check_shape

__all__ = ["SCHEMA", "MetricLine", "RunDirectory", "Split", "State", "Status"]

SCHEMA = 1
"""Version of the documents in a run directory."""

State = Literal["planned", "running", "done", "failed", "diverged", "stopped"]
Split = Literal["valid", "test"]

_SCORES: Shape = {"bleu?": (float, type(None)), "signatures?": dict, "warnings?": list}
_RESULT: Shape = {
    "steps?": int,
    "train_seconds?": float,
    "target_tokens_per_second?": float,
    "train_flops?": float,
    "seconds?": dict,
    "flops?": dict,
    "valid?": _SCORES,
    "test?": _SCORES,
    "digests?": dict,
    "differs_from_paper?": list,
}
"""What others rely on in result.json."""
_ENVIRONMENT: Shape = {"code?": dict, "slurm?": dict, "versions?": dict}
_SCORE_AGAIN = "put the file back, or remove it and run again: the run is then scored anew from its last checkpoint"

_OLD_CHECKPOINTS = ".checkpoints."
_OWNERS_FILES = (".status.json.*", ".metrics.jsonl.*", ".result.json.*", ".environment.json.*", "hypotheses/.*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """Where a run stands."""

    state: State
    attempt: int = 0
    """The newest attempt's number, from 1; 0: none yet."""
    step: int = 0
    progress: float = 0.0
    """Share of the budget, 0 to 1."""
    reason: str = ""
    updated: float = 0.0
    """Unix seconds of the last change; 0: never."""
    host: str = ""
    pid: int = 0
    train_seconds: float = 0.0
    target_tokens_per_second: float = 0.0
    micro_batch_tokens: int = 0
    """Padded positions a side computed at once: fewer than configured when memory ran out; 0: not told yet."""
    checkpoint_bytes: int = 0
    """Size of the last checkpoint of this attempt; 0: none yet."""
    checkpoint_seconds: float = 0.0
    """Time that saving it took."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The files of one run. Only the owner of the newest attempt writes; everybody reads."""

    path: Path

    @staticmethod
    def create(root: Path, config: RunConfig, data_directory: Path, *, continues: Path | None = None) -> RunDirectory:
        """The directory `root/<run id>` of `config`, made if needed; see `create_at`."""
        return RunDirectory.create_at(root / config.run_id(), config, data_directory, continues=continues)

    @staticmethod
    def create_at(
        path: Path, config: RunConfig, data_directory: Path, *, continues: Path | None = None
    ) -> RunDirectory:
        """The directory `path` for `config`, made if needed. Safe when several processes do so at once.

        A directory that holds this run already is kept; only when its data directory is gone, the new one is noted.
        `continues`: the directory of the same run with a shorter budget, from whose checkpoint a new one may begin.
        Raises CheckError when the directory belongs to another configuration or to something else.
        """
        run = RunDirectory(path)
        if not run.made:
            run._check_empty()
            document = {
                "schema": SCHEMA,
                "run_id": config.run_id(),
                "hash": config.hash(),
                "semantics": SEMANTICS_VERSION,
                "config": config.resolved().document(),
                "data_directory": str(data_directory.absolute()),
            }
            if continues is not None:
                document["continues"] = os.path.relpath(continues, path)
            if create_bytes(run._config_path, _json_bytes(document)):
                return run
        run._check_same(config)
        if not run.data_directory().exists():
            write_json(run._config_path, run._identity() | {"data_directory": str(data_directory.absolute())})
        return run

    # What the run is.

    @property
    def made(self) -> bool:
        """Whether there is a run in the directory."""
        return self._config_path.exists()

    @property
    def checkpoints(self) -> Path:
        """The directory of checkpoints and of the final weights."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The file of the trained weights, once the run is done."""
        return self.checkpoints / "final.safetensors"

    def config(self) -> RunConfig:
        """The configuration. Raises CheckError when there is none or when it was changed by hand."""
        return _read_config(self._identity()["config"], self._config_path)

    def current_config(self) -> RunConfig:
        """The configuration, for going on with the run.

        Raises CheckError when this version of the program would do the run otherwise than the one that made it.
        """
        config = self.config()
        if config.hash() != self.hash():
            raise CheckError(
                "was made by a version of the program that gives other results",
                where=str(self.path),
                fix="go on with that version or start a new study",
            )
        return config

    def hash(self) -> str:
        """The hash of the configuration, data and code semantics that the run was made with (hex)."""
        return str(self._identity()["hash"])

    def run_id(self) -> str:
        """The run's name, whatever the directory is called now."""
        return str(self._identity()["run_id"])

    def data_directory(self) -> Path:
        """Where the prepared corpus was when the run was made."""
        return Path(self._identity()["data_directory"])

    def continues(self) -> Path | None:
        """The directory of the shorter run that this one may begin from; see `repro.runs.inherit`."""
        place = self._identity().get("continues")
        return self.path / place if isinstance(place, str) else None

    # How it goes.

    def status(self) -> Status:
        """Where the run stands, derived from its files and from whether its owner lives.

        Raises CheckError when this is no run directory.
        """
        self._identity()
        written = self._written_status()
        if self._result_path.exists():
            return self._done(written)
        latest = attempts.newest(self)
        if latest is None:
            if written.state in ("running", "done"):
                return dataclasses.replace(written, state="stopped", reason="nobody works on it any more")
            return written
        host, pid = (latest.owner.host, latest.owner.pid) if latest.owner is not None else ("", 0)
        seen = dataclasses.replace(written, attempt=latest.number, host=host, pid=pid)
        if latest.working():
            return dataclasses.replace(
                seen, state="running", reason=written.reason if written.state == "running" else ""
            )
        if latest.ended is None:
            return dataclasses.replace(seen, state="stopped", reason=latest.end_without_a_word())
        if latest.ended == "done":
            return dataclasses.replace(seen, state="stopped", reason="it was done, but result.json is gone")
        return dataclasses.replace(seen, state=latest.ended, reason=latest.reason)

    def write_status(self, status: Status) -> None:
        """Write `status`, stamped with this process, this host and the time."""
        stamped = dataclasses.replace(status, updated=time.time(), host=socket.gethostname(), pid=os.getpid())
        write_json(self._status_path, dataclasses.asdict(stamped))

    def remove_temporaries(self) -> None:
        """Remove what a killed owner left half written. For the owner of the newest attempt only."""
        for pattern in _OWNERS_FILES:
            for path in self.path.glob(pattern):
                with suppress(FileNotFoundError):
                    path.unlink()
        for path in self.path.glob(_OLD_CHECKPOINTS + "*"):
            shutil.rmtree(path, ignore_errors=True)

    def start_over(self) -> None:
        """Forget all that was trained: the next session begins at step 0. For the owner of the newest attempt only."""
        # Their name goes first, so that a kill leaves all of them or none; metrics are dropped to fit by the session.
        with suppress(FileNotFoundError):
            self.checkpoints.rename(self.path / f"{_OLD_CHECKPOINTS}{uuid.uuid4().hex[:8]}")
        self.remove_temporaries()

    # Metrics.

    def metrics(self) -> list[MetricLine]:
        """All metrics in the order written, each at most once a step; see `repro.runs.metrics.read`."""
        return metrics.read(self._metrics_path)

    def append_metrics(self, line: MetricLine) -> None:
        """Append one line; see `repro.runs.metrics.append`."""
        metrics.append(self._metrics_path, line)

    def sync(self) -> None:
        """Flush the metrics to disk, so that they survive the machine's end, too."""
        with suppress(FileNotFoundError), self._metrics_path.open("rb") as file:
            os.fsync(file.fileno())

    def drop_metrics_after(self, step: int) -> None:
        """Keep the metrics of steps up to `step`: what a run resumed there will not write again."""
        metrics.drop_after(self._metrics_path, step)

    # What came of it.

    def result(self) -> dict[str, Any] | None:
        """The result, or None when the run is not done."""
        if not self._result_path.exists():
            return None
        return _checked(self._result_path, _RESULT, fix=_SCORE_AGAIN)

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result: from now on the run is done. "schema" is added."""
        write_json(self._result_path, {"schema": SCHEMA} | result)

    def hypotheses(self, split: Split) -> list[str] | None:
        """The translations of `split`, one for each source line, or None when there are none."""
        path = self.hypotheses_path(split)
        if not path.exists():
            return None
        return path.read_bytes().decode("utf-8").split("\n")[:-1]

    def write_hypotheses(self, split: Split, lines: Sequence[str]) -> None:
        """Write the translations of `split`, one line each. Raises ValueError for one that holds a line end."""
        for number, line in enumerate(lines, 1):
            if "\n" in line:
                raise ValueError(f"translation {number} of {split} holds a line end")
        write_text(self.hypotheses_path(split), "".join(line + "\n" for line in lines))

    def hypotheses_path(self, split: Split) -> Path:
        """Where the translations of `split` are, or will be."""
        return self.path / "hypotheses" / f"{split}.txt"

    def environment(self) -> dict[str, Any] | None:
        """Where and with what the newest attempt ran, or None when it was not noted."""
        path = self.path / "environment.json"
        if not path.exists():
            return None
        return _checked(path, _ENVIRONMENT, fix="remove it: it only tells where the run ran")

    def write_environment(self, environment: dict[str, Any]) -> None:
        """Write where and with what the run runs. "schema" is added."""
        write_json(self.path / "environment.json", {"schema": SCHEMA} | environment)

    # Inside.

    @property
    def _config_path(self) -> Path:
        return self.path / "config.json"

    @property
    def _status_path(self) -> Path:
        return self.path / "status.json"

    @property
    def _metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def _result_path(self) -> Path:
        return self.path / "result.json"

    def _identity(self) -> dict[str, Any]:
        """config.json, checked against its own hash."""
        if not self.made:
            raise CheckError("no run directory (no config.json)", where=str(self.path))
        document = _checked(self._config_path)
        try:
            config = {key: value for key, value in document["config"].items() if key not in LABELS}
            intact = digest_of({"config": config, "semantics": document["semantics"]}) == document["hash"]
            intact = intact and isinstance(document["run_id"], str) and isinstance(document["data_directory"], str)
        except (KeyError, AttributeError, ValueError):
            intact = False
        if not intact:
            fix = "put back the file or start a new run"
            raise CheckError("was changed after the run was made", where=str(self._config_path), fix=fix)
        return document

    def _check_same(self, config: RunConfig) -> None:
        if self.hash() == config.hash():
            return
        found = differences(self.config(), config)
        told = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
        raise CheckError(
            f"belongs to another configuration: {told or 'made by a version that gives other results'}",
            where=str(self.path),
            fix="choose another directory",
        )

    def _check_empty(self) -> None:
        """Refuse to make a run of a directory that holds something else."""
        try:
            names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, self.path) from error
        if names and not self.made:  # another process may have made it just now
            what = f"is no run directory and not empty (holds {min(names)!r})"
            raise CheckError(what, where=str(self.path), fix="choose another directory")

    def _written_status(self) -> Status:
        if not self._status_path.exists():
            return Status(state="planned")
        fix = "remove it: the run's other files tell where it stands"
        try:
            document = read_json(self._status_path)
            check_shape(document, dict, self._status_path)
            return from_document(Status, document)
        except (CheckError, UsageError) as error:
            what = error.what if isinstance(error, CheckError) else str(error)
            raise CheckError(f"not a status ({what})", where=str(self._status_path), fix=fix) from error

    def _done(self, written: Status) -> Status:
        result = self.result() or {}
        return dataclasses.replace(
            written,
            state="done",
            reason="",
            progress=1.0,
            step=int(result.get("steps", written.step)),
            train_seconds=float(result.get("train_seconds", written.train_seconds)),
            target_tokens_per_second=float(result.get("target_tokens_per_second", written.target_tokens_per_second)),
        )


def _json_bytes(document: Any) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")


def _checked(path: Path, shape: Shape = dict, *, fix: str = "") -> dict[str, Any]:
    """The document in `path`, which must be of a schema that this version reads and of `shape`."""
    try:
        document = read_json(path)
    except CheckError as error:
        raise CheckError(error.what, where=error.where, fix=error.fix or fix) from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise CheckError(f"not a document of schema {SCHEMA}", where=str(path), fix="was it made by a later version?")
    check_shape(document, shape, path, fix=fix)
    return document


def _read_config(document: dict[str, Any], path: Path) -> RunConfig:
    try:
        return RunConfig.read(document)
    except UserError as error:
        raise CheckError(str(error), where=str(path), fix="was it made by another version?") from error
