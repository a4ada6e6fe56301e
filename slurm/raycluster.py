"""Inside a Ray-mode job: its nodes become a Ray cluster, a command uses it, and the cluster ends with the command.

Ray itself is never imported here. Each node is a step of the job that runs `slurm.raynode`; ending the steps ends all.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from repro.errors import CheckError
from repro.files import digest_of
from slurm.allocation import Allocation, Node
from slurm.record import Record
from slurm.signals import AGAIN, Signals

READY_SECONDS = 600
"""For all nodes to be there; a file system under load takes minutes to give Ray to Python."""
END_SECONDS = 20.0
_LONGEST_PLACE = 40
"""Characters: Ray's sockets lie some 65 deeper, and their paths may have 107."""

_READY = """
import sys, time, ray
address, nodes, ends = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
while not ray.is_initialized():
    try:
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
    except Exception as error:
        if time.monotonic() > ends:
            sys.exit(f"slurm: Ray does not answer at {address} ({error})")
        time.sleep(1)
while (there := sum(node["Alive"] for node in ray.nodes())) < nodes:
    if time.monotonic() > ends:
        sys.exit(f"slurm: {there} of {nodes} nodes joined Ray at {address}")
    time.sleep(0.5)
"""
"""Waits, as a process of its own, until all nodes of the cluster live."""


def run(record: Record, environment: Mapping[str, str], signals: Signals) -> int:
    """The exit code of the request's command, run on the first node with Ray on all; 1 if Ray did not come up.

    Raises CheckError outside a job.
    """
    allocation = Allocation.of(os.environ, seconds=record.site.answer_seconds)
    address = f"{allocation.head_address()}:{free_port()}"
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    inside = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"} | secret
    head, *workers = allocation.nodes
    with Steps(record, place(record, allocation.job), address, inside) as steps:
        steps.start(head)
        code = _ready(address, 1, steps, signals, inside)
        if workers and code == 0:  # Workers join a head that is up: before it is, they could only fail.
            for node in workers:
                steps.start(node)
            code = _ready(address, len(allocation.nodes), steps, signals, inside)
        if code == 0:
            command = [word.replace("{address}", address) for word in record.request.command]
            code = signals.waited(subprocess.Popen(command, env=inside))
    return code


def place(record: Record, job: str) -> Path:
    """Where Ray keeps its files on each node: in the site's scratch if its path is short enough, else in /tmp.

    The same whenever the job starts, and no other job's, not even that of another SLURM which counts alike.
    """
    name = f"abl-{job}-{digest_of(str(record.path))[:6]}"
    scratch = Path(os.path.expandvars(record.site.scratch or "/tmp")) / name
    return scratch if len(str(scratch)) <= _LONGEST_PLACE and scratch.is_absolute() else Path("/tmp") / name


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


class Steps:
    """The nodes' steps, from `with` to their end: the first is the head."""

    def __init__(self, record: Record, place: Path, address: str, environment: Mapping[str, str]) -> None:
        self._record, self._place, self._address, self._environment = record, place, address, environment
        self._steps: list[subprocess.Popen[bytes]] = []

    def start(self, node: Node) -> None:
        """Start Ray on `node`: the head first."""
        role = "worker" if self._steps else "head"
        options = {
            "address": self._address,
            "ip": node.address if self._steps else self._address.rpartition(":")[0],
            "cpus": node.cpus,
            "gpus": self._record.request.gpus,
            "place": self._place,
            "head-host": socket.gethostname(),
        }
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={node.name}", f"--cpus-per-task={node.cpus}"]
        ray = [self._record.site.python, "-P", "-m", "slurm.raynode", role]
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [*step, "--input=none", "--quiet", *ray, *words]
        # A session of its own: what a terminal sends to the command is not for Ray.
        self._steps.append(subprocess.Popen(command, env=self._environment, start_new_session=True))

    def head_lives(self) -> bool:
        """Whether the head's step has not ended."""
        return self._steps[0].poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the workers, then the head. srun hands USR1 to its step; TERM it takes as an order to kill it."""
        for steps in (self._steps[1:], self._steps[:1]):
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
                _end(steps, number)
        with suppress(OSError):
            shutil.rmtree(self._place)


def _end(steps: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Send `number` to those that still live, and give them time."""
    for step in steps:
        if step.poll() is None:
            step.send_signal(number)
    ends = time.monotonic() + END_SECONDS
    for step in steps:
        with suppress(subprocess.TimeoutExpired):
            step.wait(max(0.1, ends - time.monotonic()))


def _ready(address: str, nodes: int, steps: Steps, signals: Signals, environment: Mapping[str, str]) -> int:
    """0 once `nodes` nodes of the cluster live, 75 when a signal came before, else 1."""
    command = [sys.executable, "-c", _READY, address, str(nodes), str(READY_SECONDS)]
    process = subprocess.Popen(command, env=environment)
    try:
        while process.poll() is None:
            if signals.first is not None:
                return AGAIN
            if not steps.head_lives():
                raise CheckError("its step ended before it was up; its own words are above", where="Ray's head")
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    return 0 if process.returncode == 0 else 1
