from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from small_disk import small_disk

import repro
from repro.config import RunConfig, TrainConfig, TransformerConfig
from repro.errors import CheckError
from repro.runs.attempts import Attempt, claim, newest
from repro.runs.directory import MetricLine, RunDirectory, Status
from repro.runs.processes import Process

CONFIG = RunConfig(variant="A.h1", table="table3", seed=2, train=TrainConfig(budget=50))

APPENDER = """
import sys
from pathlib import Path
from repro.runs.directory import MetricLine, RunDirectory
run = RunDirectory(Path(sys.argv[1]))
step = 0
while True:
    step += 1
    run.append_metrics(MetricLine(step=step, time=1.5, metrics={"train/loss": step / 7, "x" * 3000: 1.0}))
    if step == 50:
        print("going", flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "data").mkdir()
    return RunDirectory.create(tmp_path / "runs", CONFIG, tmp_path / "data")


def line(step: int, **metrics: float) -> MetricLine:
    return MetricLine(step=step, time=1000.0 + step, metrics=metrics or {"train/loss": 1.0 / step})


def claimed(run: RunDirectory) -> Attempt:
    attempt = claim(run)
    assert attempt is not None
    return attempt


def change_owner(run: RunDirectory, owner: Process, *, silent_for: float = 0.0) -> None:
    """Make `owner` the owner of the newest claim, with its last sign of life so many seconds ago."""
    latest = newest(run)
    assert latest is not None
    latest.path.write_text(json.dumps(json.loads(latest.path.read_text()) | {"owner": owner.document()}))
    moment = time.time() - silent_for
    os.utime(latest.path, (moment, moment))


# What the run is.


def test_a_new_run_directory_holds_its_resolved_configuration(run: RunDirectory, tmp_path: Path) -> None:
    assert run.path == tmp_path / "runs" / CONFIG.run_id()
    document = json.loads((run.path / "config.json").read_text())
    assert document["schema"] == 1
    assert document["run_id"] == CONFIG.run_id()
    assert document["hash"] == CONFIG.hash()
    assert document["config"]["model"]["d_k"] == 64
    assert document["data_directory"] == str(tmp_path / "data")
    assert run.config() == CONFIG.resolved()
    assert run.current_config() == CONFIG.resolved()
    assert run.data_directory() == tmp_path / "data"
    assert (run.run_id(), run.hash()) == (CONFIG.run_id(), CONFIG.hash())


def test_making_the_same_run_again_changes_nothing(run: RunDirectory, tmp_path: Path) -> None:
    before = (run.path / "config.json").stat()
    other_labels = replace(CONFIG, table="scaling")
    again = RunDirectory.create_at(run.path, other_labels, tmp_path / "other-data")
    assert again == run
    after = (run.path / "config.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert run.config().table == "table3"
    assert run.data_directory() == tmp_path / "data"


def test_a_data_directory_that_is_gone_is_replaced_when_the_run_is_made_again(
    run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "data").rename(tmp_path / "moved-data")
    RunDirectory.create(tmp_path / "runs", CONFIG, tmp_path / "moved-data")
    assert run.data_directory() == tmp_path / "moved-data"
    assert run.config() == CONFIG.resolved()


def test_a_directory_of_another_configuration_is_refused_and_says_in_what_they_differ(
    run: RunDirectory, tmp_path: Path
) -> None:
    other = replace(CONFIG, seed=3, model=TransformerConfig(norm="pre", n_layers=2, dropout=0.0))
    with pytest.raises(CheckError) as caught:
        RunDirectory.create_at(run.path, other, tmp_path / "data")
    told = str(caught.value)
    assert told.startswith(f"{run.path}: belongs to another configuration: seed = 2 instead of 3, model.n_layers = 6")
    assert "and 1 more" in told
    assert "\n" not in told
    assert run.config() == CONFIG.resolved()


def test_of_many_different_configurations_for_one_directory_one_stands_and_the_others_are_told(
    tmp_path: Path,
) -> None:
    for number in range(5):
        path, outcomes = tmp_path / str(number), []
        barrier = threading.Barrier(6)

        def make(
            seed: int, path: Path = path, barrier: threading.Barrier = barrier, told: list[int] = outcomes
        ) -> None:
            barrier.wait()
            try:
                RunDirectory.create_at(path, replace(CONFIG, seed=seed), tmp_path)
            except CheckError:
                return
            told.append(seed)

        threads = [threading.Thread(target=make, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == [RunDirectory(path).config().seed]


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("")
    with pytest.raises(CheckError, match=r"is no run directory and not empty \(holds 'thesis.tex'\)"):
        RunDirectory.create_at(home, CONFIG, tmp_path)
    with pytest.raises(CheckError, match="thesis"):
        RunDirectory.create_at(home / "thesis.tex", CONFIG, tmp_path)
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]


def test_a_directory_without_configuration_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CheckError, match="no run directory"):
            RunDirectory(path).status()
        with pytest.raises(CheckError, match="no run directory"):
            RunDirectory(path).config()


@pytest.mark.parametrize(
    ("old", "new"), [('"seed": 2', '"seed": 4'), ('"semantics": ', '"semantics": 1'), ('"config"', '"konfig"')]
)
def test_a_configuration_edited_by_hand_is_noticed(old: str, new: str, run: RunDirectory) -> None:
    path = run.path / "config.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CheckError, match=r"config\.json: was changed after the run was made"):
        run.config()


def test_a_run_of_a_version_with_other_results_is_read_but_not_gone_on_with(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.config.run.SEMANTICS_VERSION", repro.SEMANTICS_VERSION + 1)
    assert run.config() == CONFIG.resolved()
    assert run.status().state == "planned"
    with pytest.raises(CheckError, match="version of the program that gives other results"):
        run.current_config()
    with pytest.raises(CheckError, match="made by a version that gives other results"):
        RunDirectory.create_at(run.path, CONFIG, tmp_path)


def test_a_document_of_a_later_schema_is_not_guessed_at(run: RunDirectory) -> None:
    (run.path / "config.json").write_text('{"schema": 2}')
    with pytest.raises(CheckError, match="not a document of schema 1"):
        run.config()


def test_a_moved_run_directory_is_the_same_run(run: RunDirectory, tmp_path: Path) -> None:
    attempt = claimed(run)
    run.append_metrics(line(1))
    run.write_hypotheses("valid", ["ein Satz"])
    run.write_status(Status(state="running", attempt=1, step=1))
    attempt.end("stopped", "asked to")
    before = run.status()
    moved = RunDirectory(tmp_path / "elsewhere" / "renamed")
    moved.path.parent.mkdir()
    shutil.move(run.path, moved.path)
    assert moved.status() == before
    assert moved.run_id() == CONFIG.run_id()
    assert moved.config() == CONFIG.resolved()
    assert moved.metrics() == [line(1)]
    assert moved.hypotheses("valid") == ["ein Satz"]


# How it goes.


def test_a_run_goes_from_planned_to_running_to_done(run: RunDirectory) -> None:
    assert run.status() == Status(state="planned")
    attempt = claimed(run)
    assert run.status().state == "running"
    run.write_status(Status(state="running", attempt=1, step=20, progress=0.4, target_tokens_per_second=900.0))
    status = run.status()
    assert (status.state, status.step, status.progress) == ("running", 20, 0.4)
    assert (status.host, status.pid) == (Process.current().host, os.getpid())
    assert status.target_tokens_per_second == 900.0
    assert abs(status.updated - time.time()) < 600
    run.write_result({"steps": 50, "train_seconds": 12.5})
    attempt.end("done")
    status = run.status()
    assert (status.state, status.step, status.progress, status.reason) == ("done", 50, 1.0, "")
    assert status.train_seconds == 12.5


@pytest.mark.parametrize("state", ["failed", "diverged", "stopped"])
def test_an_ended_attempt_tells_state_and_reason_and_the_next_one_makes_the_run_running_again(
    state: str, run: RunDirectory
) -> None:
    attempt = claimed(run)
    run.write_status(Status(state="running", attempt=1, step=7))
    attempt.end(state, "why it ended")  # type: ignore[arg-type]
    status = run.status()
    assert (status.state, status.reason, status.step, status.attempt) == (state, "why it ended", 7, 1)
    second = claimed(run)
    status = run.status()
    assert (status.state, status.reason, status.attempt) == ("running", "", 2)
    second.end("stopped", "asked to")


def test_a_run_whose_owner_died_is_stopped_and_says_so(run: RunDirectory) -> None:
    claimed(run).end("stopped")
    attempt = claimed(run)
    run.write_status(Status(state="running", attempt=2, step=3))
    change_owner(run, replace(Process.current(), start="1"))
    status = run.status()
    assert (status.state, status.step, status.attempt) == ("stopped", 3, 2)
    assert status.reason == (
        f"its process ended without a word (attempt 2, host {Process.current().host}, pid {os.getpid()})"
    )
    attempt.end("done")


def test_a_run_on_another_machine_is_running_until_it_falls_silent(run: RunDirectory) -> None:
    attempt = claimed(run)
    run.write_status(Status(state="running", attempt=1, step=3))
    elsewhere = replace(Process.current(), host="elsewhere")
    change_owner(run, elsewhere, silent_for=60)
    assert (run.status().state, run.status().host) == ("running", "elsewhere")
    change_owner(run, elsewhere, silent_for=600)
    assert run.status().state == "stopped"
    assert "attempt 1, host elsewhere" in run.status().reason
    attempt.end("done")


def test_a_killed_process_leaves_a_stopped_run(run: RunDirectory) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from repro.runs.attempts import claim;"
        "from repro.runs.directory import RunDirectory, Status; run = RunDirectory(Path(sys.argv[1])); claim(run);"
        "run.write_status(Status(state='running', attempt=1, step=9)); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(run.path)], check=False)
    assert done.returncode == -signal.SIGKILL
    status = run.status()
    assert (status.state, status.step) == ("stopped", 9)
    assert "its process ended without a word (attempt 1, " in status.reason


def test_a_result_makes_a_run_done_whatever_else_is_written(run: RunDirectory) -> None:
    attempt = claimed(run)
    run.write_status(Status(state="running", attempt=1, step=49, reason="x"))
    run.write_result({"steps": 50})
    change_owner(run, replace(Process.current(), start="1"))
    assert run.status().state == "done"
    (run.path / "result.json").unlink()
    assert run.status().state == "stopped"
    attempt.end("done")
    assert (run.status().state, run.status().reason) == ("stopped", "it was done, but result.json is gone")


def test_a_directory_copied_without_its_attempts_is_not_running(run: RunDirectory) -> None:
    run.write_status(Status(state="running", attempt=1, step=5))
    assert (run.status().state, run.status().reason) == ("stopped", "nobody works on it any more")


def test_asking_for_the_status_needs_no_right_to_write(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = claimed(run)
    change_owner(run, replace(Process.current(), host="elsewhere"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert run.status().state == "running"
    monkeypatch.undo()
    attempt.end("done")


def test_a_status_from_a_later_version_is_one_clear_line(run: RunDirectory) -> None:
    (run.path / "status.json").write_text('{"state": "planned", "mood": "good"}')
    with pytest.raises(CheckError, match=r"status\.json: not a status"):
        run.status()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        "{}",
        '{"state": "running", "step": "x"}',
        '{"state": "on fire"}',
        '{"state": "done", "attempt": 1e9',
    ],
)
def test_a_damaged_status_is_one_clear_line_with_the_remedy(content: str, run: RunDirectory) -> None:
    (run.path / "status.json").write_text(content)
    with pytest.raises(CheckError, match=r"status\.json: not a status .*\(remove it: ") as caught:
        run.status()
    assert "\n" not in str(caught.value)
    (run.path / "status.json").unlink()
    assert run.status().state == "planned"


@pytest.mark.parametrize(
    ("result", "wrong"),
    [
        ({"steps": None}, "steps is None"),
        ({"steps": 3, "train_seconds": "x"}, "train_seconds is 'x'"),
        ({"steps": 3, "test": None}, "test is None"),
        ({"steps": 3, "test": {"bleu": "30"}}, r"test\.bleu is '30'"),
        ({"steps": 3, "target_tokens_per_second": True}, "target_tokens_per_second is True"),
    ],
)
def test_a_damaged_result_names_what_is_wrong_and_how_to_score_again(
    result: dict[str, object], wrong: str, run: RunDirectory
) -> None:
    (run.path / "result.json").write_text(json.dumps({"schema": 1} | result))
    for reading in (run.result, run.status):
        with pytest.raises(CheckError, match=rf"result\.json: damaged \({wrong}, .*remove it and run again"):
            reading()


def test_numbers_that_json_does_not_know_are_refused(run: RunDirectory) -> None:
    (run.path / "result.json").write_text('{"schema": 1, "test": {"bleu": NaN}}')
    with pytest.raises(CheckError, match=r"result\.json: not a JSON document \(NaN is no number of JSON\)"):
        run.result()


def test_what_a_killed_owner_left_half_written_is_removed_and_nothing_else(run: RunDirectory) -> None:
    run.write_status(Status(state="running"))
    run.write_hypotheses("test", ["x"])
    left = [".status.json.ab12", ".metrics.jsonl.q", ".result.json.z", "hypotheses/.test.txt.u"]
    kept = [".config.json.someone-creates", "config.json", "status.json", "hypotheses/test.txt"]
    for name in [*left, kept[0]]:
        (run.path / name).write_text("")
    run.remove_temporaries()
    assert not [name for name in left if (run.path / name).exists()]
    assert [name for name in kept if (run.path / name).exists()] == kept


# Metrics.


def test_metrics_come_back_as_written(run: RunDirectory) -> None:
    assert run.metrics() == []
    run.sync()
    written = [line(1), line(2, **{"train/loss": 0.1 + 0.2, "train/flops": 1.23456789012345e18}), line(2, bleu=30)]
    for one in written:
        run.append_metrics(one)
    run.sync()
    assert run.metrics() == written
    assert [json.loads(text) for text in (run.path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "time": 1001.0, "metrics": {"train/loss": 1.0}},
        {"step": 2, "time": 1002.0, "metrics": {"train/loss": 0.1 + 0.2, "train/flops": 1.23456789012345e18}},
        {"step": 2, "time": 1002.0, "metrics": {"bleu": 30}},
    ]


def test_metrics_survive_kill_9_up_to_a_torn_last_line(run: RunDirectory) -> None:
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(run.path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            process.send_signal(signal.SIGKILL)
        steps = [one.step for one in run.metrics()]
        assert len(steps) >= 50
        assert steps == list(range(1, len(steps) + 1))
        run.drop_metrics_after(0)


def test_a_line_torn_anywhere_is_left_out_and_the_next_one_takes_its_place(run: RunDirectory) -> None:
    for step in (1, 2):
        run.append_metrics(line(step))
    path = run.path / "metrics.jsonl"
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for cut in range(first, len(content)):
        path.write_bytes(content[:cut])
        assert run.metrics() == [line(1)]
        run.append_metrics(line(3))
        assert run.metrics() == [line(1), line(3)]
        path.write_bytes(content[:cut])
        run.drop_metrics_after(1)
        assert path.read_bytes() == content[:first]


def test_metrics_after_the_step_of_a_resume_are_dropped_and_written_once(run: RunDirectory) -> None:
    for step in range(1, 8):
        run.append_metrics(line(step))
    run.append_metrics(line(4, bleu=3))
    run.drop_metrics_after(4)
    assert run.metrics() == [line(1), line(2), line(3), line(4), line(4, bleu=3)]
    run.append_metrics(line(5))
    names = [(one.step, name) for one in run.metrics() for name in one.metrics]
    assert len(names) == len(set(names))
    run.drop_metrics_after(-1)
    assert run.metrics() == []


def test_dropping_nothing_writes_nothing(run: RunDirectory) -> None:
    run.drop_metrics_after(5)
    assert not (run.path / "metrics.jsonl").exists()
    run.append_metrics(line(1))
    before = (run.path / "metrics.jsonl").stat().st_ino
    run.drop_metrics_after(1)
    assert (run.path / "metrics.jsonl").stat().st_ino == before


def test_a_metric_written_twice_for_a_step_is_read_once(run: RunDirectory) -> None:
    run.append_metrics(line(1, loss=1, bleu=5))
    run.append_metrics(line(2, loss=2))
    run.append_metrics(line(1, loss=3))
    assert run.metrics() == [line(1, bleu=5), line(2, loss=2), line(1, loss=3)]


@pytest.mark.parametrize(
    "text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1}, "step": 1e999', '{"a": 1' + 400 * "0" + "}", "[" * 100_000]
)
def test_a_number_that_is_none_is_a_damaged_line(run: RunDirectory, text: str) -> None:
    (run.path / "metrics.jsonl").write_text(f'{{"step": 1, "time": 1, "metrics": {text}}}\n')
    with pytest.raises(CheckError, match=r"metrics\.jsonl:1: not a line of metrics"):
        run.metrics()


def test_a_damaged_line_in_the_middle_is_named(run: RunDirectory) -> None:
    (run.path / "metrics.jsonl").write_bytes(b'{"step": 1, "time": 1, "metrics": {"a": 1}}\nrubbish\n{"step": 2}\n')
    with pytest.raises(CheckError, match=r"metrics\.jsonl:2: not a line of metrics"):
        run.metrics()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_never_written(value: float, run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="train/loss at step 1"):
        run.append_metrics(line(1, **{"train/loss": value}))
    assert run.metrics() == []


def test_a_full_disk_tears_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", monkeypatch) as disk:
        run = RunDirectory.create(disk.path, CONFIG, tmp_path)
        run.append_metrics(line(1))
        before = (run.path / "metrics.jsonl").read_bytes()
        disk.fill()
        with pytest.raises(CheckError, match="the disk is full"):
            run.append_metrics(line(2, **{"x" * 9000: 1.0}))
        with pytest.raises(CheckError, match="the disk is full"):
            run.write_status(Status(state="running"))
        with pytest.raises(CheckError, match="the disk is full"):
            run.write_result({"steps": 1})
        disk.free()
        assert (run.path / "metrics.jsonl").read_bytes() == before
        assert run.result() is None
        assert run.status().state == "planned"


# What came of it.


def test_a_result_comes_back_with_its_schema(run: RunDirectory) -> None:
    assert run.result() is None
    run.write_result({"variant": "A.h1", "test": {"bleu": 25.375}})
    assert run.result() == {"schema": 1, "variant": "A.h1", "test": {"bleu": 25.375}}
    (run.path / "result.json").write_text('{"schema": 1, ')
    with pytest.raises(CheckError, match=r"result\.json: not a JSON document"):
        run.result()


def test_hypotheses_keep_every_line_whatever_it_holds(run: RunDirectory) -> None:
    assert run.hypotheses("test") is None
    lines = ["", "a\u2028b\x85c\x0bd\x0ce", "lone\rreturn", " blanks  ", "", "\ufeffmark", "", ""]
    run.write_hypotheses("test", lines)
    assert run.hypotheses("test") == lines
    assert run.hypotheses_path("test").read_bytes().count(b"\n") == len(lines)
    assert run.hypotheses("valid") is None
    run.write_hypotheses("valid", [])
    assert run.hypotheses("valid") == []


def test_a_translation_with_a_line_end_inside_is_refused(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="translation 2 of test"):
        run.write_hypotheses("test", ["good", "ba\nd"])
    assert run.hypotheses("test") is None


def test_the_environment_comes_back(run: RunDirectory) -> None:
    assert run.environment() is None
    run.write_environment({"python": "3.11.7"})
    assert run.environment() == {"schema": 1, "python": "3.11.7"}


def test_reading_run_directories_imports_no_torch() -> None:
    program = (
        "import sys, repro.runs.directory, repro.runs.attempts, repro.runs.environment; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
