#!/usr/bin/env python3
"""sbatch, squeue, sacct, scancel and scontrol without a SLURM: jobs are lines in a file and never begin by themselves.

Called with one of these names first. In the folder $STUB_SLURM: `jobs.json`, and files that make trouble: `hang` lets
sbatch take the job and never answer, `refuse` lets it refuse, `away` lets all others fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("STUB_SLURM", "."))
NAMES = ("sbatch", "squeue", "sacct", "scancel", "scontrol")


def install(folder: Path) -> Path:
    """Put the commands into `folder`/bin; that directory, for PATH."""
    place = folder / "bin"
    place.mkdir(parents=True)
    for name in NAMES:
        file = place / name
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S -E {__file__} {name} "$@"\n')
        file.chmod(0o755)
    return place


@contextmanager
def jobs(folder: Path) -> Iterator[dict[str, Any]]:
    """The jobs by number: {"name", "comment", "tasks": {index or "": state}}. What is changed inside is kept."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        file = folder / "jobs.json"
        found = json.loads(file.read_text()) if file.exists() else {}
        yield found
        file.write_text(json.dumps(found))


def trouble(name: str) -> bool:
    return (FOLDER / name).exists()


def sbatch(arguments: list[str]) -> int:
    if trouble("refuse"):
        print("sbatch: error: invalid partition specified: moon", file=sys.stderr)
        return 1
    text = Path(arguments[-1]).read_text()
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.M))
    array = re.match(r"0-(\d+)", options.get("array", ""))
    indices = [str(number) for number in range(int(array[1]) + 1)] if array else [""]
    with jobs(FOLDER) as known:
        job = str(100 + len(known))
        name, comment = (options[key].strip('"') for key in ("job-name", "comment"))
        known[job] = {"name": name, "comment": comment, "tasks": dict.fromkeys(indices, "PENDING")}
    if trouble("hang"):
        time.sleep(3600)
    print(job)
    return 0


def squeue(_: list[str]) -> int:
    with jobs(FOLDER) as known:
        for number, job in known.items():
            for index, state in job["tasks"].items():
                print("|".join([number, index or "N/A", state, "Priority", job["comment"], job["name"]]))
    return 0


def scancel(arguments: list[str]) -> int:
    with jobs(FOLDER) as known:
        for number in arguments:
            known[number]["tasks"] = dict.fromkeys(known[number]["tasks"], "CANCELLED")
    return 0


def main() -> int:
    name, arguments = sys.argv[1], sys.argv[2:]
    if name != "sbatch" and trouble("away"):
        print(f"{name}: error: Unable to contact slurm controller", file=sys.stderr)
        return 1
    if name == "scontrol":
        print("MaxArraySize            = 1001")
        return 0
    if name == "sacct":
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    return {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}[name](arguments)


if __name__ == "__main__":
    sys.exit(main())
