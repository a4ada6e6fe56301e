"""Studies on a real SLURM of two nodes: whatever happens to the jobs, the bits are those of a local study."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from held_runs import go_on, hold, let_go
from slurm_nodes import Slurm
from small_corpus import small_corpus
from small_study import ROOT, bits, settings, small_study
from tracking_study import empty_database

from ablations.status import document
from ablations.study import Study
from ablations.submit.frozen import submissions
from ablations.submit.queued import queued
from ablations.submit.snapshot import PACKAGES
from repro.data.prepared import Prepared
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE = 600.0
"""Seconds after which a test gives up waiting; never a statement about speed."""
SHORT, LONG = 24, 300
"""Steps of runs that are left alone, and of those that are held in the middle and disturbed there."""
SEVEN = "base,A.h1,A.h32,B.dk-quarter,C.ff-half,D.dropout-0,E.learned"
FIVE = "base,A.h1,B.dk-half,C.ff-half,D.dropout-0"


@dataclasses.dataclass
class Place:
    """Where everything is, a copy of the program among it, and a cluster."""

    home: Path
    text: Path
    corpus: Prepared
    slurm: Slurm

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MLFLOW", "ABLATE"))}
        ours = {"ABLATE_DATA": str(self.home / "data"), "PYTHONPATH": str(self.home / "program")}
        return kept | ours | self.slurm.environment

    def site(self, name: str, text: str) -> list[str]:
        """The option of a site file."""
        file = self.home / f"{name}.yaml"
        file.write_text("partition: main\n" + text)
        return ["--site", str(file)]

    def ablate(self, *arguments: str, code: int = 0, **more: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "ablations", *arguments],
            env=self.environment | more,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def table(self, study: Path, only: str, budget: int) -> list[str]:
        """The arguments that say which runs."""
        study.mkdir(parents=True, exist_ok=True)
        if not (study / "mlflow.db").exists():
            shutil.copy(empty_database(), study / "mlflow.db")
        changes = [part for setting in settings(budget) for part in ("--set", setting)]
        named = ["table3", "--scale", "smoke", "--only", only, "--study", str(study), "--source", str(self.text)]
        return [*named, *changes]

    def submit(self, study: Path, only: str, budget: int, *more: str, **variables: str) -> str:
        """Submit; the number of the new job."""
        before = {frozen.token for frozen in submissions(study)}
        self.ablate("submit", "slurm", *self.table(study, only, budget), *more, **variables)
        (token,) = {frozen.token for frozen in submissions(study)} - before
        return next(place.job for place in self.places(study) if place.token == token)

    def queue(self, study: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.slurm.environment.items():
                patch.setenv(name, value)
            found = queued(study)
        assert found is not None
        return found

    def wait(self, holds: Callable[[], Any], study: Path) -> None:
        ends = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < ends, self.told(study)
            time.sleep(0.3)

    def hold(self, study: Path, *variants: str, attempt: int = 1) -> dict[int, RunDirectory]:
        """Hold runs in the middle of their attempt of this number, or a later one."""
        chosen = [run for variant, run in runs(study).items() if variant in variants]
        return hold(
            lambda: [run for run in chosen if len(attempts.claims(run)) >= attempt],
            len(variants),
            lambda: self.told(study),
        )

    def places(self, study: Path) -> list[Any]:
        return list(self.queue(study).places.values())

    def finished(self, study: Path) -> None:
        """Wait until no job of the study is left; every run of it must be done then.

        A job that SLURM was starting or ending on a node just then set down is held for its administrator: released.
        """

        def over() -> bool:
            live = [place for place in self.places(study) if place.live]
            for place in live:
                if "held" in place.reason:
                    self.slurm.ask("scontrol", "release", place.job)
            return not live

        self.wait(over, study)
        assert all((run.path / "result.json").exists() for run in Study.load(study).runs), self.told(study)

    def told(self, study: Path) -> str:
        """All that is known, for a test that fails."""
        states = json.dumps(document(Study.load(study), self.queue(study)), indent=1)
        logs = [f"== {log.name}\n{log.read_text()[-1500:]}" for log in sorted((study / "jobs").glob("*.log"))]
        return "\n".join([states, *logs, self.slurm.ask("squeue", "--states=all")])


def runs(study: Path) -> dict[str, RunDirectory]:
    return {run.variant: run.directory for run in Study.load(study).runs}


def bits_of(study: Path) -> dict[str, Any]:
    return {variant: bits(run) for variant, run in runs(study).items()}


def claims_of(run: RunDirectory) -> list[str | None]:
    """How each attempt at it ended."""
    return [claim.ended for claim in attempts.claims(run)]


def at_once(lists: Sequence[tuple[float, float]]) -> int:
    """How many of the spans of time overlap at most."""
    return max(sum(begun <= moment < ended for begun, ended in lists) for moment, _ in lists)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("home")
    text = tmp_path_factory.mktemp("text")
    corpus = small_corpus(text, home / "data")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, home / "program" / package, ignore=shutil.ignore_patterns("__pycache__"))
    with Slurm(nodes=2, cpus=4) as slurm:
        yield Place(home=home, text=text, corpus=corpus, slurm=slurm)


@pytest.fixture(scope="module")
def long_bits(place: Place) -> dict[str, Any]:
    """The bits of undisturbed runs, done in this process."""
    study = small_study(place.home / "undisturbed", place.corpus, FIVE.split(","), LONG)
    for run in study.runs:
        execute(run.directory)
    return bits_of(study.path)


def test_seven_runs_five_at_a_time_with_the_source_edited_meanwhile(place: Place) -> None:
    source, study = shutil.copytree(place.home / "program", place.home / "source"), place.home / "array"
    held = place.site("held", 'extra: ["--hold"]\n')
    job = place.submit(study, SEVEN, SHORT, *held, "--at-once", "5", PYTHONPATH=str(source))
    assert {found.meaning for found in place.places(study)} == {"waiting"}
    # The table has lost a row, the program cannot even start any more; what is queued is what it was.
    (source / "ablations" / "cli" / "__init__.py").write_text("raise SystemExit('edited')\n")
    place.slurm.ask("scontrol", "release", job)
    place.finished(study)
    local = place.home / "local"
    place.ablate("run", *place.table(local, SEVEN, SHORT), "--cpus", "2")
    assert bits_of(study) == bits_of(local)
    (frozen,) = submissions(study)
    found = runs(study)
    for run in found.values():
        assert (run.environment() or {})["code"]["snapshot"].startswith(Path(frozen.code).name)
        assert claims_of(run) == ["done"]
    spans = []
    for run in found.values():
        (claim,) = attempts.claims(run)
        spans.append((claim.started, claim.beat))
    assert at_once(spans) <= 5
    nodes = {(run.environment() or {})["slurm"]["SLURMD_NODENAME"] for run in found.values()}
    assert nodes == {"n1", "n2"}
    assert (study / "report" / "index.html").is_file()
    assert "nothing is missing" in place.ablate("submit", "slurm", *place.table(study, SEVEN, SHORT))


def test_requeued_out_of_time_on_a_dead_node_and_cancelled_runs_have_the_bits_of_undisturbed_ones(
    place: Place, long_bits: dict[str, Any]
) -> None:
    study, slurm = place.home / "disturbed", place.slurm
    plain = place.site("plain", "")
    job = place.submit(study, "base,A.h1", LONG, *plain)
    found, held = runs(study), place.hold(study, "base")
    slurm.ask("scontrol", "requeue", f"{job}_0")
    let_go(held, lambda: place.told(study))

    hurried = place.submit(study, "C.ff-half", LONG, *place.site("hurried", "time: 1\nwarning_seconds: 10\n"))
    found = runs(study)
    let_go(place.hold(study, "C.ff-half"), lambda: place.told(study))
    place.wait(lambda: claims_of(found["C.ff-half"])[0] is not None, study)
    assert claims_of(found["C.ff-half"])[0] == "stopped"
    assert attempts.claims(found["C.ff-half"])[0].reason.startswith("SIGUSR1 came, saved at step ")
    slurm.ask("scontrol", "update", f"JobId={hurried}", "TimeLimit=60")  # so that a busy machine comes to an end, too

    cancelled = place.submit(study, "D.dropout-0", LONG, *plain)
    found, held = runs(study), place.hold(study, "D.dropout-0")
    slurm.ask("scancel", cancelled)
    let_go(held, lambda: place.told(study))
    place.wait(lambda: found["D.dropout-0"].status().state == "stopped", study)
    place.wait(lambda: not slurm.ask("squeue", "-h", "-j", cancelled), study)
    assert place.submit(study, "D.dropout-0", LONG, *plain) != cancelled

    lost = place.submit(study, "B.dk-half", LONG, *plain)
    found, held = runs(study), place.hold(study, "B.dk-half")
    node = slurm.ask("squeue", "-h", "-j", lost, "-o", "%N").strip()
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    let_go(held, lambda: place.told(study))
    place.wait(lambda: len(attempts.claims(found["B.dk-half"])) > 1, study)
    slurm.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")

    place.finished(study)
    assert bits_of(study) == long_bits
    tries = {variant: claims_of(run) for variant, run in found.items()}
    assert {variant: ends[-1] for variant, ends in tries.items()} == dict.fromkeys(found, "done"), tries
    assert all(len(tries[variant]) > 1 for variant in ("base", "D.dropout-0", "B.dk-half", "C.ff-half")), tries


def test_a_ray_over_two_nodes_requeued_in_the_middle_has_the_bits_of_a_local_study(
    place: Place, long_bits: dict[str, Any]
) -> None:
    study = place.home / "ray"
    job = place.submit(study, "base,A.h1", LONG, *place.site("plain", ""), "--mode", "ray", "--nodes", "2")
    held = place.hold(study, "base", "A.h1")
    place.slurm.ask("scontrol", "requeue", job)
    let_go(held, lambda: place.told(study))
    again = place.hold(study, "base", "A.h1", attempt=2)  # both at once: each node has a CPU for one run
    assert not again.keys() & held.keys()
    go_on(again)
    place.finished(study)
    found = runs(study)
    assert bits_of(study) == {variant: long_bits[variant] for variant in found}
    for run in found.values():
        assert len(claims_of(run)) > 1
        assert claims_of(run)[-1] == "done"
    nodes = {claim.by["node"] for run in found.values() for claim in attempts.claims(run)[-1:]}
    assert len(nodes) == 2


def test_one_run_over_two_nodes_shares_its_batches(place: Place) -> None:
    study = place.home / "wide"
    place.submit(study, "base", SHORT, *place.site("plain", ""), "--nodes", "2", "--processes-per-run", "2")
    place.finished(study)
    (run,) = runs(study).values()
    result = run.result()
    assert result is not None
    assert (result["processes"], result["steps"]) == (2, SHORT)
    assert claims_of(run) == ["done"]
