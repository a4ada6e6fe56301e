"""Which process this is, and whether another one still lives; told apart even when a process id is used again."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_GONE = {"Z", "X", "x"}
"""States of a process that has ended: a zombie only waits for its parent to ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process as others can recognise it. Parts that a system does not tell are empty."""

    host: str
    boot_id: str
    """Names one start of one machine's kernel."""
    namespace: str
    """Names the space in which `pid` counts: containers of one machine each have their own."""
    pid: int
    start: str
    """When the process started, in the kernel's ticks since the machine did: a reused pid has another one."""

    @staticmethod
    def current() -> Process:
        """The calling process."""
        pid = os.getpid()
        host, boot_id, namespace = _place()
        found = _look_up(pid)
        return Process(host=host, boot_id=boot_id, namespace=namespace, pid=pid, start=found[1] if found else "")

    @staticmethod
    def read(document: Mapping[str, Any]) -> Process:
        """From what `document` gave. Raises KeyError or ValueError when a part is missing or wrong."""
        return Process(
            host=str(document["host"]),
            boot_id=str(document["boot_id"]),
            namespace=str(document["namespace"]),
            pid=int(document["pid"]),
            start=str(document["start"]),
        )

    def document(self) -> dict[str, Any]:
        """As a plain document."""
        return {
            "host": self.host,
            "boot_id": self.boot_id,
            "namespace": self.namespace,
            "pid": self.pid,
            "start": self.start,
        }

    def alive(self) -> bool | None:
        """Whether the process lives; None when this cannot be told from here: another machine, another container, or
        a system that does not say when a process started.
        """
        if (self.host, self.boot_id, self.namespace) != _place():
            return None
        found = _look_up(self.pid)
        if found is None:
            return _answers(self.pid)
        state, start = found
        if state in _GONE or (self.start and start != self.start):
            return False
        return True if self.start else None


def end_descendants(word: str) -> None:
    """Kill every process below this one whose command line holds `word`, a name that only they can have."""
    children: dict[int, list[int]] = {}
    for pid in [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]:
        children.setdefault(_parent(pid), []).append(pid)
    below, found = [os.getpid()], []
    while below:
        found += below
        below = [child for pid in below for child in children.get(pid, [])]
    for pid in found[1:]:
        if word in _first_line(_PROC / str(pid) / "cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    """The process that started `pid`; 0 when that is not known."""
    fields = _first_line(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def _place() -> tuple[str, str, str]:
    """This host, its boot id and the pid namespace; empty where there is no such thing."""
    return (
        socket.gethostname(),
        _first_line(_PROC / "sys/kernel/random/boot_id"),
        _target(_PROC / "self/ns/pid"),
    )


def _look_up(pid: int) -> tuple[str, str] | None:
    """State letter and start time of process `pid`; None when /proc does not show it."""
    line = _first_line(_PROC / str(pid) / "stat")
    # proc(5): "pid (name) state ppid ..."; the name may hold blanks and brackets; the start time is field 22.
    fields = line.rpartition(")")[2].split()
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _answers(pid: int) -> bool | None:
    """For a process that /proc does not show: False when the system knows no such id, else None."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return None  # it is there, hidden from this user
    return None


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""


def _target(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
