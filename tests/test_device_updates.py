"""Updates that a GPU makes while the host goes on, run here on a CPU with every call that only CUDA has replaced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import configuration, small_corpus
from torch.utils._python_dispatch import TorchDispatchMode
from watching import Notes, StopAt

from repro.config import RunConfig
from repro.config.baselines import LstmConfig
from repro.data.batches import collate
from repro.data.pieces import Batch
from repro.data.prepared import Prepared
from repro.errors import CheckError
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from repro.runs.outcome import TIMES
from repro.training import cuda
from repro.training.parallel import Group
from repro.training.trainer import DivergenceError, Trainer, Update

CPU = torch.device("cpu")
PIECES = 200
SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


class Recorder:
    """Replays by doing the work again, as a CUDA graph does: on the same memory, with draws from the present seed."""

    recorded = 0
    replayed = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def record(self, work: Callable[[], None], generator: torch.Generator) -> Callable[[], None]:
        Recorder.recorded += 1

        def replay() -> None:
            Recorder.replayed += 1
            work()

        assert generator.device == self.device
        return replay


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A device that is computed for as a GPU is."""
    monkeypatch.setattr(cuda, "runs_ahead", lambda device: True)
    monkeypatch.setattr(cuda, "has_flash", lambda device, *, bf16: True)
    monkeypatch.setattr(cuda, "recorder", Recorder)
    monkeypatch.setattr(Recorder, "recorded", 0)
    monkeypatch.setattr(Recorder, "replayed", 0)
    return CPU


def without_dropout(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, model=dataclasses.replace(config.model, dropout=0.0))


def batches(corpus: Prepared, count: int = 6) -> list[Batch]:
    encoded = corpus.encoded("train")
    order = np.argsort(encoded.tgt_lengths, kind="stable")
    return [collate(encoded, order[100 + 20 * part : 120 + 20 * part]) for part in range(count)]


def same(one: list[Update], other: list[Update]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a.target_tokens, a.applied) == (b.target_tokens, b.applied)
        assert (a.loss, a.nll) == pytest.approx((b.loss, b.nll), rel=1e-5)
        assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-3)  # Adam makes much of what rounding leaves
        assert a.learning_rate == b.learning_rate


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"micro_batch_tokens": 100}], ids=str)
def test_updates_are_those_of_the_cpu(corpus: Prepared, device: torch.device, options: dict[str, Any]) -> None:
    config = without_dropout(configuration(corpus, batch_tokens=2000, **options))
    ahead = Trainer(config, PIECES, device)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "runs_ahead", lambda device: False)
        plain = Trainer(config, PIECES, CPU)
    given = batches(corpus) * 2
    same([ahead.update(given[0])], [plain.update(given[0])])
    gradients = {name: weight.grad for name, weight in plain.model.named_parameters()}
    for name, weight in ahead.model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-6, rtol=1e-4)
    same([ahead.update(batch) for batch in given[1:]], [plain.update(batch) for batch in given[1:]])
    mine, theirs = (dataclasses.replace(t.counters, seconds=ahead.counters.seconds) for t in (ahead, plain))
    assert mine == theirs
    assert 0 < Recorder.recorded < Recorder.replayed


def test_values_read_later_are_those_read_at_once(corpus: Prepared, device: torch.device) -> None:
    later, at_once = (Trainer(configuration(corpus, batch_tokens=2000), PIECES, device) for _ in range(2))
    for batch in batches(corpus):
        later.launch(batch)
    assert (later.behind, later.counters.step) == (6, 6)
    assert later.settle() == [at_once.update(batch) for batch in batches(corpus)]
    assert (later.behind, later.settle()) == (0, [])
    assert all(torch.equal(weight, at_once.weights()[name]) for name, weight in later.weights().items())


def test_a_replayed_pass_draws_the_masks_that_the_pass_itself_would_draw(
    corpus: Prepared, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaying = Trainer(configuration(corpus, batch_tokens=2000), PIECES, device)
    computing = Trainer(configuration(corpus, batch_tokens=2000), PIECES, device)
    computing.record(False)
    given = batches(corpus, 2) * 3
    assert [replaying.update(batch) for batch in given] == [computing.update(batch) for batch in given]
    assert Recorder.replayed > 0


def test_nothing_that_works_on_the_device_asks_it_for_a_value(
    corpus: Prepared, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}
    asked: list[str] = []
    worked = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal worked
            worked += 1
            if func.overloadpacket.__name__ in asking:
                asked.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    def watched(work: Callable[..., None]) -> Callable[..., None]:
        def under_watch(*given: Any) -> None:
            with Watch():
                work(*given)

        return under_watch

    trainer = Trainer(configuration(corpus, batch_tokens=2000, clip_norm=1.0), PIECES, device)
    given = batches(corpus, 3)
    trainer.update(given[0])
    for name in ("_pass", "step"):  # what is left is packing, on the host
        monkeypatch.setattr(trainer._ahead, name, watched(getattr(trainer._ahead, name)))
    for batch in given:
        trainer.launch(batch)
    assert worked > 1000
    assert asked == []
    with Watch():
        float(torch.ones(()))
    assert asked == ["_local_scalar_dense"], "the watch sees it"
    assert len(trainer.settle()) == 3


def test_an_update_that_is_not_finite_is_left_out_and_the_schedule_counts_applied_ones_only(
    corpus: Prepared, device: torch.device
) -> None:
    trainer, spared = (Trainer(configuration(corpus, batch_tokens=2000), PIECES, device) for _ in range(2))
    first, second, third = batches(corpus, 3)
    trainer.launch(first)
    weights = trainer.weights()
    kept = {name: weight.clone() for name, weight in weights.items()}
    moments = {name: value.clone() for name, value in trainer.optimizer_tensors().items()}
    poisoned = next(iter(weights.values()))
    whole = poisoned.clone()
    poisoned[:, 0] = math.nan
    trainer.launch(second)
    poisoned.copy_(whole)
    assert trainer.counters.step == 2, "nobody knows yet"
    assert all(torch.equal(weight, kept[name]) for name, weight in weights.items())
    assert all(torch.equal(value, moments[name]) for name, value in trainer.optimizer_tensors().items())
    trainer.launch(third)
    updates = trainer.settle()
    assert [update.applied for update in updates] == [True, False, True]
    assert (trainer.counters.step, trainer.counters.skipped, trainer.counters.updates) == (2, 1, 3)
    assert updates[2].learning_rate == pytest.approx(2 * updates[0].learning_rate)
    # The third is what it would be had the second batch been left out, at the learning rate of the second step.
    spared.update(first)
    spared.counters.skipped += 1  # the masks follow from the number of updates tried
    spared.update(third)
    assert all(torch.equal(weight, spared.weights()[name]) for name, weight in weights.items())


def test_too_many_updates_that_are_not_finite_end_the_run_when_they_are_read(
    corpus: Prepared, device: torch.device
) -> None:
    trainer = Trainer(configuration(corpus, batch_tokens=2000, max_skipped_steps=1), PIECES, device)
    next(iter(trainer.weights().values())).fill_(math.nan)
    for batch in batches(corpus, 3):
        trainer.launch(batch)
    with pytest.raises(DivergenceError, match="2 updates had a non-finite loss"):
        trainer.settle()


def test_short_memory_takes_the_recordings_first_and_then_halves_the_parts(
    corpus: Prepared, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = without_dropout(configuration(corpus, batch_tokens=2000))
    trainer, roomy = (Trainer(config, PIECES, device) for _ in range(2))
    batch = batches(corpus, 1)[0]
    assert "CUDA graphs of the sizes that come again" in trainer.way
    for one in (trainer, roomy):
        one.update(batch)
        one.update(batch)
    assert "1 CUDA graph of them recorded in" in trainer.way
    size, tries = trainer.micro_batch_tokens, 0

    def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise SHORT
        return numbers

    monkeypatch.setattr(cuda, "upload", upload)
    assert trainer.update(batch).applied
    assert "no CUDA graphs" in trainer.way
    assert trainer.micro_batch_tokens == size, "the recordings' memory was enough"
    tries = 0
    update = trainer.update(batch)
    monkeypatch.setattr(cuda, "upload", lambda numbers, device: numbers)
    assert trainer.micro_batch_tokens < size
    assert "no CUDA graphs" not in trainer.way, "smaller parts leave room for them"
    expected = [roomy.update(batch) for _ in range(2)][1]
    assert update.loss == pytest.approx(expected.loss, rel=1e-5)


def test_a_sentence_longer_than_the_learned_positions_is_told_where_its_size_was_recorded_before(
    corpus: Prepared, device: torch.device
) -> None:
    config = configuration(corpus, batch_tokens=2000)
    model = dataclasses.replace(config.model, positions="learned", max_positions=50)
    trainer = Trainer(dataclasses.replace(config, model=model), PIECES, device)

    def batch(longest: int) -> Batch:
        pieces = torch.full((2, longest), 5)
        return Batch(pieces, pieces, pieces, torch.tensor([longest, longest]), torch.tensor([longest, longest]))

    for _ in range(3):
        trainer.update(batch(40))
    assert Recorder.replayed > 0
    with pytest.raises(CheckError, match="a sentence of 52 pieces, but learned positions were made for 50"):
        trainer.update(batch(52))


def test_where_nothing_can_be_recorded_passes_are_computed_and_the_reason_is_told(
    corpus: Prepared, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = Trainer(configuration(corpus, batch_tokens=2000), PIECES, device)
    given = batches(corpus, 2) * 3
    expected = [recording.update(batch) for batch in given]

    def refuse(self: Recorder, work: Callable[[], None], generator: torch.Generator) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(Recorder, "record", refuse)
    trainer = Trainer(configuration(corpus, batch_tokens=2000), PIECES, device)
    assert [trainer.update(batch) for batch in given] == expected
    assert "no CUDA graphs (CUDA error: operation not permitted" in trainer.way


def outcome(run: RunDirectory) -> tuple[Any, ...]:
    """All that a run leaves behind, but for times and speeds."""
    clocked = {"train/target_tokens_per_second", "time/train_seconds"}
    result = run.result()
    assert result is not None
    return (
        {key: value for key, value in result.items() if key not in TIMES},
        [(line.step, {k: v for k, v in line.metrics.items() if k not in clocked}) for line in run.metrics()],
        (run.checkpoints / "final.safetensors").read_bytes(),
    )


def test_a_run_logs_and_evaluates_at_the_steps_of_a_run_on_a_cpu_and_resumes_with_equal_bits(
    corpus: Prepared, device: torch.device, tmp_path: Path
) -> None:
    config = configuration(corpus, log_every=5, evaluate_every=12)
    run = RunDirectory.create(tmp_path / "whole", config, corpus.directory)
    notes = Notes()
    assert execute(run, observer=notes).state == "done"
    assert "flash attention over packed sentences" in notes.notes[0]
    cut = RunDirectory.create(tmp_path / "cut", config, corpus.directory)
    for steps in (3, 8):
        assert execute(cut, stop=StopAt(steps)).state == "stopped"
    assert execute(cut).state == "done"
    assert outcome(cut) == outcome(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "runs_ahead", lambda device: False)
        plain = RunDirectory.create(tmp_path / "plain", config, corpus.directory)
        assert execute(plain).state == "done"
    told, wanted = ([(line.step, sorted(line.metrics)) for line in r.metrics()] for r in (run, plain))
    assert told == wanted


def test_other_families_are_padded_and_read_later_too(corpus: Prepared, device: torch.device) -> None:
    config = dataclasses.replace(
        configuration(corpus, batch_tokens=2000), model=LstmConfig(n_layers=1, d_embedding=8, d_hidden=8)
    )
    ahead = Trainer(config, PIECES, device)
    assert "padded" in ahead.way
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "runs_ahead", lambda device: False)
        plain = Trainer(config, PIECES, CPU)
    given = batches(corpus, 3)
    for batch in given:
        ahead.launch(batch)
    same(ahead.settle(), [plain.update(batch) for batch in given])


def test_in_half_precision_an_update_is_near_that_in_single_precision(corpus: Prepared, device: torch.device) -> None:
    half, single = (
        Trainer(without_dropout(configuration(corpus, batch_tokens=2000, precision=precision)), PIECES, device)
        for precision in ("bf16", "fp32")
    )
    assert (half.precision, single.precision) == ("bf16", "fp32")
    for batch in batches(corpus, 3):
        one, other = half.update(batch), single.update(batch)
        assert one.loss == pytest.approx(other.loss, rel=5e-3)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=0.1)
    assert {weight.dtype for weight in half.weights().values()} == {torch.float32}
    assert {value.dtype for value in half.optimizer_tensors().values()} == {torch.float32}


class Alone(Group):
    """One of two processes whose other half is not there: what it sends comes back."""

    def sum(self, *values: float) -> list[float]:
        return list(values)

    def sum_tensor(self, tensor: torch.Tensor) -> None:
        """Nothing is added."""


def test_of_several_processes_each_computes_its_share_the_same_way(corpus: Prepared, device: torch.device) -> None:
    config = without_dropout(configuration(corpus, batch_tokens=2000, micro_batch_tokens=120))
    batch = batches(corpus, 1)[0]
    whole = Trainer(config, PIECES, device)
    halves = [Trainer(config, PIECES, device, Alone(rank, 2)) for rank in range(2)]
    updates = [trainer.update(batch) for trainer in (whole, *halves)]
    assert [trainer.behind for trainer in halves] == [0, 0]
    assert updates[0].loss == pytest.approx(updates[1].loss + updates[2].loss, rel=1e-6)
    theirs = [dict(trainer.model.named_parameters()) for trainer in halves]
    for name, weight in whole.model.named_parameters():
        assert weight.grad is not None
        first, second = (parts[name].grad for parts in theirs)
        assert first is not None
        assert second is not None
        torch.testing.assert_close(weight.grad, first + second, atol=1e-6, rtol=1e-4)
