"""What this machine and this installation have, and whether that is enough. Imports neither torch, Ray nor MLflow."""

from __future__ import annotations

import base64
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from ablations import cluster, corpora
from ablations.study import STUDIES
from ablations.tracking.stores import URI_VARIABLE, Store, store_of
from repro.accounting.capacity import host_memory
from repro.errors import UserError
from repro.files import create_bytes

Verdict = Literal["ok", "warning", "problem"]

PACKAGES = ("torch", "ray", "mlflow", "sacrebleu", "sentencepiece", "safetensors")
OLDEST_PYTHON = (3, 11)
SHARED_MEMORY = Path("/dev/shm")
GIB = 2**30
_ANSWER_SECONDS = 3.0
_SKEW_SECONDS = 5.0
"""Difference between clocks that is told: log lines of several machines are then hard to put in order."""
_LINKS = (
    "claims are then made by exclusive create alone, which is safe but for one moment in which a claim is empty; "
    "a directory on a local or NFS file system is better"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the doctor's screen."""

    what: str
    found: str
    verdict: Verdict = "ok"
    fix: str = ""
    """What to do; empty where nothing need be done."""

    def document(self) -> dict[str, str]:
        """As `doctor --json` prints it."""
        return {"what": self.what, "found": self.found, "verdict": self.verdict, "fix": self.fix}


def examine(studies: Path = STUDIES) -> list[Finding]:
    """All findings, in the order in which they are shown. `studies`: where studies are kept. Takes a few seconds."""
    place = _existing(studies)
    checks: list[Callable[[], list[Finding]]] = [
        versions,
        devices,
        cpus,
        lambda: [memory()],
        lambda: disks({"studies": place, "data": _existing(corpora.data_root())}),
        ray_room,
        lambda: file_system(place),
        lambda: tracking(studies),
        lambda: [prepared()],
    ]
    # What waits for a server or for a driver's tool waits beside the others.
    with ThreadPoolExecutor(len(checks)) as pool:
        return [finding for found in pool.map(lambda check: check(), checks) for finding in found]


def versions() -> list[Finding]:
    """Python and the packages that everything rests on, looked up without importing them."""
    python = platform.python_version()
    new_enough = tuple(int(part) for part in platform.python_version_tuple()[:2]) >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    found = [
        Finding(what="python", found=python)
        if new_enough
        else Finding(what="python", found=python, verdict="problem", fix=f"use {oldest} or later")
    ]
    for name in PACKAGES:
        try:
            found.append(Finding(what=name, found=metadata.version(name)))
        except metadata.PackageNotFoundError:
            fix = "pip install --editable . in the project's directory"
            found.append(Finding(what=name, found="not installed", verdict="problem", fix=fix))
    return found


def devices() -> list[Finding]:
    """GPUs with their memory, as the driver tells."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [Finding(what="GPUs", found="none (no nvidia-smi)")]
    ask = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [Finding(what="GPUs", found=f"nvidia-smi does not answer ({error})", verdict="warning")]
    names = [" ".join(line.split()) for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not names:
        return [Finding(what="GPUs", found="none that nvidia-smi sees")]
    found = f"{len(names)}: {'; '.join(names)}"
    with suppress(metadata.PackageNotFoundError):
        if metadata.version("torch").endswith("+cpu"):
            fix = "install a torch built for CUDA"
            return [Finding(what="GPUs", found=f"{found}; torch is built for CPUs", verdict="warning", fix=fix)]
    return [Finding(what="GPUs", found=found)]


def cpus() -> list[Finding]:
    """CPUs of the machine and those that are ours, and the threads of a run."""
    present, ours = os.cpu_count() or 1, cluster.available_cpus()
    parts = [f"{len(os.sched_getaffinity(0))} by affinity"]
    with suppress(OSError, ValueError):
        quota, period = cluster.CPU_QUOTA.read_text().split()
        parts.append(f"{float(quota) / float(period):g} by the container's quota")
    parts += [
        f"{name}={os.environ[name]}" for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK") if name in os.environ
    ]
    threads = os.environ.get("OMP_NUM_THREADS") or str(ours)
    return [
        Finding(what="CPUs", found=f"{ours} usable of {present} present ({', '.join(parts)})"),
        Finding(what="threads", found=f"1 a run (train.threads); torch by itself would use {threads}"),
    ]


def memory() -> Finding:
    """Memory that is free, and the limit that is ours."""
    free, whole, limit = _meminfo("MemAvailable"), _meminfo("MemTotal"), host_memory()
    found = f"{_gigabytes(free)} free of {_gigabytes(whole)}" if free is not None and whole is not None else "unknown"
    if whole is not None and limit < whole:
        found += f", limited to {_gigabytes(limit)}"
    room = limit if free is None else min(free, limit)
    # A worker with torch and Ray takes 375 MB before it holds a model, Ray itself and the driver about 600 MB.
    fix = "each run takes about 0.6 GB beside its model: use fewer --cpus, or free some"
    if room < 1 * GIB:
        return Finding(what="memory", found=found, verdict="problem", fix=fix)
    if room < 2 * GIB:
        return Finding(what="memory", found=found, verdict="warning", fix=fix)
    return Finding(what="memory", found=found)


def disks(places: Mapping[str, Path]) -> list[Finding]:
    """Room on the disks of `places`, whose directories exist."""
    found = []
    for name, path in places.items():
        free = shutil.disk_usage(path).free
        verdict: Verdict = "ok" if free > 5 * GIB else "warning" if free > GIB else "problem"
        fix = "" if verdict == "ok" else "free some: `ablate run` tells how much a study needs"
        found.append(
            Finding(what=f"disk of {name}", found=f"{_gigabytes(free)} free at {path}", verdict=verdict, fix=fix)
        )
    return found


def ray_room() -> list[Finding]:
    """What a private Ray needs: shared memory for its object store, and a place for its sockets and logs."""
    found = []
    needs = {SHARED_MEMORY: (0.1 * GIB, "Ray's object store"), cluster.PRIVATE_ROOT: (0.5 * GIB, "Ray's files")}
    for path, (least, what) in needs.items():
        if not path.is_dir():
            told = Finding(what=str(path), found=f"not there ({what})", verdict="problem", fix="mount it")
        else:
            usage = shutil.disk_usage(path)
            full = usage.free < least
            crowded = not full and usage.used > 0.95 * usage.total
            fix = "free some; in a container --shm-size" if full else "Ray complains above 95 % use" if crowded else ""
            verdict: Verdict = "problem" if full else "warning" if crowded else "ok"
            told = Finding(what=str(path), found=f"{_gigabytes(usage.free)} free ({what})", verdict=verdict, fix=fix)
        found.append(told)
    return found


def file_system(place: Path) -> list[Finding]:
    """Whether the file system of `place` does what claims on runs need, and whether its clock is the host's."""
    what, kind = "file system of studies", _kind_of_file_system(place)
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place) as name:
            folder = Path(name)
            missing = _missing_in(folder)
            stamped = folder / "clock"
            before = time.time()
            stamped.touch()
            skew = stamped.stat().st_mtime - before
    except OSError as error:
        fix = "check the permissions, or work in another directory"
        return [Finding(what=what, found=f"{place} ({kind}): {error.strerror}", verdict="problem", fix=fix)]
    if "exclusive create" in missing or "rename" in missing:
        told = Finding(
            what=what, found=f"{kind}: no {' and no '.join(missing)}", verdict="problem", fix="work on another one"
        )
    elif missing:
        told = Finding(what=what, found=f"{kind}: no {' and no '.join(missing)}", verdict="warning", fix=_LINKS)
    else:
        told = Finding(what=what, found=f"{kind}: hard links, exclusive create and rename work")
    return [told, _clock("clock of the file system", skew)]


def _missing_in(folder: Path) -> list[str]:
    """Of what claims need, that which does not work in `folder`."""
    missing = []
    (folder / "a").write_bytes(b"a")
    try:
        os.link(folder / "a", folder / "b")
    except OSError:
        missing.append("hard links")
    first, second = create_bytes(folder / "c", b"1"), create_bytes(folder / "c", b"2")
    if not first or second or (folder / "c").read_bytes() != b"1":
        missing.append("exclusive create")
    (folder / "a").replace(folder / "c")
    if (folder / "c").read_bytes() != b"a" or (folder / "a").exists():
        missing.append("rename")
    return missing


def _kind_of_file_system(place: Path) -> str:
    """Its type as the kernel names it: ext4, nfs4, overlay."""
    best, kind = "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            _, mount, name, *_ = line.split()
            inside = mount == "/" or f"{place.resolve()}/".startswith(f"{mount}/")
            if inside and len(mount) >= len(best):
                best, kind = mount, name
    return kind


def tracking(studies: Path) -> list[Finding]:
    """Whether the tracking server answers, how fast, and whether its clock is ours."""
    try:
        store = store_of(studies / "any")
    except UserError as error:
        return [Finding(what="tracking", found=str(error), verdict="problem", fix=f"correct {URI_VARIABLE}")]
    if not os.environ.get(URI_VARIABLE, "").strip():
        return [Finding(what="tracking", found=f"a SQLite database inside each study ({URI_VARIABLE} is not set)")]
    if store.database is not None:
        return [_database(store.database)]
    if not store.uri.startswith(("http://", "https://")):
        return [_listener(store)]
    return _server(store)


def _server(store: Store) -> list[Finding]:
    started = time.perf_counter()
    try:
        request = _health(store.uri)
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
            date, told = answer.headers.get("Date"), f"answers in {time.perf_counter() - started:.2f} s"
    except urllib.error.HTTPError as error:
        date, told = error.headers.get("Date"), f"answers with {error.code}"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        fix = "start it or correct the address; runs go on without, `ablate sync` catches up"
        found = f"{store.name} does not answer ({reason})"
        return [Finding(what="tracking", found=found, verdict="warning", fix=fix)]
    findings = [Finding(what="tracking", found=f"{store.name} {told}")]
    with suppress(TypeError, ValueError):
        # The header counts whole seconds.
        findings.append(
            _clock("clock of the tracking server", parsedate_to_datetime(str(date)).timestamp() - time.time())
        )
    return findings


def _health(uri: str) -> urllib.request.Request:
    """The question whether the server at `uri` is well, with user and password where the address has them."""
    parts = urlsplit(uri)
    place = parts.netloc.rpartition("@")[2]
    request = urllib.request.Request(f"{parts.scheme}://{place}{parts.path.rstrip('/')}/health")
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        request.add_header("Authorization", f"Basic {base64.b64encode(secret).decode('ascii')}")
    return request


def _database(path: Path) -> Finding:
    if not path.parent.is_dir():
        fix = f"make the directory or correct {URI_VARIABLE}"
        return Finding(what="tracking", found=f"{path}: no such directory", verdict="problem", fix=fix)
    return Finding(what="tracking", found=f"{path}" + ("" if path.exists() else " (will be made)"))


def _listener(store: Store) -> Finding:
    """Of a database server: whether anybody listens."""
    address = urlsplit(store.uri)
    ports = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
    port = address.port or ports.get(address.scheme.split("+")[0])
    if not address.hostname or port is None:
        return Finding(what="tracking", found=f"{store.name} (not looked at)")
    started = time.perf_counter()
    try:
        with socket.create_connection((address.hostname, port), timeout=_ANSWER_SECONDS):
            return Finding(
                what="tracking", found=f"{store.name} is listened at ({time.perf_counter() - started:.2f} s)"
            )
    except OSError as error:
        found, fix = f"{store.name}: nobody listens ({error})", "start it or correct the address"
        return Finding(what="tracking", found=found, verdict="warning", fix=fix)


def prepared() -> Finding:
    """Corpora that are ready to be trained on."""
    ready = [f"{entry['name']} ({size})" for entry in corpora.known() for size in entry["prepared"]]
    found = ", ".join(ready) or "none yet: prepared when first needed"
    return Finding(what="prepared corpora", found=f"{found} in {corpora.data_root()}")


def _clock(what: str, skew: float) -> Finding:
    if abs(skew) <= _SKEW_SECONDS:
        return Finding(what=what, found=f"within {_SKEW_SECONDS:.0f} s of this host's")
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this host's"
    return Finding(what=what, found=found, verdict="warning", fix="synchronise the clocks: times in logs do not agree")


def _existing(path: Path) -> Path:
    """`path`, or the nearest directory above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())


def _meminfo(name: str) -> int | None:
    """A line of /proc/meminfo in bytes."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
    return None


def _gigabytes(size: float) -> str:
    return f"{size / GIB:,.1f} GB"


def document(findings: list[Finding]) -> dict[str, Any]:
    """The findings as `doctor --json` prints them."""
    count = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("problem", "warning")}
    return {
        "checks": [finding.document() for finding in findings],
        "problems": count["problem"],
        "warnings": count["warning"],
    }
