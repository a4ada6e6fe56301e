"""The allocation: the nodes that SLURM gave to this job, and what of each is ours."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from repro.errors import CheckError
from slurm.commands import ask


@dataclass(frozen=True, slots=True)
class Node:
    """One node: SLURM's name for it, the address under which the others reach it, and our CPUs there."""

    name: str
    address: str
    cpus: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """A job's nodes; the first is the one where its script runs."""

    job: str
    nodes: tuple[Node, ...]

    @classmethod
    def of(cls, slurm: Mapping[str, str], *, seconds: float) -> Allocation:
        """The allocation of the job that SLURM's variables describe. Raises CheckError outside a job."""
        try:
            job, nodes = slurm["SLURM_JOB_ID"], slurm["SLURM_JOB_NODELIST"]
            cpus, here = expanded(slurm["SLURM_JOB_CPUS_PER_NODE"]), slurm["SLURMD_NODENAME"]
        except KeyError as error:
            raise CheckError(f"{error.args[0]} is not set", where="SLURM", fix="this runs inside a job") from error
        names = ask("scontrol", "show", "hostnames", nodes, seconds=seconds).out.split()
        addresses = _addresses(nodes, seconds) if len(names) > 1 else {}
        found = [
            Node(name, _resolved(addresses.get(name, name)) if addresses else "127.0.0.1", count)
            for name, count in zip(names, cpus, strict=True)
        ]
        return cls(job, tuple(sorted(found, key=lambda node: node.name != here)))

    def head_address(self) -> str:
        """That of the first node, as seen by the others: a host's own name often means only itself to it."""
        if len(self.nodes) == 1:
            return self.nodes[0].address
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.nodes[1].address, 9))  # Sends nothing: it chooses the way there.
            return str(probe.getsockname()[0])


def expanded(counts: str) -> list[int]:
    """SLURM's "2(x3),1" as [2, 2, 2, 1]: one number for each node."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", counts)
    return [int(count) for count, times in found for _ in range(int(times or 1))]


def first_host(nodes: str) -> str:
    """The first of "gpu[07-09,12],login1": gpu07."""
    first = re.match(r"(?:[^\[,]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else nodes)


def _addresses(nodes: str, seconds: float) -> dict[str, str]:
    """What SLURM itself calls the nodes by; nothing where it does not answer."""
    told = ask("scontrol", "--oneliner", "show", "node", nodes, seconds=seconds).out
    return dict(re.findall(r"\bNodeName=(\S+) .*?\bNodeAddr=(\S+)", told))


def _resolved(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise CheckError(f"has no address here ({error.strerror})", where=f"node {host}") from error
