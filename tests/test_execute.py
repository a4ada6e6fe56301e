"""One run from claim to result: equal bits whatever happens on the way, and every end told in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_corpus import configuration, small_corpus
from small_disk import small_disk
from watching import Notes, StopAt

from repro.config import RunConfig
from repro.data.batches import collate
from repro.data.prepare import prepare
from repro.data.prepared import Prepared
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.events import Progress
from repro.runs.execute import execute
from repro.runs.outcome import TIMES
from repro.training.trainer import Trainer
from repro.training.weights import average, load_weights

CLOCKED = {"train/target_tokens_per_second", "time/train_seconds"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


def made(root: Path, corpus: Prepared, config: RunConfig) -> RunDirectory:
    return RunDirectory.create(root, config, corpus.directory)


def bits(run: RunDirectory) -> dict[str, Any]:
    """All that a run leaves behind, but for times and speeds."""
    result = run.result()
    assert result is not None
    return {
        "result": {key: value for key, value in result.items() if key not in TIMES},
        "metrics": [
            (line.step, {name: value for name, value in line.metrics.items() if name not in CLOCKED})
            for line in run.metrics()
        ],
        "hypotheses": [run.hypotheses("valid"), run.hypotheses("test")],
        "weights": (run.checkpoints / "final.safetensors").read_bytes(),
    }


@pytest.fixture(scope="module")
def undisturbed(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    run = made(tmp_path_factory.mktemp("undisturbed"), corpus, configuration(corpus))
    status = execute(run)
    assert (status.state, status.step) == ("done", 24), status.reason
    return run


def test_two_fresh_runs_of_one_seed_have_equal_bits(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    again = made(tmp_path, corpus, configuration(corpus))
    execute(again)
    assert bits(again) == bits(undisturbed)


def test_an_owner_that_was_held_dead_and_comes_back_changes_nothing_of_the_new_owners(
    corpus: Prepared, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus, average_checkpoints=2))
    rivals: list[attempts.Attempt] = []
    found: dict[Path, bytes] = {}

    def content() -> dict[Path, bytes]:
        files = [path for path in run.path.rglob("*") if path.is_file() and path.parent.name != "attempts"]
        return {path: path.read_bytes() for path in files}

    class Watch(Notes):
        def progress(self, event: Progress) -> None:
            super().progress(event)
            if event.step == 8 and event.note and not rivals:  # its evaluation
                latest = attempts.newest(run)
                assert latest is not None
                attempts.bury(latest, "its machine was suspended")
                rival = attempts.claim(run)
                assert rival is not None
                rivals.append(rival)
                found.update(content())

    assert execute(run, observer=Watch()).attempt == 2
    assert content() == found
    assert [(claim.number, claim.ended) for claim in attempts.claims(run)][1:] == [(2, None)]
    rivals[0].end("stopped")
    assert execute(run).state == "done"
    plain = made(tmp_path / "plain", corpus, configuration(corpus, average_checkpoints=2))
    execute(plain)
    assert bits(run) == bits(plain)


def test_another_seed_gives_another_model(corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path) -> None:
    other = made(tmp_path, corpus, dataclasses.replace(configuration(corpus), seed=2))
    execute(other)
    assert bits(other)["weights"] != bits(undisturbed)["weights"]


def test_a_run_stopped_anywhere_and_resumed_has_the_bits_of_one_that_was_not(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus))
    first = random.randrange(1, 12)
    assert execute(run, stop=StopAt(first)).state == "stopped"
    assert execute(run, stop=StopAt(random.randrange(1, 12))).state == "stopped"
    status = execute(run)
    assert (status.state, status.attempt) == ("done", 3), f"stopped first after {first}: {status.reason}"
    assert bits(run) == bits(undisturbed)


def test_a_run_killed_at_a_random_time_and_resumed_has_the_same_bits(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus))
    code = "import sys; from pathlib import Path; from repro.runs.directory import RunDirectory; "
    code += "from repro.runs.execute import execute; execute(RunDirectory(Path(sys.argv[1])))"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(run.path)], env=environment)
        while run.status().state == "planned" or (run.status().state == "stopped" and process.poll() is None):
            time.sleep(0.05)
        while process.poll() is None and run.status().step == 0:
            time.sleep(0.01)
        time.sleep(random.random() * 0.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert execute(run).state == "done"
    assert bits(run) == bits(undisturbed)


def test_a_run_whose_process_died_starts_over_where_that_is_asked_for_and_counts_nothing_twice(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus))
    assert execute(run, stop=StopAt(6), after_death="restart").state == "stopped"
    notes = Notes()
    execute(run, observer=notes, stop=StopAt(6), after_death="restart")
    assert any("goes on from step 6" in note for note in notes.notes)  # it was asked to stop, it did not die
    die(run)
    notes = Notes()
    assert execute(run, observer=notes, after_death="restart").state == "done"
    assert not any("goes on" in note for note in notes.notes)
    assert bits(run) == bits(undisturbed)
    assert len({path.name for path in run.path.iterdir() if path.name.startswith(".")}) == 0


class At:
    """Does something once a run has made so many steps; never asks it to stop."""

    def __init__(self, steps: int, act: Callable[[], None]) -> None:
        self.left, self.act = steps, act

    def __call__(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.act()
        return False


def test_a_disk_that_fills_while_a_run_trains_ends_it_in_one_line_and_costs_no_bit(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch, kibibytes=8192) as disk:
        run = made(disk.path, corpus, configuration(corpus))
        status = execute(run, stop=At(random.randrange(1, 20), disk.fill))
        disk.free()
        assert status.state == "failed"
        assert "the disk is full (free some space and run the same command again)" in status.reason
        assert execute(run).state == "done"
        assert bits(run) == bits(undisturbed)


def test_a_disk_that_lets_nothing_be_written_for_a_while_costs_no_bit(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch, kibibytes=8192) as disk:
        run = made(disk.path, corpus, configuration(corpus))
        with pytest.raises(OSError, match="Read-only file system"):  # not even the attempt's end can be written
            execute(run, stop=At(random.randrange(1, 20), disk.forbid))
        disk.allow()
        die(run)
        assert execute(run).state == "done"
        assert bits(run) == bits(undisturbed)


def die(run: RunDirectory) -> None:
    """Let the newest attempt's owner be a process that is no more."""
    latest = attempts.newest(run)
    assert latest is not None
    document = json.loads(latest.path.read_text())
    latest.path.write_text(json.dumps(document | {"ended": None, "owner": document["owner"] | {"start": "1"}}))


@pytest.mark.parametrize(("kind", "passes"), [(OSError, True), (MemoryError, True), (KeyError, False)])
def test_a_failure_says_whether_another_try_may_fare_better(
    kind: type[Exception], passes: bool, corpus: Prepared, tmp_path: Path
) -> None:
    def broken() -> bool:
        raise kind("broken")

    run = made(tmp_path, corpus, configuration(corpus))
    assert execute(run, stop=broken).state == "failed"
    assert [claim.may_pass for claim in attempts.claims(run)] == [passes]


def test_a_finished_run_is_not_done_again(undisturbed: RunDirectory) -> None:
    before = {path: path.stat().st_mtime_ns for path in undisturbed.path.rglob("*") if path.is_file()}
    assert execute(undisturbed).state == "done"
    assert {path: path.stat().st_mtime_ns for path in undisturbed.path.rglob("*") if path.is_file()} == before


def test_bleu_is_what_the_sacrebleu_command_says_of_the_kept_hypotheses(
    corpus: Prepared, undisturbed: RunDirectory
) -> None:
    result = undisturbed.result()
    assert result is not None
    command = [sys.executable, "-m", "sacrebleu", str(corpus.raw_path("test", "tgt"))]
    command += ["-i", str(undisturbed.hypotheses_path("test")), "-m", "bleu", "chrf", "-w", "14"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [score["score"] for score in told] == [
        round(result["test"]["bleu"], 14),
        round(result["test"]["chrf"], 14),
    ]


def test_the_digest_of_the_references_is_that_of_the_untouched_file(corpus: Prepared, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("svo", "sov"):
            source = corpus.raw_path("test" if split == "train" else split, "src" if language == "svo" else "tgt")
            # Line ends of another system, and none after the last line.
            (text / f"{split}.{language}").write_bytes(
                source.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n")
            )
    odd = prepare("local:svo-sov", vocabulary_size=100, data_root=tmp_path / "data", source=text, max_pieces=64)
    config = configuration(odd, budget=1)
    run = made(tmp_path, odd, dataclasses.replace(config, data=dataclasses.replace(config.data, vocabulary_size=100)))
    assert execute(run).state == "done"
    result = run.result()
    assert result is not None
    for split in ("valid", "test"):
        file = (text / f"{split}.sov").read_bytes()
        assert result[split]["reference_sha256"] == hashlib.sha256(file).hexdigest()


def test_counts_are_those_of_the_batches(corpus: Prepared, undisturbed: RunDirectory) -> None:
    result = undisturbed.result()
    assert result is not None
    encoded = corpus.encoded("train")
    epochs, tokens, steps = 0, 0, 0
    from repro.data.batches import Sampler

    sampler = Sampler(encoded.src_lengths + 1, encoded.tgt_lengths + 1, batch_tokens=200, scale="smoke", seed=1)
    passes = 0.0
    while steps < 24:
        for batch in sampler.epoch(epochs):
            tokens += int(np.sum(encoded.tgt_lengths[batch] + 1))
            steps += 1
            passes += 1 / len(sampler.epoch(epochs))
            if steps == 24:
                break
        epochs += 1
    assert (result["steps"], result["target_tokens"]) == (24, tokens)
    assert result["epochs"] == pytest.approx(passes)
    assert 0.0 < result["padding_share"] < 0.2
    assert result["padded_flops"] > result["train_flops"] == sum(result["flops"].values())


@pytest.mark.parametrize("unit", ["tokens", "flops", "seconds"])
def test_a_budget_in_other_units_ends_the_run_at_the_first_step_that_reaches_it(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path, unit: str
) -> None:
    result = undisturbed.result()
    assert result is not None
    amount = {"tokens": result["target_tokens"] / 2, "flops": result["train_flops"] / 2, "seconds": 0.05}[unit]
    run = made(tmp_path, corpus, configuration(corpus, budget=amount, budget_unit=unit))
    assert execute(run).state == "done"
    short = run.result()
    assert short is not None
    spent = {"tokens": "target_tokens", "flops": "train_flops", "seconds": "train_seconds"}[unit]
    assert amount <= short[spent]
    if unit != "seconds":
        assert short[spent] < amount + result[spent] / 6  # one batch more than needed, at most


def test_whole_passes_over_the_text_are_whole_epochs(corpus: Prepared, tmp_path: Path) -> None:
    # One batch holds the whole text, so every update is one pass.
    run = made(tmp_path, corpus, configuration(corpus, budget=3, batch_tokens=1_000_000, micro_batch_tokens=2000))
    assert execute(run).state == "done"
    result = run.result()
    assert result is not None
    assert result["epochs"] == 3.0
    assert result["target_tokens"] == 3 * int(np.sum(corpus.encoded("train").tgt_lengths + 1))


def test_padding_is_that_of_the_parts_in_which_a_batch_is_computed(corpus: Prepared) -> None:
    encoded = corpus.encoded("train")
    batch = collate(encoded, np.arange(60))
    alone = Trainer(configuration(corpus, micro_batch_tokens=1), 200, torch.device("cpu"))
    alone.update(batch)
    longer = [max(src, tgt) for src, tgt in zip(batch.src_lengths.tolist(), batch.tgt_lengths.tolist(), strict=True)]
    assert len(set(longer)) > 3, "sentences of many lengths"
    assert alone.counters.padding_share == 0.0, "a sentence by itself has no padding"
    assert alone.counters.padded_flops == alone.counters.flops
    whole = Trainer(configuration(corpus, batch_tokens=100_000), 200, torch.device("cpu"))
    whole.update(batch)
    assert whole.counters.flops == alone.counters.flops
    positions = 60 * (int(batch.src_lengths.max()) + int(batch.tgt_lengths.max()))
    tokens = int(batch.src_lengths.sum() + batch.tgt_lengths.sum())
    assert whole.counters.padding_share == pytest.approx(1.0 - tokens / positions)
    assert whole.counters.padded_flops > whole.counters.flops


def test_accumulated_micro_batches_give_the_update_of_the_whole_batch(corpus: Prepared) -> None:
    whole, parts = (configuration(corpus, micro_batch_tokens=size) for size in (None, 40))
    still = dataclasses.replace(whole.model, dropout=0.0)
    trainers = [
        Trainer(dataclasses.replace(config, model=still), 200, torch.device("cpu")) for config in (whole, parts)
    ]
    encoded = corpus.encoded("train")
    # 23 sentences do not divide evenly among micro-batches.
    batch = collate(encoded, np.argsort(encoded.tgt_lengths, kind="stable")[100:123])
    updates = [trainer.update(batch) for trainer in trainers]
    assert updates[0].loss == pytest.approx(updates[1].loss, rel=1e-6)
    gradients = [{name: weight.grad for name, weight in trainer.model.named_parameters()} for trainer in trainers]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-4, atol=1e-7)


def test_a_non_finite_update_is_skipped_and_counted_and_the_schedule_counts_applied_ones_only(
    corpus: Prepared,
) -> None:
    trainer = Trainer(configuration(corpus), 200, torch.device("cpu"))
    encoded = corpus.encoded("train")
    batch = collate(encoded, np.arange(8))
    first = trainer.update(batch)
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    poisoned = next(iter(trainer.weights().values()))
    kept = poisoned.clone()
    poisoned[0, 0] = float("nan")
    skipped = trainer.update(batch)
    poisoned.copy_(kept)
    assert not skipped.applied
    assert (trainer.counters.step, trainer.counters.skipped) == (1, 1)
    assert all(torch.equal(weight, trainer.weights()[name]) for name, weight in before.items())
    second = trainer.update(batch)
    assert second.applied
    assert second.learning_rate == pytest.approx(2 * first.learning_rate)


def test_a_run_without_finite_losses_ends_as_diverged_with_step_and_reason(corpus: Prepared, tmp_path: Path) -> None:
    config = configuration(corpus, learning_rate_factor=1e38, max_skipped_steps=2, evaluate_every=100)
    run = made(tmp_path, corpus, config)
    status = execute(run)
    assert status.state == "diverged"
    assert "non-finite" in status.reason
    assert "step" in status.reason
    assert run.result() is None
    assert execute(run).attempt == 1, "a diverged run is not tried again"


def test_another_corpus_under_the_same_path_is_noticed(corpus: Prepared, tmp_path: Path) -> None:
    config = configuration(corpus)
    other = dataclasses.replace(config, data=dataclasses.replace(config.data, digest="0" * 64))
    run = made(tmp_path, corpus, other)
    status = execute(run)
    assert status.state == "failed"
    assert "the prepared corpus changed" in status.reason


def test_averaging_tests_the_mean_of_the_last_evaluations(
    corpus: Prepared, undisturbed: RunDirectory, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus, average_checkpoints=2))
    assert execute(run, stop=StopAt(18)).state == "stopped"
    assert execute(run).state == "done"
    kept = sorted(run.checkpoints.glob("snapshot-*.safetensors"))
    assert [path.stem for path in kept] == ["snapshot-00000016", "snapshot-00000024"]
    final = load_weights(run.checkpoints / "final.safetensors")
    last, mean = load_weights(undisturbed.checkpoints / "final.safetensors"), average(kept)
    for name, weight in final.items():
        assert torch.equal(weight, mean[name])
        torch.testing.assert_close(weight * 2, load_weights(kept[0])[name] + last[name])


def test_the_best_evaluations_are_those_with_the_least_validation_perplexity(corpus: Prepared, tmp_path: Path) -> None:
    config = configuration(corpus, average_checkpoints=1, average_select="best", warmup_steps=2, evaluate_every=4)
    run = made(tmp_path, corpus, config)
    assert execute(run).state == "done"
    curve = {
        line.step: line.metrics["valid/perplexity"] for line in run.metrics() if "valid/perplexity" in line.metrics
    }
    best = min(curve, key=lambda step: (curve[step], step))
    assert [path.stem for path in run.checkpoints.glob("snapshot-*")] == [f"snapshot-{best:08d}"]


def test_what_happens_is_told_in_words(corpus: Prepared, tmp_path: Path) -> None:
    run, notes = made(tmp_path, corpus, configuration(corpus)), Notes()
    execute(run, stop=StopAt(10), observer=notes)
    execute(run, observer=notes)
    assert any(note.startswith("goes on from step 10") for note in notes.notes)
    assert any("valid perplexity" in note and "BLEU" in note for note in notes.notes)
    assert notes.notes[-1].startswith("done: test BLEU")
