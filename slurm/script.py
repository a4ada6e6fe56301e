"""Scripts: what sbatch is given, word for word."""

from __future__ import annotations

import re
import shlex
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from repro.errors import CheckError
from slurm.record import Record

_NAME = 80
"""Characters of a study's name in a job's name."""


def script(record: Record) -> str:
    """The batch script of `record`. It is the same for the same record, wherever it is made.

    Raises CheckError when SLURM cannot write into the record's folder, or Python find the code, because of its name.
    """
    _check_code(record)
    template = _templates().get_template(f"{record.request.mode}.sh.j2")
    at_once = record.site.at_once
    text = template.render(
        record=record,
        request=record.request,
        site=record.site,
        options=record.site.model_dump(),
        job_name=job_name(record),
        at_once=at_once if at_once and at_once < record.tasks else None,
        folder=str(record.request.folder),
        output=_pattern(record),
    )
    return text.rstrip("\n") + "\n"


def job_name(record: Record) -> str:
    """The study's name on one line, and the ticket that tells the job from all others."""
    readable = "".join(character if character.isprintable() else " " for character in record.request.name)
    return f"{' '.join(readable.split())[:_NAME]}-{record.ticket}".lstrip("-")


def option(value: object) -> str:
    """`value` of an option as sbatch reads it in a script: blanks and quotes kept, nothing begins a comment."""
    text = str(value)
    if re.fullmatch(r"[\w./:@%+,=-]+", text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pattern(record: Record) -> str:
    """The file for a job's output. sbatch replaces %a in it; a % of the folder's is doubled, a backslash cannot be."""
    folder = str(record.request.folder)
    if any(character in folder for character in "\\\n\r"):
        fix = "choose a study directory without them"
        raise CheckError("SLURM takes no path with a backslash or a line's end in it", where=folder, fix=fix)
    index = ".%a" if record.request.mode == "array" else ""
    return f"{folder.replace('%', '%%')}/{record.ticket}{index}.log"


def _check_code(record: Record) -> None:
    """Raise CheckError when the frozen code cannot stand on PYTHONPATH, so that a job would run another."""
    code = str(record.request.code)
    if ":" in code:
        fix = "choose a study directory without one"
        raise CheckError("Python finds no program under a path with a colon in it", where=code, fix=fix)


@cache
def _templates() -> Environment:
    # Scripts for bash, not pages: nothing is to be escaped for HTML.
    found = Environment(
        loader=PackageLoader("slurm"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    found.filters["option"] = option
    found.filters["word"] = lambda value: shlex.quote(str(value))
    return found
