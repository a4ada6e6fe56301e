"""Exact resume of every family: stopped or killed anywhere, a run ends with the bits of one that was left alone."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import small_corpus
import torch
from baseline_toys import FAMILIES
from test_execute import StopAt, bits, made

from repro.config import RunConfig, TransformerConfig
from repro.config.baselines import ConvS2SConfig
from repro.data.prepared import Prepared
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from repro.training.checkpoint import load_newest

STEPS = 24
every_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus.small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


def configuration(corpus: Prepared, family: str) -> RunConfig:
    """Dropout is on, every update has several micro-batches, and metrics and evaluations fall between the stops."""
    plain = small_corpus.configuration(corpus, budget=STEPS, micro_batch_tokens=90, clip_norm=1.0, log_every=3)
    model = dataclasses.replace(FAMILIES[family], dropout=0.2)
    if isinstance(model, TransformerConfig):
        model = dataclasses.replace(model, attention_dropout=0.1, activation_dropout=0.1)
    elif isinstance(model, ConvS2SConfig):
        model = dataclasses.replace(model, max_positions=200)  # the text's longest sentences, and what grows of them
    return dataclasses.replace(plain, model=model)


def everything(run: RunDirectory) -> dict[str, Any]:
    """All that a run leaves behind but times: result, metrics, hypotheses, weights, and the state it would go on from:
    optimizer, schedule, data position, counters and the window of losses."""
    newest = load_newest(run.checkpoints, [])
    assert newest is not None
    state = newest.state | {"counters": {k: v for k, v in newest.state["counters"].items() if k != "seconds"}}
    optimizer = {name: value.numpy().tobytes() for name, value in newest.optimizer.items()}
    return bits(run) | {"step": newest.step, "state": state, "optimizer": optimizer}


@pytest.fixture(scope="module")
def undisturbed(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a run of each family that was left alone leaves behind."""
    root, found = tmp_path_factory.mktemp("undisturbed"), {}
    for family in FAMILIES:
        run = made(root, corpus, configuration(corpus, family))
        status = execute(run)
        assert (status.state, status.step) == ("done", STEPS), status.reason
        found[family] = everything(run)
    return found


def same(left: dict[str, Any], right: dict[str, Any], told: str) -> None:
    """Every part of both is equal; an unequal one is named."""
    assert left.keys() == right.keys()
    assert [part for part in left if left[part] != right[part]] == [], told


@every_family
def test_a_run_stopped_after_random_steps_and_resumed_has_the_bits_of_one_that_was_not(
    corpus: Prepared, undisturbed: dict[str, dict[str, Any]], tmp_path: Path, family: str
) -> None:
    run = made(tmp_path, corpus, configuration(corpus, family))
    stops = sorted(random.sample(range(1, STEPS), 3))
    for before, step in zip([0, *stops], stops, strict=False):
        status = execute(run, stop=StopAt(step - before))
        assert (status.state, status.step) == ("stopped", step), status.reason
        # What a new process would find in torch's own generator is of no account.
        torch.manual_seed(random.randrange(2**31))
    status = execute(run)
    assert (status.state, status.attempt) == ("done", 4), status.reason
    same(everything(run), undisturbed[family], f"{family} stopped after steps {stops}")


@every_family
def test_counters_of_a_run_that_was_resumed_are_those_of_its_batches(
    corpus: Prepared, undisturbed: dict[str, dict[str, Any]], family: str
) -> None:
    """Data, order and tokens are the same for every family; only the model's own counts differ."""
    counters, other = (undisturbed[name]["state"]["counters"] for name in (family, "transformer"))
    for name in ("step", "epoch", "next_batch", "source_tokens", "target_tokens"):
        assert counters[name] == other[name]
    assert counters["flops"] > 0
    assert (counters["flops"] == other["flops"]) is (family == "transformer")


CHILD = """
import itertools, sys, time
from pathlib import Path
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute

number = itertools.count(1)

def stop():
    print("a step", flush=True)
    if next(number) == int(sys.argv[2]):
        time.sleep(600)

execute(RunDirectory(Path(sys.argv[1])), stop=stop)
"""
"""Tells of each step, and waits after the last one: however late it is killed, it is not done."""


@pytest.mark.slow
@every_family
def test_a_run_killed_at_a_random_step_and_resumed_has_the_bits_of_one_that_was_not(
    corpus: Prepared, undisturbed: dict[str, dict[str, Any]], tmp_path: Path, family: str
) -> None:
    run, steps = made(tmp_path, corpus, configuration(corpus, family)), random.randrange(1, STEPS)
    command = [sys.executable, "-c", CHILD, str(run.path), str(STEPS)]
    with subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(steps)]
        process.send_signal(signal.SIGKILL)
    assert told[-1] == b"a step\n"
    assert run.result() is None
    assert execute(run).state == "done"
    same(everything(run), undisturbed[family], f"{family} killed after step {steps}")
