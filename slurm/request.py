"""A request: what is to run on the cluster, and what it needs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Mode = Literal["array", "ray"]
"""array: each task is a job of its own. ray: one allocation becomes a Ray cluster, and one command uses it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What is to run. Jobs' records, scripts and logs live in `folder`, where `command` runs, too."""

    folder: Path
    name: str
    """For people: it begins the jobs' names."""
    command: tuple[str, ...]
    """In array mode "{task}" in it becomes the task's number, in Ray mode "{address}" becomes Ray's HOST:PORT."""
    tasks: int
    """Array mode: numbers 0 to tasks - 1. Ray mode: 1."""
    mode: Mode
    code: Path
    """Goes first on PYTHONPATH."""
    environment: Mapping[str, str]
    nodes: int = 1
    """Array mode: nodes of one task. Ray mode: nodes of the cluster."""
    cpus: int = 1
    """Array mode: CPUs of each process of a task. Ray mode: CPUs of each node."""
    gpus: int = 0
    """GPUs of each node."""
    processes: int = 1
    """Array mode: processes of a task on each node; over several nodes SLURM starts them, else the command does."""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "folder": str(self.folder),
            "name": self.name,
            "command": list(self.command),
            "tasks": self.tasks,
            "mode": self.mode,
            "code": str(self.code),
            "environment": dict(self.environment),
            "nodes": self.nodes,
            "cpus": self.cpus,
            "gpus": self.gpus,
            "processes": self.processes,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Request:
        """The request that `document` tells of."""
        told = dict(document)
        folder, code = Path(told.pop("folder")), Path(told.pop("code"))
        return cls(folder=folder, code=code, command=tuple(told.pop("command")), **told)
