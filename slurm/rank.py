"""Inside a step of a run over several nodes: `python -m slurm.rank -- COMMAND` becomes one process of the run.

SLURM's variables are told in the words that torch.distributed reads, then COMMAND takes this process's place.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

from slurm.allocation import expanded, first_host

_PORTS = range(12_000, 32_000)
"""Below those that a kernel gives to outgoing connections."""


def variables(slurm: Mapping[str, str]) -> dict[str, str]:
    """RANK and its like for the process that `slurm` describes; the first node of the step is the master."""
    nodes, node = slurm["SLURM_STEP_NODELIST"], int(slurm["SLURM_NODEID"])
    alone = slurm["SLURM_STEP_NUM_NODES"] == "1"
    return {
        "RANK": slurm["SLURM_PROCID"],
        "WORLD_SIZE": slurm["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": slurm["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": str(expanded(slurm["SLURM_STEP_TASKS_PER_NODE"])[node]),
        "MASTER_ADDR": "127.0.0.1" if alone else _reachable(first_host(nodes), slurm),
        "MASTER_PORT": str(_PORTS[int(slurm["SLURM_JOB_ID"]) % len(_PORTS)]),
    }


def _reachable(host: str, slurm: Mapping[str, str]) -> str:
    """`host`, if the network knows it by SLURM's name; else the address from which the step was started: its first
    node's, too.
    """
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return slurm["SLURM_LAUNCH_NODE_IPADDR"]
    return host


def main(arguments: list[str]) -> None:
    """Become the command after `--`."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    os.execvpe(command[0], command, os.environ | variables(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
