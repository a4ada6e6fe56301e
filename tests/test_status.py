"""Where a study stands, seen from anywhere, and what is left of it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablations import status
from ablations.cli import run as command
from ablations.estimate import estimate
from ablations.looks import look
from ablations.selection import choose
from ablations.study import Data, Study, StudyRun, open_study
from reports.records.study import load_study
from reports.statistics.measures import bleu_on_test, measure
from repro.runs import attempts
from repro.runs.directory import Status
from repro.runs.processes import Process


def study_of(path: Path, only: Iterable[str], seeds: Iterable[int] = (1,)) -> Study:
    data = Data(corpus="smoke", directory=path / "data", digest="d" * 64, vocabulary_size=256)
    return open_study(path, choose("table3", "smoke", only=only), seeds, data)[0]


def finish(run: StudyRun, *, train_seconds: float = 90.0, other_seconds: float = 10.0, bleu: float = 30.0) -> None:
    with attempts.claim(run.directory) as attempt:  # type: ignore[union-attr]
        seconds = {"train": train_seconds, "decode": other_seconds}
        result = {"steps": 1500, "train_seconds": train_seconds, "seconds": seconds, "test": {"bleu": bleu}}
        run.directory.write_result(result)
        attempt.end("done")


def begin(run: StudyRun, *, progress: float, train_seconds: float) -> attempts.Attempt:
    attempt = attempts.claim(run.directory)
    assert attempt is not None
    told = Status(
        state="running", attempt=1, step=round(1500 * progress), progress=progress, train_seconds=train_seconds
    )
    run.directory.write_status(told)
    return attempt


def as_if_elsewhere(run: StudyRun, *, silent: float) -> None:
    """Let the newest claim be of a process on another machine that was last heard of `silent` seconds ago."""
    path = max((run.path / "attempts").glob("*.json"))
    document = json.loads(path.read_text())
    document["owner"] |= {"host": "gpu7", "boot_id": "another"}
    path.write_text(json.dumps(document))
    os.utime(path, (time.time() - silent,) * 2)


def shown(study: Study) -> str:
    looks = [look(run) for run in study.planned]
    console = Console(file=io.StringIO(), width=160)
    console.print(status.table(looks, "x"))
    for line in status.notes(study, looks):
        console.print(line, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# Life and silence.


def test_a_run_on_another_machine_is_told_by_its_silence_and_never_called_dead(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base", "A.h1", "A.h4"])
    held = [begin(run, progress=0.1, train_seconds=9.0) for run in study.runs]
    for run, silent in zip(study.runs, (5.0, 90.0, 130.0), strict=True):
        as_if_elsewhere(run, silent=silent)
    fresh, quiet, lost = (look(run) for run in study.runs)
    assert (fresh.status.state, fresh.remark) == ("running", "")
    assert (quiet.status.state, quiet.remark) == ("running", f"silent for {quiet.silence:.0f} s")
    assert 90 <= quiet.silence < 120
    assert lost.status.state == "stopped", "somebody else may take it over"
    assert f"silent for {lost.silence:.0f} s; no sign of life since " in lost.remark
    assert "host gpu7" in lost.remark
    assert "ended" not in lost.remark
    entries = status.document(study)["runs"]
    assert [entry["silent_seconds"] >= least for entry, least in zip(entries, (5, 90, 130), strict=True)] == [True] * 3
    for attempt in held:
        attempt.end("stopped")


def test_a_run_whose_process_is_seen_to_be_gone_is_told_so(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base"])
    held = begin(study.runs[0], progress=0.1, train_seconds=9.0)
    path = max((study.runs[0].path / "attempts").glob("*.json"))
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"owner": Process.current().document() | {"start": "1"}}))
    found = look(study.runs[0])
    assert (found.status.state, found.silence) == ("stopped", 0.0)
    assert found.remark.startswith("its process ended without a word")
    held.end("stopped")


def test_a_run_that_the_disk_does_not_let_be_read_is_told_and_hides_no_other(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base", "A.h1"])
    finish(study.runs[1])
    (study.runs[0].path / "attempts").write_text("in the way")
    broken, fine = (look(run) for run in study.runs)
    assert (broken.status.state, fine.status.state) == ("failed", "done")
    assert "Not a directory" in broken.remark


def test_a_read_only_study_is_shown_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of(tmp_path, ["base", "A.h1"])
    finish(study.runs[0])
    held = begin(study.runs[1], progress=0.5, train_seconds=45.0)
    as_if_elsewhere(study.runs[1], silent=70.0)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", refuse)
        assert "silent for 7" in shown(Study.load(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    held.end("stopped")


def test_no_metrics_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    study = study_of(tmp_path, ["base", "A.h1"])
    finish(study.runs[0])
    held = begin(study.runs[1], progress=0.5, train_seconds=45.0)
    for run in study.runs:
        (run.path / "metrics.jsonl").mkdir()
    assert command(["status", str(tmp_path), "--json"]) == 0
    assert [entry["state"] for entry in json.loads(capfd.readouterr().out)["runs"]] == ["done", "running"]
    held.end("stopped")


def test_a_diverged_run_is_shown_with_its_step_and_reason_and_is_in_no_mean(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = study_of(tmp_path, ["base"], seeds=(1, 2, 3))
    finish(study.runs[0], bleu=30.0)
    finish(study.runs[1], bleu=32.0)
    held = begin(study.runs[2], progress=0.4, train_seconds=10.0)
    held.end("diverged", "21 updates had a non-finite loss or gradient, the last at step 600")
    assert command(["status", str(tmp_path)]) == 0, "looking is no failure"
    told = " ".join(capfd.readouterr().out.split())
    assert "base 3 diverged 600 40 %" in told
    assert "the last at step 600" in told
    assert "nothing is left to do" in told
    found = measure(load_study(tmp_path).by_variant["base"], bleu_on_test)
    assert (found.values, found.planned, found.mean, found.partial) == ((30.0, 32.0), 3, 31.0, "2/3 seeds")


# What is left.


def left(study: Study) -> Any:
    return estimate(study, [look(run) for run in study.planned])


def test_work_left_is_reckoned_from_finished_runs_of_the_same_row(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base"], seeds=(1, 2, 3, 4))
    finish(study.runs[0], train_seconds=90.0, other_seconds=10.0)
    held = begin(study.runs[1], progress=0.25, train_seconds=20.0)
    found = left(study)
    # A whole run takes 100 s: 75 of the one at work and 2 x 100 are left, one after the other.
    assert (found.runs, found.seconds, found.at_once, found.wall_seconds) == (3, 275.0, 1, 275.0)
    assert "1 finished and 1 begun runs of this study" in found.basis
    second = begin(study.runs[2], progress=0.5, train_seconds=45.0)
    # 75 s and 50 s at once; the last one starts after the 50.
    assert (left(study).at_once, left(study).wall_seconds) == (2, 150.0)
    document = left(study).document(1_800_000_000.0)
    assert document["is_estimate"] is True
    assert document["hours_left"] == pytest.approx(225 / 3600)
    assert document["done_at"] == "2027-01-15T08:02+00:00"
    assert "(estimate: " in left(study).in_words(1_800_000_000.0)
    assert "3 runs left, about 4 min of work; with 2 at once done in about 2 min, at 08:02 UTC" in left(study).in_words(
        1_800_000_000.0
    )
    for attempt in (held, second):
        attempt.end("stopped")
    assert left(study).wall_seconds is None
    assert "nothing runs now" in left(study).in_words(0.0)


def test_a_runs_own_speed_counts_where_no_other_of_its_row_has_finished(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base"], seeds=(1, 2))
    held = begin(study.runs[0], progress=0.25, train_seconds=20.0)
    found = left(study)
    assert found.seconds == pytest.approx(60.0 + 80.0)
    assert "training alone" in found.basis
    held.end("stopped")


def test_rows_that_have_not_begun_are_reckoned_by_their_planned_flops(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base", "C.ff-double", "C.layers-third"])
    finish(study.runs[0], train_seconds=90.0, other_seconds=10.0)
    found = left(study)
    # Twice the feed-forward layer costs less than twice the whole; a third of the layers more than a third.
    assert 100 + 100 / 3 < found.seconds < 300
    alone = study_of(tmp_path / "more", ["base", "C.layers-third"])
    finish(alone.runs[0], train_seconds=90.0, other_seconds=10.0)
    assert 100 / 3 < left(alone).seconds < 100


def test_status_and_its_estimate_import_nothing_heavy(tmp_path: Path) -> None:
    study = study_of(tmp_path, ["base", "C.ff-double"])
    finish(study.runs[0])
    program = (
        "import sys; from ablations.cli import run; code = run(sys.argv[1:]); "
        "print(code, [name for name in ('torch', 'ray', 'mlflow', 'pandas') if name in sys.modules], file=sys.stderr)"
    )
    words = [sys.executable, "-c", program, "status", str(study.path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == "0 []\n"
    assert "1 run left" in done.stdout


def test_a_study_of_which_nothing_has_begun_has_no_hours(tmp_path: Path) -> None:
    found = left(study_of(tmp_path, ["base"]))
    assert (found.runs, found.seconds, found.wall_seconds) == (1, None, None)
    assert "ablate plan" in found.in_words(0.0)
    assert found.document(0.0)["hours_left"] is None


def test_a_run_that_stands_for_two_rows_is_shown_twice_and_counted_once(tmp_path: Path) -> None:
    data = Data(corpus="smoke", directory=tmp_path / "data", digest="d" * 64, vocabulary_size=256)
    rows = ("B.dk-quarter", "scaling.dk-quarter")
    study, _ = open_study(tmp_path / "s", choose("table3+scaling", "smoke", only=rows), (1,), data)
    finish(study.runs[0])
    told = status.document(study)
    assert [run["variant"] for run in told["runs"]] == list(rows)
    assert told["counts"] == {"done": 1}
    assert shown(study).count("same configuration as B.dk-quarter") == 1


def test_superseded_runs_are_listed_with_the_reason(tmp_path: Path) -> None:
    old = study_of(tmp_path, ["base"]).runs[0]
    data = Data(corpus="smoke", directory=tmp_path / "data", digest="d" * 64, vocabulary_size=256)
    longer = choose("table3", "smoke", only=["base"], settings=["train.budget=2000"])
    study, _ = open_study(tmp_path, longer, [1], data)
    assert f"superseded (train.budget 1500 -> 2000), kept on disk: {old.id}" in shown(study)
    document = status.document(study)
    assert [(entry["id"], entry["reason"]) for entry in document["superseded"]] == [
        (old.id, "train.budget 1500 -> 2000")
    ]
    assert [entry["why"] for entry in document["history"]] == ["train.budget 1500 -> 2000"]
    assert old.id not in {entry["id"] for entry in document["runs"]}
