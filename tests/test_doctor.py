"""`ablate doctor` sees what is there and says what to do about what is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from ablations import cluster, doctor
from ablations.cli import run
from ablations.doctor import Finding


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))


@contextmanager
def serving(date: str) -> Iterator[str]:
    """A server that is well and says that it is `date`."""

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(200)
            self.send_header("Date", date)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.what: finding for finding in findings}


def test_one_screen_tells_all_of_it_and_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from ablations.cli import run; code = run(['doctor', '--json']); "
        "heavy = {'torch', 'ray', 'mlflow'} & set(sys.modules); assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    document = json.loads(done.stdout)
    checks = {check["what"]: check for check in document["checks"]}
    assert done.returncode == (1 if document["problems"] else 0), done.stderr
    assert {"python", "torch", "ray", "mlflow", "sacrebleu", "sentencepiece", "GPUs", "CPUs", "threads"} < checks.keys()
    assert {"memory", "disk of studies", "disk of data", "/dev/shm", "/tmp", "tracking"} < checks.keys()
    assert {"file system of studies", "clock of the file system", "prepared corpora"} < checks.keys()
    for name in ("torch", "ray", "mlflow", "sacrebleu", "sentencepiece"):
        assert checks[name]["found"] == metadata.version(name)
    assert document["problems"] == sum(check["verdict"] == "problem" for check in checks.values())
    assert [path.name for path in tmp_path.iterdir()] == [], "nothing is left behind"


def test_a_problem_is_exit_code_1_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("no-such-package",))
    assert run(["doctor"]) == 1
    told = capfd.readouterr().out
    assert "no-such-package" in told
    assert "pip install" in told
    assert "1 problems" in told


def test_an_old_python_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (99, 0))
    assert by_name(doctor.versions())["python"].verdict == "problem"


def test_gpus_are_those_that_the_driver_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB'\necho 'NVIDIA H200, 143771 MiB'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(metadata, "version", lambda _: "2.13.0+cpu")
    (found,) = doctor.devices()
    assert found.found.startswith("2: NVIDIA H200, 143771 MiB; NVIDIA H200, 143771 MiB")
    assert (found.verdict, "CUDA" in found.fix) == ("warning", True), "torch cannot use them"
    monkeypatch.setattr(metadata, "version", lambda _: "2.13.0+cu128")
    assert doctor.devices()[0].verdict == "ok"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.devices()[0].found == "none that nvidia-smi sees"


def test_cpus_are_told_with_what_limits_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    monkeypatch.setattr(cluster, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    told = doctor.cpus()[0].found
    assert told == "2 usable of 64 present (6 by affinity, 2.5 by the container's quota, SLURM_CPUS_PER_TASK=4)"


def test_little_memory_and_full_disks_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_memory", lambda: 900 * 2**20)
    assert doctor.memory().verdict == "problem"
    usage = type("Usage", (), {"total": 10 * 2**40, "used": 10 * 2**40, "free": 2**20})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert [finding.verdict for finding in doctor.disks({"studies": tmp_path})] == ["problem"]
    assert {finding.verdict for finding in doctor.ray_room()} == {"problem"}


def test_what_claims_need_is_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_name(doctor.file_system(tmp_path))
    assert found["file system of studies"].verdict == "ok"
    assert "hard links, exclusive create and rename work" in found["file system of studies"].found
    assert found["clock of the file system"].verdict == "ok"

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        told = by_name(doctor.file_system(tmp_path))["file system of studies"]
    assert (told.verdict, "no hard links" in told.found) == ("warning", True)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "create_bytes", lambda *_: True)
        (tmp_path / "c").write_bytes(b"")
        patch.setattr(Path, "read_bytes", lambda _: b"")
        told = by_name(doctor.file_system(tmp_path))["file system of studies"]
    assert (told.verdict, "no exclusive create" in told.found) == ("problem", True)
    (nowhere,) = doctor.file_system(Path("/proc"))
    assert nowhere.verdict == "problem"


def test_a_server_that_answers_is_told_with_its_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    with serving(formatdate(time.time(), usegmt=True)) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        found = by_name(doctor.tracking(tmp_path))
    assert found["tracking"].found.startswith(f"{address} answers in ")
    assert {finding.verdict for finding in found.values()} == {"ok"}
    with serving(formatdate(time.time() - 3600, usegmt=True)) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        late = by_name(doctor.tracking(tmp_path))["clock of the tracking server"]
    assert late.verdict == "warning"
    assert late.found.startswith("360") or late.found.startswith("359")
    assert "behind" in late.found


@pytest.mark.parametrize(
    ("uri", "verdict", "words"),
    [
        ("http://127.0.0.1:9", "warning", "does not answer"),
        ("http://user:secret@127.0.0.1:9", "warning", "does not answer"),
        ("postgresql://user:secret@127.0.0.1:9/mlflow", "warning", "nobody listens"),
        ("sqlite:////nowhere/at/all/mlflow.db", "problem", "no such directory"),
        ("ftp://x", "problem", "no address"),
    ],
)
def test_a_tracking_store_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, verdict: str, words: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (found,) = doctor.tracking(tmp_path)
    assert (found.verdict, words in found.found) == (verdict, True)
    assert "secret" not in found.found + found.fix


def test_prepared_corpora_are_listed(tmp_path: Path) -> None:
    assert "none yet" in doctor.prepared().found
    (tmp_path / "data" / "smoke" / "320-abc").mkdir(parents=True)
    (tmp_path / "data" / "smoke" / "320-abc" / "manifest.json").write_text("{}")
    assert doctor.prepared().found.startswith("smoke (320) in ")
