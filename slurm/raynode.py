"""Inside a step of a Ray-mode job: one node of its Ray cluster, from `ray start` to the step's end."""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

_TRIES = 10
"""Ray gives itself thirty seconds to start, which a busy machine does not always keep."""
_STARTING_SECONDS = 600.0
"""Ray that falls later than this after the first try had started."""
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Hardly anything goes through Ray's object store; its least is 75 MB. Unasked, Ray takes a third of the host."""
_PORTS = ("node-manager", "object-manager", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")


def main(arguments: list[str]) -> int:
    """Run Ray on this node until it ends or USR1 or TERM says so; its files are removed then."""
    options = _options(arguments)
    node = _RayNode(options)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, node.end)
    try:
        return node.run()
    finally:
        # Where SLURM's nodes share a host, the head's files are those of all: the head removes them.
        if options.role == "head" or socket.gethostname() != options.head_host:
            shutil.rmtree(options.place, ignore_errors=True)


def command(options: argparse.Namespace, ports: list[int]) -> list[str]:
    """`ray start` for one node, with nothing that two Rays on one host would have to share."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    told = {
        "node-ip-address": options.ip,
        "include-log-monitor": "false",
        "log-color": "false",
        "num-cpus": options.cpus,
        "num-gpus": options.gpus,
        "object-store-memory": _OBJECT_STORE_BYTES,
        "min-worker-port": 0,
        "max-worker-port": 0,
        **{f"{name}-port": port for name, port in zip(_PORTS, ports, strict=False)},
    }
    if options.role == "head":
        port = options.address.rpartition(":")[2]
        head = {"port": port, "temp-dir": options.place, "include-dashboard": "false"}
        if find_spec("grpc"):  # Ray then opens a port for clients, too, and refuses to be told of it otherwise
            head["ray-client-server-port"] = ports[-1]
        told |= head
        words.append("--head")
    else:
        told["address"] = options.address
    return words + [f"--{name}={value}" for name, value in told.items()]


class _RayNode:
    """One node's Ray, started again if it falls while it starts."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ended = False
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        code, began = 1, time.monotonic()
        for _ in range(_TRIES):
            if self._ended:
                return 0
            # A session of its own: the step's signals are for us, who end Ray in order.
            self._process = subprocess.Popen(command(self._options, _free_ports()), start_new_session=True)
            code = self._process.wait()
            if self._ended or time.monotonic() - began > _STARTING_SECONDS:
                break
        return 0 if self._ended else code

    def end(self, *_: object) -> None:
        """End Ray, which ends all that it has started."""
        self._ended = True
        if self._process is not None:
            self._process.terminate()


def _free_ports() -> list[int]:
    """As many ports as a node needs, all different, that nobody listens on."""
    probes = [socket.socket() for _ in range(len(_PORTS) + 1)]
    for probe in probes:
        probe.bind(("", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slurm.raynode")
    parser.add_argument("role", choices=["head", "worker"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--ip", required=True)
    parser.add_argument("--cpus", type=int, required=True)
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--head-host", required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
