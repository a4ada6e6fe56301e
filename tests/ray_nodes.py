"""A real Ray cluster of several nodes on this machine, each a tree of processes that can be killed on its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

TESTS = Path(__file__).parent
PATIENCE = 600.0
"""Seconds after which a test gives up waiting; never a statement about speed."""

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_raylet_start_wait_time_s": "90",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}",
}
"""What a node, and so its workers, need in their environment."""


def descendants(pid: int) -> list[int]:
    """The processes that `pid` started, and those that they started, as /proc tells."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def kill(pids: list[int]) -> None:
    """End the processes at once, as a machine that loses its power would."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Node:
    """One node: `ray start --block` and all that it starts."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    def pids(self) -> list[int]:
        """Its processes: the raylet, its agents, the workers; on the head the cluster's store of states, too."""
        return [self._process.pid, *descendants(self._process.pid)]

    def kill(self) -> None:
        """End all of it at once."""
        kill(self.pids())
        self._process.wait()

    def lives(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def is_up(self) -> bool:
        """Whether it belongs to its cluster."""
        return "--block" in self.told()  # "--block: This command will now block forever"

    def told(self) -> str:
        """What it said."""
        return self._log.read_text()


class Nodes:
    """A cluster, from `with` to its end."""

    def __init__(
        self,
        *,
        cpus: int = 1,
        gpus: int = 0,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
        jobs: bool = False,
    ) -> None:
        self.address = f"127.0.0.1:{_free_port()}"
        self._job_port = _free_port() if jobs else None
        self._place = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))  # sockets' paths must be short
        self.nodes: list[Node] = []
        self._tries = 0
        self._environment = os.environ | ENVIRONMENT | (environment or {})
        try:
            self.head = self._start("--head", "--port", self.address.partition(":")[2], cpus=cpus, gpus=gpus, cwd=cwd)
        except BaseException:
            self.close()
            raise

    def add(
        self, *, cpus: int = 1, gpus: int = 0, cwd: Path | None = None, environment: dict[str, str] | None = None
    ) -> Node:
        """One more node, up when this returns."""
        return self._start("--address", self.address, cpus=cpus, gpus=gpus, cwd=cwd, environment=environment)

    @property
    def job_server(self) -> str:
        """Where jobs are handed in, if there is such a place."""
        return f"http://127.0.0.1:{self._job_port}"

    def _start(
        self,
        *arguments: str,
        cpus: int,
        gpus: int,
        cwd: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> Node:
        options = {
            "node-ip-address": "127.0.0.1",
            "num-cpus": cpus,
            "num-gpus": gpus,
            "object-store-memory": 80 * 2**20,
            "include-log-monitor": "false",
            "dashboard-agent-listen-port": _free_port(),
        }
        if "--head" in arguments:
            options |= {"temp-dir": self._place / "ray", "include-dashboard": str(self._job_port is not None).lower()}
            if find_spec("grpc") is not None:  # Ray then starts a server for its client, on one port for every head
                options |= {"ray-client-server-port": _free_port()}
            options |= {"dashboard-port": self._job_port} if self._job_port is not None else {}
        elif self._job_port is not None:  # what a job brings is unpacked there: nodes must not share the place
            options |= {"temp-dir": self._place / f"ray{self._tries}"}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *arguments, "--block"]
        command += [f"--{name}={value}" for name, value in options.items()]
        ends = time.monotonic() + PATIENCE
        while True:
            node = self._try(command, cwd, self._environment | (environment or {}))
            while node.lives() and not node.is_up():
                time.sleep(0.1)
            if node.lives():
                self.nodes.append(node)
                return node
            # Ray gives itself thirty seconds to start, which a busy machine does not always keep.
            node.kill()
            assert time.monotonic() < ends, node.told()

    def _try(self, command: list[str], cwd: Path | None, environment: dict[str, str]) -> Node:
        self._tries += 1
        log = self._place / f"{self._tries}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=cwd, env=environment)
        return Node(process, log)

    def close(self) -> None:
        """End every node and remove its files."""
        for node in self.nodes:
            if node.lives():
                node.kill()
        shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
