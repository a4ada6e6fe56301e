from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from repro.runs.environment import code, cpu_model, environment, usable_cores


def git(directory: Path, *command: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(directory), *identity, *command], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    git(path, "init", "--quiet")
    (path / "file.py").write_text("1\n")
    git(path, "add", "file.py")
    git(path, "commit", "--quiet", "-m", "first")
    return path


def test_the_environment_is_a_plain_document_of_this_machine() -> None:
    found = environment()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
    assert (found["host"], found["pid"]) == (socket.gethostname(), os.getpid())
    for name in ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors"):
        assert found["versions"][name] == metadata.version(name)
    assert found["cpu"]


def test_no_heavy_package_is_imported_to_tell_its_version() -> None:
    program = (
        "import sys; from repro.runs.environment import environment; environment();"
        "print(sorted({'torch', 'numpy', 'sentencepiece', 'sacrebleu'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.runs.environment.PACKAGES", ("torch", "no-such-package"))
    assert environment()["versions"]["no-such-package"] is None


def test_only_the_cores_of_the_affinity_mask_count() -> None:
    program = (
        "import os; from repro.runs.environment import usable_cores;"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert usable_cores() >= 1
    assert cpu_model()


def test_a_checkout_tells_its_commit_and_whether_a_tracked_file_changed(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert code(checkout) == {"commit": commit, "dirty": False}
    (checkout / "results.txt").write_text("untracked")
    assert code(checkout) == {"commit": commit, "dirty": False}
    (checkout / "file.py").write_text("2\n")
    assert code(checkout) == {"commit": commit, "dirty": True}


def test_a_package_installed_inside_somebodys_checkout_does_not_take_its_commit(checkout: Path) -> None:
    inside = checkout / "venv" / "site-packages"
    inside.mkdir(parents=True)
    assert code(inside) == {"commit": None, "dirty": None}


def test_a_hooks_variables_do_not_lead_to_another_repository(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    assert code(checkout)["commit"] is not None


def test_no_git_no_checkout_and_a_git_that_hangs_are_fine(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"commit": None, "dirty": None}
    assert code(tmp_path) == nothing
    monkeypatch.setattr("repro.runs.environment._GIT_SECONDS", 0.3)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert code(checkout) == nothing
    (programs / "git").write_text("#!/bin/sh\nexec /bin/sleep 600\n")
    (programs / "git").chmod(0o755)
    assert code(checkout) == nothing


def test_the_jobs_variables_are_noted_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu7")
    monkeypatch.setenv("SLURM_JWT", "a secret")
    assert environment()["slurm"] == {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "gpu7"}
