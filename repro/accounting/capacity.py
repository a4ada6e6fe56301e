"""The memory that this machine lets us use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MEMORY_SHARE = "REPRO_GPU_SHARE"
"""Environment variable: the share of a GPU's memory, above 0 and at most 1, that a process may take."""

_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def host_memory(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Bytes: the machine's memory, or less where a control group (a container, a job) sets a limit."""
    found = [_installed(proc)]
    for folder, file in _groups(proc, cgroup):
        while True:
            with suppress(OSError, ValueError):  # "max", or a group that is not seen from inside its container
                found.append(int((folder / file).read_text(encoding="ascii")))
            if folder == cgroup or folder == folder.parent:
                break
            folder = folder.parent
    return min(found)


def _installed(proc: Path) -> int:
    with suppress(OSError):
        for line in (proc / "meminfo").read_text(encoding="ascii").split("\n"):
            name, _, value = line.partition(":")
            if name == "MemTotal":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _groups(proc: Path, cgroup: Path) -> list[tuple[Path, str]]:
    """This process's group and the name of its limit, in both versions of control groups (cgroups(7))."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").split("\n")
    except OSError:
        return []
    found = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            found.append((cgroup / path.lstrip("/"), "memory.max"))
        elif "memory" in controllers.split(","):
            found.append((cgroup / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
    return found
