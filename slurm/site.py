"""The site: what a cluster wants to be told, from a YAML file that people write once."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from repro.errors import CheckError

VARIABLE = "ABLATE_SITE"
"""The environment variable that names a site file for those who do not give one."""


_OURS = (
    *("--array", "--chdir", "--comment", "--cpus-per-task", "--dependency", "--job-name", "--no-requeue", "--nodes"),
    *("--ntasks", "--ntasks-per-node", "--open-mode", "--output", "--parsable", "--requeue", "--signal", "--test-only"),
    *("--wait", "--wrap", "-D", "-J", "-N", "-W", "-a", "-c", "-d", "-n", "-o"),
)
"""Options of sbatch that say what a job is, and by which it is found again: the submission sets them itself."""


def _checked_duration(value: str) -> str:
    if re.fullmatch(r"\d{1,7}", value):
        value = f"{int(value) // 60:02d}:{int(value) % 60:02d}:00"
    if not re.fullmatch(r"(\d+-)?\d+:[0-5]\d:[0-5]\d", value) or not seconds_of(value):
        raise ValueError("is no time: write minutes, HH:MM:SS or D-HH:MM:SS")
    return value


def _checked_word(value: str) -> str:
    if not value or any(character.isspace() or not character.isprintable() for character in value):
        raise ValueError("must be one word")
    return value


def _checked_line(value: str) -> str:
    if not value.strip() or any(character in value for character in "\n\r\0"):
        raise ValueError("must be one line each")
    return value


def _checked_kind(value: str) -> str:
    if value.rpartition(":")[2].isdigit():
        raise ValueError("names a kind such as gpu or gpu:a100; the number comes from the submission")
    return _checked_word(value)


def _checked_option(value: str) -> str:
    if not value.startswith("-"):
        raise ValueError("must each begin with - as on the command line of sbatch")
    named = re.match(r"--[a-z-]+|-\w", value)
    if named and named[0] in _OURS:
        raise ValueError(f"must leave {named[0]} to the submission")
    return _checked_line(value)


def _checked_memory(value: str) -> str:
    if not re.fullmatch(r"\d+([KMGT]B?)?", value, re.IGNORECASE):
        raise ValueError("is no size: write 64G, 512M or, for all that a node has, 0")
    return value


def _checked_python(value: str) -> str:
    if "/" in value and not value.startswith("/"):
        raise ValueError("must be a whole path, from / on, or a name on PATH")
    return _checked_line(value)


def _checked_scratch(value: str) -> str:
    if not value.startswith(("/", "$")):
        raise ValueError("must be a whole path, from / or a variable on")
    return _checked_line(value)


Word = Annotated[str, AfterValidator(_checked_word)]
Line = Annotated[str, AfterValidator(_checked_line)]
Duration = Annotated[str, AfterValidator(_checked_duration)]


class Site(BaseModel):
    """What jobs of this cluster need. Every key may be left out; what is left out is left to SLURM.

    `time` is the limit of one job, after which it is requeued and goes on; `warning_seconds` before it the runs are
    told to save. `tries` limits how often one job starts anew. `array_size` caps the tasks of one array below
    MaxArraySize, `at_once` the tasks that run at the same time. `answer_seconds` is how long a command of SLURM may
    take to answer.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Line | None = None
    reservation: Word | None = None
    gres: Annotated[str, AfterValidator(_checked_kind)] = "gpu"
    memory: Annotated[str, AfterValidator(_checked_memory)] | None = None
    time: Duration | None = None
    extra: list[Annotated[str, AfterValidator(_checked_option)]] = []
    modules: list[Word] = []
    setup: list[Line] = []
    python: Annotated[str, AfterValidator(_checked_python)] = sys.executable
    scratch: Annotated[str, AfterValidator(_checked_scratch)] | None = None
    requeue: bool = True
    tries: int = Field(default=100, ge=0)
    warning_seconds: int = Field(default=120, ge=1, le=65535)
    array_size: int | None = Field(default=None, ge=1)
    at_once: int | None = Field(default=None, ge=1)
    answer_seconds: int = Field(default=30, ge=1)

    @model_validator(mode="after")
    def _time_to_save(self) -> Self:
        if self.time is not None and seconds_of(self.time) <= self.warning_seconds:
            raise ValueError("time: is not longer than warning_seconds, so no run would ever begin")
        return self

    @classmethod
    def load(cls, path: Path | None) -> Site:
        """The site in `path`; without one that which $ABLATE_SITE names; without both one where all is left to SLURM.

        Raises CheckError, in one line, on a file that is missing, is no YAML, or has a key or a value that cannot be.
        """
        if path is None:
            named = os.environ.get(VARIABLE)
            if not named:
                return cls()
            path = Path(named)
        return _validated(cls, _document(path), path)


def seconds_of(duration: str) -> int:
    """Seconds in "[D-]HH:MM:SS"."""
    days, _, clock = duration.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _document(path: Path) -> Any:
    try:
        # All scalars stay text, which the model reads: YAML itself takes 10:00:00 for a number of base sixty.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except FileNotFoundError as error:
        raise CheckError("no such site file", where=str(path), fix="give one with --site") from error
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        raise CheckError(f"is no YAML ({told})", where=str(path)) from error


def _validated(kind: type[Site], document: Any, path: Path) -> Site:
    try:
        return kind.model_validate(document or {})
    except ValidationError as error:
        raise CheckError(_told(error), where=str(path), fix=f"keys are {', '.join(Site.model_fields)}") from error


def _told(error: ValidationError) -> str:
    """The first fault in one line: the key, then what is wrong with it."""
    fault = error.errors()[0]
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{place}: there is no such key"
    text = fault["msg"].removeprefix("Value error, ")
    return f"{place}: {text}" if place else text
