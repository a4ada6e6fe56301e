"""A real SLURM on this machine: its own munge, controller and nodes, as root, without systemd, ended with the test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 600.0
"""Seconds after which a test gives up waiting; never a statement about speed."""

PROGRAMS = {"slurm-wlm": "slurmctld", "munge": "munged"}
"""Packages of Debian, and a program that each brings."""

CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
KillWait=5
MinJobAge=3600
MaxArraySize={array}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=01:00:00 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 MaxTime=INFINITE DefaultTime=01:00:00 State=UP
"""


def install() -> None:
    """Fetch what is missing."""
    missing = [package for package, program in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        subprocess.run(["apt-get", "update", "--quiet"], check=True, stdout=subprocess.DEVNULL)
        options = ["--quiet", "--yes", "--no-install-recommends"]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(
            ["apt-get", "install", *options, *missing], check=True, stdout=subprocess.DEVNULL, env=environment
        )


class Slurm:
    """A cluster of `nodes` nodes (n1, n2, ...) with `cpus` CPUs each, from `with` to its end.

    Jobs of its partition "urgent" displace those of "main". `environment` is what its commands need to find it. Nodes
    share this machine: their CPUs are a number, no more.
    """

    def __init__(self, *, nodes: int = 2, cpus: int = 2, array: int = 1001) -> None:
        install()
        self.place = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))  # sockets' paths must be short
        self.environment = {"SLURM_CONF": str(self.place / "slurm.conf")}
        self._names = [f"n{number}" for number in range(1, nodes + 1)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._configure(cpus, array)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _configure(self, cpus: int, array: int) -> None:
        host = socket.gethostname().partition(".")[0]
        port, *others = free_ports(1 + len(self._names))
        lines = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={its_own} CPUs={cpus} RealMemory=4000"
            for name, its_own in zip(self._names, others, strict=True)
        ]
        text = CONFIGURATION.format(host=host, port=port, place=self.place, array=array, nodes="\n".join(lines))
        (self.place / "slurm.conf").write_text(text)
        for folder in ("state", *(f"spool-{name}" for name in self._names)):
            (self.place / folder).mkdir()
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.place.chmod(0o755)

    def _start(self) -> None:
        files = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        self._daemon("munged", "--foreground", "--force", *(f"--{o}={self.place / f}" for o, f in files.items()))
        wait_until(lambda: (self.place / "munge.sock").exists(), self.told)
        self._daemon("slurmctld", "-D", "-c")
        for name in self._names:
            self._daemon("slurmd", "-D", "-N", name)
        wait_until(
            lambda: self.ask("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").split() == self._names,
            self.told,
        )

    def _daemon(self, *command: str) -> None:
        log = self.place / f"{len(self._daemons)}-{command[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | self.environment)
        self._daemons.append(process)

    def ask(self, *command: str) -> str:
        """What a command of SLURM's prints, also one that fails."""
        return subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, check=False
        ).stdout

    def told(self) -> str:
        """What its daemons said."""
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self.place.glob("*.log")))

    def close(self) -> None:
        """End its jobs, its daemons and nothing else, and remove its files."""
        if self._daemons:
            self.ask("scancel", "--user=root")
            with suppress(AssertionError):
                wait_until(lambda: not self.ask("squeue", "-h"), self.told, seconds=20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(20)
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.place, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def wait_until(holds: Callable[[], bool], told: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return once `holds()` is true; fail with what `told()` tells when it never is."""
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, told()
        time.sleep(0.2)


def free_ports(number: int) -> list[int]:
    """As many ports of this machine, all different, that nobody listens on."""
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
