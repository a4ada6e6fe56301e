"""Memory that runs out is met with smaller parts and said; what cannot fit is refused before anything starts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parallel_updates import run_out_above
from small_corpus import PIECES, configuration, small_corpus
from test_execute import Notes, StopAt, bits, made
from torch import Tensor

from ablations.checks import check_memory
from ablations.cluster import Resources
from ablations.room import Room
from repro.accounting.capacity import host_memory
from repro.accounting.memory import memory_bytes
from repro.accounting.peaks import gpu_memory
from repro.config import RunConfig, TrainConfig, TransformerConfig
from repro.data.batches import collate
from repro.data.prepared import Prepared
from repro.decoding import translate
from repro.decoding.beam import BeamSearch, Hypothesis
from repro.errors import CheckError, UsageError
from repro.models.build import build_model
from repro.runs.execute import execute
from repro.shortage import is_shortage
from repro.training.evaluation import perplexity
from repro.training.trainer import Trainer

SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


def without_dropout(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))


# Updates


def test_torchs_own_errors_are_known() -> None:
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_shortage(real.value)
    assert is_shortage(SHORT)
    assert not is_shortage(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize("error", [SHORT, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")])
def test_a_batch_that_does_not_fit_is_computed_in_halves_with_the_same_gradient(
    corpus: Prepared, error: Exception
) -> None:
    batch = collate(corpus.encoded("train"), np.arange(40))
    assert batch.src.numel() > 4 * 120
    config = without_dropout(configuration(corpus, batch_tokens=100_000))
    whole, halved = (Trainer(config, PIECES, CPU) for _ in range(2))
    expected = whole.update(batch)
    run_out_above(halved, 120, error)
    update = halved.update(batch)
    assert update.applied
    assert update.target_tokens == expected.target_tokens
    assert update.loss == pytest.approx(expected.loss, rel=1e-6)
    assert halved.cut_smaller
    assert halved.micro_batch_tokens <= 240
    for name, parameter in halved.model.named_parameters():
        theirs = dict(whole.model.named_parameters())[name].grad
        torch.testing.assert_close(parameter.grad, theirs, rtol=1e-4, atol=1e-7)
    assert halved.counters.flops == whole.counters.flops
    assert halved.counters.padded_flops < whole.counters.padded_flops, "smaller parts have less padding"


def test_a_single_sentence_that_does_not_fit_is_told_in_one_line_with_what_to_do(corpus: Prepared) -> None:
    trainer = Trainer(configuration(corpus, batch_tokens=100_000), PIECES, CPU)
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    run_out_above(trainer, 0, SHORT)
    with pytest.raises(CheckError) as told:
        trainer.update(collate(corpus.encoded("train"), np.arange(8)))
    for part in ("variant base", "transformer", "M parameters", "single sentence", "GB", "data.max_pieces"):
        assert part in str(told.value)
    assert "\n" not in str(told.value)
    assert trainer.counters.updates == 0
    assert all(torch.equal(weight, before[name]) for name, weight in trainer.weights().items())


def test_another_runtime_error_is_not_held_for_a_shortage(corpus: Prepared) -> None:
    trainer = Trainer(configuration(corpus), PIECES, CPU)
    run_out_above(trainer, 0, RuntimeError("shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="shapes"):
        trainer.update(collate(corpus.encoded("train"), np.arange(8)))


# Runs


@pytest.fixture
def small_device(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Until undone, updates of more than 120 target positions run out of memory."""
    backward = Trainer._backward

    def limited(self: Trainer, micro: Any, tokens: int) -> tuple[float, float]:
        if micro.tgt_out.numel() > 120:
            raise SHORT
        return backward(self, micro, tokens)

    monkeypatch.setattr(Trainer, "_backward", limited)
    return monkeypatch


def test_a_halved_run_says_so_and_goes_on_halved_after_a_resume(
    corpus: Prepared, tmp_path: Path, small_device: pytest.MonkeyPatch
) -> None:
    config, notes = configuration(corpus), Notes()
    undisturbed, stopped = made(tmp_path / "a", corpus, config), made(tmp_path / "b", corpus, config)
    assert execute(undisturbed, observer=notes).state == "done"
    assert execute(stopped, stop=StopAt(7)).state == "stopped"
    small_device.undo()  # the device has room again, but the run's masks follow from its parts
    assert execute(stopped).state == "done"
    assert bits(stopped) == bits(undisturbed)
    result = undisturbed.result()
    assert result is not None
    used = result["micro_batch_tokens"]
    assert 0 < used <= 120
    assert undisturbed.status().micro_batch_tokens == used
    told = [note for note in notes.notes if note.startswith("out of memory")]
    assert told == [f"out of memory: batches of 200 positions are now computed in parts of {used}"]
    assert {line.metrics.get("train/micro_batch_tokens", used) for line in undisturbed.metrics()} == {used}


def test_a_run_that_cannot_fit_fails_and_is_not_a_matter_of_luck(
    corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise SHORT

    monkeypatch.setattr(Trainer, "_backward", never)
    status = execute(made(tmp_path, corpus, configuration(corpus)))
    assert status.state == "failed"
    assert "a micro-batch of a single sentence" in status.reason


def test_size_and_time_of_a_checkpoint_are_told(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus, configuration(corpus, budget=3))
    status = execute(run)
    (newest,) = run.checkpoints.glob("step-00000003")
    size = sum(file.stat().st_size for file in newest.iterdir())
    result = run.result()
    assert result is not None
    assert status.checkpoint_bytes == result["checkpoint"]["bytes"] == size
    assert 0.0 < status.checkpoint_seconds == result["checkpoint"]["seconds"] <= result["seconds"]["checkpoint"]


# Decoding


def test_decoding_in_smaller_batches_gives_the_same_lines(corpus: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    config = configuration(corpus)
    model = build_model(config.model, PIECES, 1, CPU).eval()
    lines, vocabulary = corpus.raw("test", "src"), corpus.vocabulary()
    expected = translate.translate_lines(model, vocabulary, lines, config.decode)
    search, sizes = BeamSearch.search, []

    def limited(self: BeamSearch, src: Tensor) -> list[Hypothesis]:
        if len(src) > 3:
            raise SHORT
        sizes.append(len(src))
        return search(self, src)

    monkeypatch.setattr(BeamSearch, "search", limited)
    found = translate.translate_lines(model, vocabulary, lines, config.decode)
    assert found.lines == expected.lines
    assert sum(sizes) == 16
    assert found.batch_tokens < expected.batch_tokens == config.decode.batch_tokens

    monkeypatch.setattr(BeamSearch, "search", lambda *_: (_ for _ in ()).throw(SHORT))
    with pytest.raises(CheckError, match="a single sentence"):
        translate.translate_lines(model, vocabulary, lines, config.decode)


def test_perplexity_in_smaller_batches_is_the_same(corpus: Prepared) -> None:
    config = configuration(corpus)
    model, small = (build_model(config.model, PIECES, 1, CPU) for _ in range(2))
    forward, notes = small.forward, []

    def limited(src: Tensor, src_mask: Tensor, tgt_in: Tensor) -> Tensor:
        if len(src) > 2:
            raise SHORT
        return forward(src, src_mask, tgt_in)

    small.forward = limited  # type: ignore[method-assign]
    found = perplexity(small, corpus, "valid", CPU, notes)
    assert found == pytest.approx(perplexity(model, corpus, "valid", CPU))
    assert [note.startswith("out of memory: perplexity of valid") for note in notes] == [True]


# Before the start


def test_a_run_that_takes_too_much_is_refused_with_what_would_fit(corpus: Prepared) -> None:
    config = dataclasses.replace(configuration(corpus, batch_tokens=8192), variant="A.h1")
    room = Room(bytes=0, kind="cpu", where="this machine's 1.0 GB for 4 runs at once")
    whole, quarter = room.needed(config), room.needed(config, 2048)
    assert quarter < whole
    check_memory([config], dataclasses.replace(room, bytes=whole), corpus)
    with pytest.raises(CheckError) as told:
        check_memory([config], dataclasses.replace(room, bytes=quarter), corpus)
    for part in ("variant A.h1", f"about {whole / 2**30:.1f} GB", "1.0 GB for 4 runs at once", "=2048"):
        assert part in str(told.value)
    with pytest.raises(CheckError, match="a smaller model"):
        check_memory([config], dataclasses.replace(room, bytes=1000), corpus)


def test_the_command_refuses_with_exit_code_3_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablations.cli import main

    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("ablations.room.host_memory", lambda: 1 << 29)
    command = ["train", "--scale", "smoke", "--out", str(tmp_path / "run"), "--set", "train.batch_tokens=50000"]
    monkeypatch.setattr("sys.argv", ["ablate", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert not (tmp_path / "run").exists()


def test_several_processes_need_less_each_and_more_on_one_machine(corpus: Prepared) -> None:
    config = configuration(corpus, batch_tokens=8192)
    one, two = (Room(bytes=0, kind="cuda", where="", processes=n).needed(config) for n in (1, 2))
    assert two < one
    host_one, host_two = (Room(bytes=0, kind="cpu", where="", processes=n).needed(config) for n in (1, 2))
    assert host_one < host_two < 2 * host_one


def test_the_room_of_a_sweep_is_shared_by_the_runs_at_once() -> None:
    for cpus, at_once, runs, expected in ((4, None, 20, 4), (4, 2, 20, 2), (4, None, 3, 3)):
        resources = Resources(cpus=cpus, at_once=at_once)
        room = Room.of_sweep(resources, wants_gpu=False, runs=runs)
        assert room is not None
        assert room.bytes == host_memory() // expected
    two_each = Room.of_sweep(Resources(cpus=4, processes_per_run=2), wants_gpu=False, runs=20)
    assert two_each is not None
    assert (two_each.bytes, two_each.processes) == (host_memory() // 2, 2)
    assert Room.of_sweep(Resources(address="10.0.0.1:6379"), wants_gpu=True, runs=20) is None


def test_processes_of_a_run_are_its_gpus() -> None:
    assert Resources().processes == Resources(gpus_per_run=0.5).processes == 1
    assert Resources(gpus_per_run=2.0).processes == 2
    assert Resources(processes_per_run=3).processes == 3
    with pytest.raises(UsageError, match="whole ones"):
        Resources(gpus_per_run=1.5)
    with pytest.raises(UsageError, match="one process for each"):
        Resources(gpus_per_run=2.0, processes_per_run=3)


def test_memory_of_this_machine_is_what_its_control_groups_leave(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroup / "job" / "step").mkdir(parents=True)
    (cgroup / "memory" / "job").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:       1000 kB\nMemFree:         10 kB\n")
    (proc / "self" / "cgroup").write_text("0::/job/step\n")
    assert host_memory(proc=proc, cgroup=cgroup) == 1000 * 1024
    (cgroup / "job" / "step" / "memory.max").write_text("max\n")
    (cgroup / "job" / "memory.max").write_text("300000\n")
    assert host_memory(proc=proc, cgroup=cgroup) == 300_000, "a limit further up counts, too"
    (proc / "self" / "cgroup").write_text("5:memory:/job\n1:cpu:/\n")
    (cgroup / "memory" / "job" / "memory.limit_in_bytes").write_text("200000\n")
    assert host_memory(proc=proc, cgroup=cgroup) == 200_000


def test_memory_of_known_gpus() -> None:
    assert gpu_memory("A100") == gpu_memory("NVIDIA A100-SXM4-40GB") == 40 * 2**30
    assert gpu_memory("NVIDIA A100-SXM4-80GB") == gpu_memory("NVIDIA H100 80GB HBM3") == 80 * 2**30
    assert gpu_memory("GH200 480GB") == 96 * 2**30, "its other memory is not the GPU's"
    assert gpu_memory("P100") == 12 * 2**30, "16 GB were sold, too"
    assert gpu_memory("H100") is None


def test_the_estimate_follows_the_device() -> None:
    config = TransformerConfig()
    cpu, gpu = (memory_bytes(config, 4000, TrainConfig(batch_tokens=4000), on=on) for on in ("cpu", "cuda"))
    assert cpu > memory_bytes(config, 4000, TrainConfig(batch_tokens=4000, precision="bf16"), on="cpu")
    assert gpu == memory_bytes(config, 4000, TrainConfig(batch_tokens=4000, precision="bf16"))
