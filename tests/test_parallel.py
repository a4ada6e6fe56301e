"""Several processes a run: the update of one process, equal models, and an end that is told whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parallel_updates import batches, outcome, trainer_of
from small_corpus import configuration, small_corpus
from torch import Tensor

from repro.data.batches import collate, split_batch
from repro.data.prepared import Prepared
from repro.errors import UsageError
from repro.runs import launch
from repro.runs.directory import RunDirectory, Status
from repro.runs.events import Progress, Silent
from repro.runs.execute import execute
from repro.runs.outcome import TIMES
from repro.runs.owned import owned_directory
from repro.training.joining import to_join
from repro.training.weights import load_weights

TESTS = Path(__file__).parent
PATIENCE = 240.0
"""Seconds after which a test gives up waiting; never a statement about speed."""
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


class Two:
    """What two processes came to that each made the updates of `parallel_updates`."""

    def __init__(self, corpus: Prepared, folder: Path) -> None:
        command = [sys.executable, str(TESTS / "parallel_updates.py")]
        processes = [
            subprocess.Popen(
                [*command, str(rank), "2", str(folder / "meeting"), str(corpus.directory), str(folder / str(rank))],
                env=ENVIRONMENT,
            )
            for rank in (0, 1)
        ]
        assert [process.wait(PATIENCE) for process in processes] == [0, 0]
        self.folder = folder
        self.told: list[dict[str, Any]] = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]

    def weights(self, case: str, rank: int = 0) -> dict[str, Tensor]:
        return load_weights(self.folder / f"{rank}-{case}.safetensors")


@pytest.fixture(scope="module")
def two(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Two:
    return Two(corpus, tmp_path_factory.mktemp("two"))


def same_update(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to 1e-6 in what an update saw, and in all counts exactly."""
    assert one["counters"] == other["counters"]
    assert one["micro_batch_tokens"] == other["micro_batch_tokens"]
    for mine, theirs in zip(one["updates"], other["updates"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-6)


# Updates


def test_two_processes_give_the_gradients_of_one_that_accumulates(corpus: Prepared, two: Two) -> None:
    trainer = trainer_of(corpus)
    given = batches(corpus)
    assert [len(split_batch(batch, 100)) for batch in given] == [3, 5, 4], "uneven shares are part of the case"
    same_update(outcome(trainer, [trainer.update(batch) for batch in given]), two.told[0]["parts"])
    gradient = load_weights(two.folder / "0-gradient.safetensors")
    alone = trainer_of(corpus)
    alone.update(given[0])
    for name, parameter in alone.model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_batch_of_fewer_parts_than_processes_is_cut_and_counted_as_it_was_computed(
    corpus: Prepared, two: Two
) -> None:
    # 23, 31 and 17 sentences, each in two parts that differ by one sentence.
    positions = 0
    for batch in batches(corpus):
        half = len(batch.src) // 2
        for rows in (slice(0, half), slice(half, None)):
            src, tgt = batch.src_lengths[rows], batch.tgt_lengths[rows]
            positions += len(src) * (int(src.max()) + int(tgt.max()))
    counters = two.told[0]["whole"]["counters"]
    assert counters["source_positions"] + counters["target_positions"] == positions
    assert counters["padded_flops"] > counters["flops"]


def test_a_process_without_a_part_helps_no_less(corpus: Prepared, two: Two) -> None:
    trainer = trainer_of(corpus)
    update = trainer.update(collate(corpus.encoded("train"), np.array([5])))
    same_update(outcome(trainer, [update]), two.told[0]["single"])


@pytest.mark.parametrize("case", ["parts", "whole", "single", "short", "poisoned", "resumed"])
def test_all_processes_have_equal_bits_and_equal_counts(two: Two, case: str) -> None:
    one, other = (json.dumps(told[case]) for told in two.told)  # as text, where what is not a number equals itself
    assert one == other
    mine, theirs = two.weights(case, 0), two.weights(case, 1)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_is_not_finite_in_one_process_is_skipped_in_all(two: Two) -> None:
    assert [update["applied"] for update in two.told[0]["poisoned"]["updates"]] == [False, False]
    assert (two.told[0]["poisoned"]["counters"]["step"], two.told[0]["poisoned"]["counters"]["skipped"]) == (0, 2)


def test_memory_that_runs_out_in_one_process_halves_the_parts_of_all(corpus: Prepared, two: Two) -> None:
    assert two.told[1]["short"]["micro_batch_tokens"] == 50
    trainer = trainer_of(corpus, micro_batch_tokens=50)
    same_update(outcome(trainer, [trainer.update(batch) for batch in batches(corpus)]), two.told[0]["short"])


def test_a_sentence_that_does_not_fit_in_one_process_ends_all_with_one_line(two: Two) -> None:
    for told in two.told:
        assert "a single sentence of the transformer" in told["full"]
        assert "\n" not in told["full"]


def test_processes_go_on_from_the_state_of_rank_0(corpus: Prepared, two: Two) -> None:
    trainer = trainer_of(corpus)
    first, *rest = batches(corpus)
    trainer.update(first)
    trainer.micro_batch_tokens = 77
    same_update(outcome(trainer, [trainer.update(batch) for batch in rest]), two.told[1]["resumed"])


# Whole runs


class Watch:
    """Acts once, at the first event of a step from `step` on."""

    def __init__(self, step: int, act: Callable[[], bool]) -> None:
        self._step, self._act, self._seen = step, act, 0
        self.notes: list[str] = []
        self.acted = False

    def progress(self, event: Progress) -> None:
        self._seen = event.step
        if event.note:
            self.notes.append(event.note)

    def stop(self) -> bool:
        if not self.acted and self._seen >= self._step:
            self.acted = True
            return self._act()
        return False


def members(parent: int) -> list[int]:
    """The processes of a run that `parent` started and that live, as /proc tells."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, ppid = stat.read_text().rpartition(")")[2].split()[:2]
            if int(ppid) == parent and state != "Z" and b"repro.runs.member" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
    return found


def settings(corpus: Prepared, budget: int) -> Any:
    return configuration(corpus, micro_batch_tokens=100, budget=budget, evaluate_every=30, log_every=2)


def made(root: Path, corpus: Prepared, budget: int = 60) -> RunDirectory:
    return RunDirectory.create(root, settings(corpus, budget), corpus.directory)


def bits(run: RunDirectory) -> dict[str, Any]:
    result = run.result()
    assert result is not None, run.status().reason
    clocked = {"train/target_tokens_per_second", "time/train_seconds"}
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES},
        "metrics": [
            (line.step, {name: value for name, value in line.metrics.items() if name not in clocked})
            for line in run.metrics()
        ],
        "hypotheses": [run.hypotheses("valid"), run.hypotheses("test")],
        "weights": (run.checkpoints / "final.safetensors").read_bytes(),
    }


@pytest.fixture(scope="module")
def together(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = made(tmp_path_factory.mktemp("together"), corpus)
    status = execute(run, processes=2)
    assert (status.state, status.step) == ("done", 60), status.reason
    return run


def test_a_run_of_two_processes_ends_like_that_of_one(corpus: Prepared, together: RunDirectory, tmp_path: Path) -> None:
    alone = made(tmp_path, corpus)
    assert execute(alone).state == "done"
    one, two = alone.result(), together.result()
    assert one is not None
    assert two is not None
    assert (one["processes"], two["processes"]) == (1, 2)
    environment = together.environment()
    assert environment is not None
    assert environment["processes"] == 2
    counts = ("steps", "epochs", "source_tokens", "target_tokens", "padding_share", "train_flops", "padded_flops")
    assert {key: one[key] for key in counts} == {key: two[key] for key in counts}
    curves = [
        [line.metrics["train/loss"] for line in run.metrics() if "train/loss" in line.metrics]
        for run in (alone, together)
    ]
    assert len(curves[0]) == 30
    assert curves[0][:5] == pytest.approx(curves[1][:5], rel=1e-6)
    # Adam makes much of rounding where a gradient is nearly zero; the runs drift apart, slowly.
    assert curves[0] == pytest.approx(curves[1], rel=1e-2)


@pytest.mark.slow
def test_a_killed_process_fails_the_attempt_with_a_reason_and_the_next_one_gives_the_same_bits(
    corpus: Prepared, together: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus)

    def kill() -> bool:
        environment = run.environment()
        assert environment is not None
        (other,) = (pid for pid in members(os.getpid()) if pid != environment["pid"])
        os.kill(other, signal.SIGKILL)
        return False

    watch = Watch(6, kill)
    status = execute(run, processes=2, observer=watch, stop=watch.stop)
    assert watch.acted
    assert (status.state, status.attempt) == ("failed", 1)
    assert status.reason == "process 2 of 2 was killed by SIGKILL"
    assert members(os.getpid()) == []
    assert execute(run, processes=2).state == "done"
    assert bits(run) == bits(together)


@pytest.mark.slow
def test_a_run_of_two_processes_stopped_and_resumed_has_the_bits_of_one_that_was_not(
    corpus: Prepared, together: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus)
    watch = Watch(10, lambda: True)
    status = execute(run, processes=2, observer=watch, stop=watch.stop)
    assert status.state == "stopped", status.reason
    assert 10 <= status.step < 60
    assert status.micro_batch_tokens == 100
    assert status.checkpoint_bytes > 0
    assert execute(run, processes=2, observer=watch).state == "done"
    assert f"goes on from step {status.step}" in watch.notes
    assert bits(run) == bits(together)


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_says_so(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus)
    watch = Watch(4, lambda: True)
    assert execute(run, observer=watch, stop=watch.stop).state == "stopped"
    status = execute(run, processes=2, observer=watch)
    assert (status.state, status.step) == ("done", 60), status.reason
    assert "goes on from step 4 with 2 processes, not 1: equal up to rounding" in watch.notes


@pytest.mark.slow
def test_no_process_outlives_its_starter(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus, budget=1_000_000)
    code = "import sys; from pathlib import Path; from repro.runs.directory import RunDirectory; "
    code += "from repro.runs.execute import execute; execute(RunDirectory(Path(sys.argv[1])), processes=2)"
    place = tmp_path / "tmp"
    place.mkdir()
    starter = subprocess.Popen([sys.executable, "-c", code, str(run.path)], env=ENVIRONMENT | {"TMPDIR": str(place)})
    ends = time.monotonic() + PATIENCE
    while run.environment() is None:
        assert time.monotonic() < ends
        time.sleep(0.05)
    started = members(starter.pid)
    assert len(started) == 2
    starter.kill()
    starter.wait()
    while any(alive(pid) for pid in started):
        assert time.monotonic() < ends, "a process lives on without its starter"
        time.sleep(0.05)
    assert run.status().state == "stopped"
    assert list(place.glob("ablate-*/meeting"))
    new = owned_directory(place, "ablate-")
    assert list(place.glob("ablate-*")) == [new], "what it left is cleared away by the next"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_a_process_that_fails_leaves_its_reason_to_the_run(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus)
    gone = tmp_path / "moved"
    seen: list[Status] = []

    def do() -> None:
        seen.append(execute(run, processes=2, data_directory=gone))

    thread = threading.Thread(target=do)
    thread.start()
    thread.join(PATIENCE)
    assert seen
    assert seen[0].state == "failed"
    assert str(gone) in seen[0].reason


def test_a_line_cut_short_by_a_processs_end_hides_no_exit() -> None:
    crew = launch._Crew(Silent(), lambda: False, Path("log"))
    line = [sys.executable, "-c", "import sys; print('{\"ending', end=''); sys.exit(3)"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    crew.members.append(launch._Member(process, BytesIO()))
    crew._read(0)
    assert crew.events.get_nowait() == launch._Exit(0, 3)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR, MASTER_PORT is missing"),
        ({"WORLD_SIZE": "2", "RANK": "-1", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "one"}, "MASTER_PORT is 'one'"),
    ],
)
def test_an_environment_that_tells_of_no_group_is_one_line(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], told: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=told):
        to_join()


@pytest.mark.slow
def test_processes_that_torchrun_started_join_in_one_run(
    corpus: Prepared, together: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus)
    code = "import sys; from pathlib import Path; from repro.runs.directory import RunDirectory; "
    code += "from repro.runs.execute import execute_joined; execute_joined(RunDirectory(Path(sys.argv[1])))"
    script = tmp_path / "join.py"
    script.write_text(code + "\n")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launcher, str(script), str(run.path)], env=ENVIRONMENT, check=True, timeout=PATIENCE)
    status = run.status()
    assert (status.state, status.attempt) == ("done", 1), status.reason
    assert bits(run) == bits(together)
