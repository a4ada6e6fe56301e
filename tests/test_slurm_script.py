"""Scripts for sbatch, word for word, and what a site file may say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.errors import CheckError
from slurm import allocation, rank
from slurm.chunks import Chunk, chunks
from slurm.site import Site
from slurm.submission import Request, render

RECORDED = Path(__file__).parent / "slurm_scripts"
SHELLCHECK = Path(sys.executable).with_name("shellcheck")

PLAIN = Request(
    folder=Path("/home/ada/studies/heads/jobs"),
    name="heads",
    command=("ablate", "work", "/home/ada/studies/heads", "--task", "{task}"),
    tasks=12,
    mode="array",
    code=Path("/home/ada/studies/heads/code/3f9a1b2c4d5e"),
    environment={},
)
SITE = Site(python="/opt/python/bin/python")
FULL = SITE.model_copy(
    update={
        "partition": "gpu",
        "account": "nlp-2026",
        "qos": "normal",
        "constraint": "a100&ib",
        "reservation": "course",
        "gres": "gpu:a100",
        "memory": "64G",
        "time": "1-12:00:00",
        "extra": ["--exclude=gpu[07-08]", '--mail-type="END,FAIL"'],
        "modules": ["cuda/12.4", "gcc"],
        "setup": ["export HF_HOME=/scratch/hf", "ulimit -n 65536"],
        "warning_seconds": 300,
        "requeue": False,
        "array_size": 5,
        "at_once": 3,
    }
)
STRANGE = replace(
    PLAIN,
    folder=Path('/home/ada/my studies/50% "it\'s" हिन्दी #1/jobs'),
    code=Path("/home/ada/it's $HOME/code"),
    name='50% of "it\'s"\nहिन्दी #1',
)
CASES: dict[str, tuple[Request, Site]] = {
    "array": (PLAIN, SITE),
    "array-full": (replace(PLAIN, gpus=1, cpus=8), FULL),
    "array-nodes": (replace(PLAIN, tasks=1, nodes=2, processes=8, cpus=6, gpus=8), SITE),
    "array-strange": (replace(STRANGE, tasks=1), SITE),
    "ray": (replace(PLAIN, mode="ray", tasks=1, nodes=4, cpus=32, gpus=4), SITE),
}


@pytest.mark.parametrize("case", CASES)
def test_scripts_are_the_recorded_ones(case: str) -> None:
    scripts = render(*CASES[case], token="k7")
    assert {script.name: script.text for script in scripts} == {
        path.name: path.read_text() for path in sorted((RECORDED / case).iterdir())
    }


@pytest.mark.parametrize("case", CASES)
def test_scripts_are_clean_to_shellcheck(case: str, tmp_path: Path) -> None:
    for script in render(*CASES[case]):
        (tmp_path / script.name).write_text(script.text)
        command = [SHELLCHECK, "--exclude=SC2016", tmp_path / script.name]  # A dollar in a path is meant.
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_script_becomes_python_and_passes_no_word_through_the_shell(tmp_path: Path) -> None:
    """Blanks, quotes and dollars of a path arrive as they are; the frozen code goes before what modules bring."""
    python = tmp_path / "my python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    [script] = render(replace(STRANGE, tasks=1), SITE.model_copy(update={"python": str(python)}), token="k7")
    bash = shutil.which("bash")
    assert bash is not None
    for path, expected in (("", ""), ("/opt/torch 2:/opt/b", ":/opt/torch 2:/opt/b")):
        environment = {"PYTHONPATH": path, "PATH": os.environ["PATH"]}
        done = subprocess.run([bash], input=script.text, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [
            f"/home/ada/it's $HOME/code{expected}",
            "-P",
            "-m",
            "slurm.batch",
            '/home/ada/my studies/50% "it\'s" हिन्दी #1/jobs/k7-0.job.json',
        ]


def test_set_up_that_fails_ends_the_job_with_what_failed() -> None:
    [script] = render(
        replace(PLAIN, tasks=1), SITE.model_copy(update={"setup": ["true", "test -e '/no where'", "true"]})
    )
    done = subprocess.run(["bash"], input=script.text, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "slurm: set-up failed with exit code 1: test -e '/no where'\n"


def test_a_folder_that_slurm_cannot_write_to_or_python_cannot_read_is_refused() -> None:
    with pytest.raises(CheckError, match="backslash"):
        render(replace(PLAIN, folder=Path("/home/a\\b")), SITE)
    with pytest.raises(CheckError, match="colon"):
        render(replace(PLAIN, code=Path("/home/ada/at 10:30/code")), SITE)


def test_tasks_are_cut_into_arrays_that_cover_each_once() -> None:
    assert chunks(0, 12, 5) == [Chunk(0, 5), Chunk(5, 5), Chunk(10, 2)]
    assert chunks(10, 12, 5) == [Chunk(10, 2)]
    assert chunks(12, 12, 5) == []


SITES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("", {"partition": None, "requeue": True}),
    "minutes": ("time: 600", {"time": "10:00:00"}),
    "hours": ("time: 10:30:00", {"time": "10:30:00"}),
    "days": ("time: 2-00:00:00", {"time": "2-00:00:00"}),
    "digits": ("account: 0123\npartition: 1e3", {"account": "0123", "partition": "1e3"}),
    "all": ("memory: 0\nextra: [--exclude=a, -e err]", {"memory": "0", "extra": ["--exclude=a", "-e err"]}),
    "no": ("requeue: no\ntries: 3", {"requeue": False, "tries": 3}),
    "lists": ("modules: [cuda/12]\nsetup:\n- export A=1", {"modules": ["cuda/12"], "setup": ["export A=1"]}),
}


@pytest.mark.parametrize("case", SITES)
def test_a_site_file_says_what_it_looks_like(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, expected = SITES[case]
    (tmp_path / "site.yaml").write_text(text)
    site = Site.load(tmp_path / "site.yaml")
    assert {key: site.model_dump()[key] for key in expected} == expected
    monkeypatch.setenv("ABLATE_SITE", str(tmp_path / "site.yaml"))
    assert Site.load(None) == site


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("partion: gpu", "partion"),
        ("time: soon", "time"),
        ("time: 0", "time"),
        ("time: 10:99:00", "time"),
        ("time: 1\nwarning_seconds: 60", "warning_seconds"),
        ("tries: many", "tries"),
        ("tries: -1", "tries"),
        ("at_once: 0", "at_once"),
        ("gres: gpu:8", "gres"),
        ("extra: [mem=1]", "extra"),
        ("extra: mem", "extra"),
        ("extra: [--job-name=mine]", "--job-name"),
        ("extra: [-J mine]", "-J"),
        ("extra: [--test-only]", "--test-only"),
        ("memory: lots", "memory"),
        ("python: .venv/bin/python", "python"),
        ("python: ~/venv/bin/python", "python"),
        ("scratch: ~/scratch", "scratch"),
        ('partition: "a b"', "partition"),
        ("account:", "account"),
        ("- a\n- b", "site.yaml"),
        ("a: [", "YAML"),
        ("word", "site.yaml"),
    ],
)
def test_a_wrong_site_file_is_refused_in_one_line(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(CheckError) as refused:
        Site.load(path)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_site_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"nowhere\.yaml"):
        Site.load(tmp_path / "nowhere.yaml")


def test_lists_of_slurm_are_read() -> None:
    assert allocation.expanded("2(x3),1") == [2, 2, 2, 1]
    assert allocation.first_host("gpu[07-09,12],login1") == "gpu07"
    assert allocation.first_host("r[1-2]n[03-04]") == "r1n03"
    assert allocation.first_host("localhost") == "localhost"


def test_a_process_of_a_run_learns_its_rank() -> None:
    slurm = {
        "SLURM_STEP_NODELIST": "nowhere[01-02]",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_NUM_TASKS": "6",
        "SLURM_STEP_TASKS_PER_NODE": "4,2",
        "SLURM_NODEID": "1",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "4711",
        "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    }
    told = rank.variables(slurm)
    assert told == {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": told["MASTER_PORT"],
    }
    assert 1024 < int(told["MASTER_PORT"]) < 32768
    assert rank.variables(slurm | {"SLURM_JOB_ID": "4712"})["MASTER_PORT"] != told["MASTER_PORT"]
    assert rank.variables(slurm | {"SLURM_STEP_NUM_NODES": "1"})["MASTER_ADDR"] == "127.0.0.1"
