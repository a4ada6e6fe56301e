"""The program's source frozen in a study: whole, once, the same however it is installed, and known to its runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from ablations.submit import snapshot as snapshots
from ablations.submit.snapshot import PACKAGES, SUFFIXES, snapshot, would_be
from repro.errors import CheckError

ROOT = Path(__file__).parent.parent
FREEZE = (
    "from pathlib import Path; from ablations.submit import snapshot as module;"
    "found = module.{}(Path({!r})); print(found.path, found.digest, found.commit)"
)


def python(code: str, path: Path, **more: str) -> str:
    """What a program prints that finds our packages in `path` first."""
    environment = os.environ | {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"} | more
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_snapshot_runs_by_itself_and_knows_what_it_was_made_from(tmp_path: Path) -> None:
    made = snapshot(tmp_path)
    assert made.path.parent == tmp_path / "code"
    code = "import repro, ablations, reports, slurm; from repro.runs.environment import environment; import json;"
    code += "print(json.dumps([m.__file__ for m in (repro, ablations, reports, slurm)] + [environment()['code']]))"
    *places, known = json.loads(python(code, made.path))
    assert all(Path(place).is_relative_to(made.path) for place in places)
    assert known == {"commit": made.commit, "dirty": made.dirty, "snapshot": made.digest}
    # It freezes itself as itself: a job may submit.
    again = python(FREEZE.format("would_be", str(tmp_path)), made.path)
    assert again == f"{made.path} {made.digest} {made.commit}"
    assert not [path for path in made.path.rglob("*.pyc") if "__pycache__" not in path.parts]


def test_it_is_made_once_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    made = snapshot(tmp_path)
    file = made.path / "repro" / "seeds.py"
    before = {path: path.stat().st_mtime_ns for path in made.path.rglob("*") if "__pycache__" not in path.parts}
    assert snapshot(tmp_path) == made == would_be(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    file.chmod(0o644)
    file.write_text(file.read_text() + "# edited\n")
    with pytest.raises(CheckError, match=r"seeds\.py: was changed after the snapshot was made"):
        snapshot(tmp_path)


def test_an_edited_program_gets_a_snapshot_beside_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = snapshot(tmp_path)
    kept = (first.path / "repro" / "seeds.py").read_bytes()
    content = snapshots._content()
    monkeypatch.setattr(snapshots, "_content", lambda: content | {"repro/seeds.py": kept + b"# edited\n"})
    second = snapshot(tmp_path)
    assert second.path != first.path
    assert (first.path / "repro" / "seeds.py").read_bytes() == kept
    assert (second.path / "repro" / "seeds.py").read_bytes() == kept + b"# edited\n"


def test_many_at_once_make_one_and_a_full_disk_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(snapshot(tmp_path).path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert sorted(path.name for path in (tmp_path / "code").iterdir()) == [".gitignore", found[0].name]

    written = 0
    write = snapshots._write

    def full(path: Path, data: bytes) -> None:
        nonlocal written
        written += 1
        if written > 20:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(snapshots, "_write", full)
    with pytest.raises(CheckError, match="the disk is full"):
        snapshot(tmp_path / "other")
    assert [path.name for path in (tmp_path / "other" / "code").iterdir()] == [".gitignore"]


def test_a_users_repository_does_not_see_it(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    snapshot(tmp_path / "mine" / "study")
    told = subprocess.run(
        ["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, text=True, check=True
    )
    assert told.stdout == ""


def test_installed_from_a_wheel_it_is_the_same(tmp_path: Path) -> None:
    source, wheel = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(wheel), str(source)], check=True)
    path, digest, commit = python(FREEZE.format("snapshot", str(tmp_path)), wheel).split()
    here = would_be(tmp_path)
    assert (path, digest, commit) == (str(here.path), here.digest, "None")


def test_what_belongs_to_the_packages_is_what_their_wheel_holds() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["tool"]["setuptools"]
    assert {suffix.removeprefix("*") for suffix in project["package-data"]["*"]} == set(SUFFIXES) - {".py"}
    assert {name.removesuffix("*") for name in project["packages"]["find"]["include"]} == set(PACKAGES)
