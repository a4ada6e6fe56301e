"""A search over a declared space: what is drawn, what ASHA stops, and that it can be gone on with."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from held_runs import hold, let_go_once_asked
from test_execute import bits, configuration, corpus, made

from ablations import status
from ablations.cli import run as command
from ablations.looks import look
from ablations.search import VERDICT, Sample, scores
from ablations.space import Space, read_space, selection_of
from ablations.study import Data, Study, open_study
from ablations.tracking.records import StudyRecord
from ablations.worker import Order
from repro.data import smoke
from repro.data.prepared import Prepared
from repro.errors import CheckError, UsageError
from repro.files import write_json
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from repro.runs.processes import Process

__all__ = ["corpus"]  # a fixture

SPACE = """\
space:
  train.learning_rate_factor: {loguniform: [0.01, 3.0]}
  model.dropout: {choice: [0.0, 0.1, 0.3]}
  model.d_ff: {randint: [16, 20]}
  train.label_smoothing: {uniform: [0.0, 0.2]}
objective: valid/bleu
rungs: {grace: 300, reduction: 2}
"""


def space_in(folder: Path, text: str = SPACE) -> Space:
    path = folder / "space.yaml"
    path.write_text(text)
    return read_space(path)


# The file.


def test_a_space_is_read(tmp_path: Path) -> None:
    space = space_in(tmp_path, SPACE + "budget: 900\n")
    assert (space.objective, space.mode, space.grace, space.reduction) == ("valid/bleu", "max", 300, 2)
    assert space.budget == 900
    assert [(domain.key, domain.kind, domain.line) for domain in space.domains] == [
        ("train.learning_rate_factor", "loguniform", 2),
        ("model.dropout", "choice", 3),
        ("model.d_ff", "randint", 4),
        ("train.label_smoothing", "uniform", 5),
    ]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("loguniform:", "lognormal:", 2, ["train.learning_rate_factor", "lognormal", "loguniform"]),
        ("[0.01, 3.0]", "[0, 3.0]", 2, ["train.learning_rate_factor", "above 0"]),
        ("[0.01, 3.0]", "[3.0, 0.01]", 2, ["train.learning_rate_factor", "lower first"]),
        ("[0.01, 3.0]", "[0.01]", 2, ["train.learning_rate_factor", "two numbers"]),
        ("[0.0, 0.1, 0.3]", "[]", 3, ["model.dropout", "list"]),
        ("{choice: [0.0, 0.1, 0.3]}", "0.1", 3, ["model.dropout", "choice"]),
        ("[16, 20]", "[16.5, 20]", 4, ["model.d_ff", "whole numbers"]),
        ("model.dropout:", "train.budget:", 3, ["train.budget", "ASHA"]),
        ("model.dropout:", "data.corpus:", 3, ["data.corpus", "corpus"]),
        ("model.dropout:", "model.d_ff:", 4, ["model.d_ff", "twice"]),
        ("valid/bleu", "test/bleu", 6, ["objective", "test/bleu", "valid/bleu"]),
        ("grace: 300", "grace: 0", 7, ["grace", "least is 1"]),
        ("reduction: 2", "reduction: 1", 7, ["reduction", "least is 2"]),
        ("reduction: 2", "speed: 1", 7, ["speed", "grace, reduction"]),
        ("grace: 300, ", "", 7, ["grace"]),
        ("objective:", "aim:", 6, ["aim", "objective"]),
        ("{grace: 300", "{grace: [300", 7, ["YAML"]),
        ("[0.0, 0.1, 0.3]", "[!!python/object 1]", 3, ["value"]),
        ("[0.0, 0.1, 0.3]", "[2001-01-01]", 3, ["model.dropout", "no number"]),
        ("[0.01, 3.0]", "[0.01, .inf]", 2, ["train.learning_rate_factor", "no number"]),
        ("model.dropout:", "[a, b]:", 3, ["key", "no word"]),
    ],
)
def test_a_wrong_space_is_one_line_that_names_key_and_line(
    tmp_path: Path, old: str, new: str, line: int, words: list[str]
) -> None:
    assert old in SPACE
    with pytest.raises(UsageError) as caught:
        space_in(tmp_path, SPACE.replace(old, new))
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'space.yaml'}:{line}: ")
    assert all(word in told for word in words), told
    assert "\n" not in told


@pytest.mark.parametrize("text", ["", "~", "- 1", "space: {}", "space: \0", "space: " + 3000 * "["])
def test_a_file_that_is_no_space_at_all_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        space_in(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'space.yaml'}:")
    assert "\n" not in str(caught.value)


def test_numbers_in_the_short_form_that_yaml_takes_for_texts_are_numbers(tmp_path: Path) -> None:
    text = SPACE.replace("[0.01, 3.0]", "[1e-4, 1e-2]").replace("[0.0, 0.1, 0.3]", "[1e-1]")
    drawn = dict(setting.split("=") for setting in space_in(tmp_path, text).sample(1, 1))
    assert 1e-4 <= float(drawn["train.learning_rate_factor"]) <= 1e-2
    (row,) = selection_of(space_in(tmp_path, text), "smoke", samples=1, seed=1).rows
    assert row.config.model.dropout == 0.1


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("model.dropout:", "model.dropuot:", 3, ["model.dropuot", "did you mean model.dropout"]),
        ("[0.0, 0.1, 0.3]", "[many]", 3, ["model.dropout", "many"]),
        ("[0.0, 0.1, 0.3]", "[1.5]", 3, ["model.dropout", "1.5"]),
    ],
)
def test_a_key_or_value_that_the_base_does_not_take_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, words: list[str]
) -> None:
    space = space_in(tmp_path, SPACE.replace(old, new))
    with pytest.raises(UsageError) as caught:
        selection_of(space, "smoke", samples=1, seed=1)
    assert str(caught.value).startswith(f"{tmp_path / 'space.yaml'}:{line}: ")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.evaluate_every=200"], ["grace 300", "evaluate_every 200"]),
        (["train.budget=300"], ["grace 300", "budget of 300"]),
        (["train.budget_unit=tokens"], ["tokens", "budget_unit=steps"]),
        (["train.valid_decode=none"], ["valid/bleu", "valid_decode"]),
    ],
)
def test_a_base_that_gives_asha_nothing_to_compare_is_refused(
    tmp_path: Path, settings: list[str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        selection_of(space_in(tmp_path), "smoke", samples=1, seed=1, settings=settings)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.dropout=0.2", ["model.dropout", "set and searched", "space.yaml:3"]),
        ("train.budget=900", ["budget", "set twice", "`budget: 600`"]),
    ],
)
def test_a_setting_that_the_file_would_overrule_is_refused(tmp_path: Path, setting: str, words: list[str]) -> None:
    space = space_in(tmp_path, SPACE + "budget: 600\n")
    with pytest.raises(UsageError) as caught:
        selection_of(space, "smoke", samples=1, seed=1, settings=[setting])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_file_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CheckError, match="cannot be read"):
        read_space(tmp_path / "none.yaml")
    assert command(["search", str(tmp_path / "none.yaml"), "--scale", "smoke", "--samples", "2"]) == 3
    assert capfd.readouterr().err.count("\n") == 1


# What is drawn.


def test_samples_lie_in_the_space_and_follow_from_seed_and_number(tmp_path: Path) -> None:
    space = space_in(tmp_path)
    drawn = [dict(text.split("=") for text in space.sample(1, number)) for number in range(1, 201)]
    rates = [float(sample["train.learning_rate_factor"]) for sample in drawn]
    assert all(0.01 <= rate <= 3.0 for rate in rates)
    # Log-uniform: as many below as above the geometric mean; of 200 draws 60 to 140 is 5.6 standard deviations.
    assert 60 < sum(rate < (0.01 * 3.0) ** 0.5 for rate in rates) < 140
    assert {sample["model.dropout"] for sample in drawn} == {"0.0", "0.1", "0.3"}
    assert {sample["model.d_ff"] for sample in drawn} == {"16", "17", "18", "19", "20"}
    assert all(0.0 <= float(sample["train.label_smoothing"]) <= 0.2 for sample in drawn)
    assert space.sample(1, 3) == space_in(tmp_path).sample(1, 3)
    assert space.sample(1, 3) != space.sample(2, 3)


def test_more_samples_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    space = space_in(tmp_path)
    few = selection_of(space, "smoke", samples=3, seed=5).rows
    many = selection_of(space, "smoke", samples=6, seed=5).rows
    assert [row.config.hash() for row in many[:3]] == [row.config.hash() for row in few]
    assert [row.variant.id for row in many] == [f"search.{number:03d}" for number in range(1, 7)]


def test_widths_of_heads_follow_what_is_drawn_unless_they_are_set(tmp_path: Path) -> None:
    text = SPACE.replace("model.d_ff: {randint: [16, 20]}", "model.n_heads: {choice: [2]}")
    free = selection_of(space_in(tmp_path, text), "smoke", samples=1, seed=1).rows[0].config.model
    assert (free.n_heads, free.d_k, free.d_v) == (2, 32, 32)  # type: ignore[union-attr]
    fixed = selection_of(space_in(tmp_path, text), "smoke", samples=1, seed=1, settings=["model.d_k=8"]).rows[0]
    assert (fixed.config.model.d_k, fixed.config.model.d_v) == (8, 32)  # type: ignore[union-attr]


# The study.


def search_study(path: Path, tmp_path: Path, samples: int = 3, seed: int = 1, text: str = SPACE) -> Study:
    selection = selection_of(space_in(tmp_path, text), "smoke", samples=samples, seed=seed)
    data = Data(corpus="smoke", directory=path / "data", digest="d" * 64, vocabulary_size=320)
    return open_study(path, selection, [1], data)[0]


def test_samples_are_ordinary_runs_of_a_study_marked_as_a_search(tmp_path: Path) -> None:
    study = search_study(tmp_path / "s", tmp_path)
    assert [run.variant for run in study.runs] == ["search.001", "search.002", "search.003"]
    assert study.runs[0].path.name.startswith("search.001-s1-")
    document = json.loads((tmp_path / "s" / "study.json").read_text())
    assert (document["kind"], document["table"]) == ("search", "search")
    assert document["search"]["objective"] == "valid/bleu"
    grown = search_study(tmp_path / "s", tmp_path, samples=5)
    assert [run.id for run in grown.runs][:3] == [run.id for run in study.runs]
    assert not grown.superseded


def test_another_seed_or_space_makes_other_samples_and_other_rules_are_refused(tmp_path: Path) -> None:
    old = search_study(tmp_path / "s", tmp_path)
    new = search_study(tmp_path / "s", tmp_path, seed=2)
    assert {run.id for run in new.superseded} == {run.id for run in old.runs}
    assert all("train.learning_rate_factor" in run.why for run in new.superseded)
    with pytest.raises(CheckError, match="grace = 300 instead of 600"):
        search_study(tmp_path / "s", tmp_path, text=SPACE.replace("grace: 300", "grace: 600"))


def test_everything_that_shows_a_search_says_that_its_rows_are_not_comparable(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    study = search_study(tmp_path / "s", tmp_path)
    for run, (score, state) in zip(study.runs, ((3.0, "done"), (9.0, "stopped"), (5.0, "stopped")), strict=True):
        with attempts.claim(run.directory) as attempt:  # type: ignore[union-attr]
            line = {"step": 300, "time": 1.0, "metrics": {"valid/bleu": score}}
            (run.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            if state == "done":
                run.directory.write_result({"steps": 1500, "test": {"bleu": 4.0}})
                attempt.end("done")
            else:
                attempt.end("stopped", "stopped by ASHA at step 300 (valid/bleu 9.00), saved at step 300")
    warning = "search: rows trained on unequal budgets, not comparable at equal budget"
    assert command(["status", str(tmp_path / "s")]) == 0
    told = capfd.readouterr().out
    assert warning in told
    assert "nothing is left to do" in told
    order = [told.index(name) for name in ("search.002", "search.003", "search.001")]
    assert order == sorted(order), "the best objective first"
    assert command(["status", str(tmp_path / "s"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["kind"], document["warning"]) == ("search", warning)
    assert [(run["objective_value"], run["objective_step"]) for run in document["runs"]] == [
        (3.0, 300),
        (9.0, 300),
        (5.0, 300),
    ]
    record = StudyRecord(study=study)
    assert record.tags()["warning"] == warning
    assert warning in record.tags()["mlflow.note.content"]


# One sample, in a worker.


def order_of(run: RunDirectory, folder: Path) -> Order:
    return Order(run=str(run.path), stop=str(folder / "stop"), driver=Process.current().document())


def test_a_sample_tells_its_scores_one_by_one_and_ends_like_any_run(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path / "a", corpus, configuration(corpus))
    sample = Sample(order_of(run, tmp_path), "valid/perplexity")
    told = []
    while True:
        told.append(sample.next())
        if told[-1]["done"]:
            break
    sample.end()
    assert [(result["step"], result["done"]) for result in told] == [(8, False), (16, False), (24, True)]
    alone = made(tmp_path / "b", corpus, configuration(corpus))
    execute(alone)
    assert bits(run) == bits(alone)
    assert [result["score"] for result in told] == [score.value for score in scores(alone, "valid/perplexity")]


def test_a_sample_that_asha_stops_ends_there_with_the_reason_and_goes_no_further(
    corpus: Prepared, tmp_path: Path
) -> None:
    run = made(tmp_path, corpus, configuration(corpus))
    sample = Sample(order_of(run, tmp_path), "valid/perplexity")
    assert sample.next()["step"] == 8
    write_json(run.path / VERDICT, {"step": 8, "score": 250.5})
    sample.end()
    found = run.status()
    assert (found.state, found.step) == ("stopped", 8)
    assert found.reason == "stopped by ASHA at step 8 (valid/perplexity 250.50), saved at step 8"
    again = Sample(order_of(run, tmp_path), "valid/perplexity")
    assert [(result["step"], result["done"]) for result in (again.next(), again.next())] == [(8, False), (8, True)]
    again.end()
    assert run.status().attempt == 1, "it is settled"


def test_a_sample_that_was_interrupted_tells_its_old_scores_and_goes_on(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path / "a", corpus, configuration(corpus))
    first = Sample(order_of(run, tmp_path), "valid/perplexity")
    first.next()
    first.end()
    assert (run.status().state, run.status().reason) == ("stopped", "asked to stop, saved at step 8")
    second = Sample(order_of(run, tmp_path), "valid/perplexity")
    told = [second.next() for _ in range(3)]
    second.end()
    assert [result["step"] for result in told] == [8, 16, 24]
    assert run.status().state == "done"
    alone = made(tmp_path / "b", corpus, configuration(corpus))
    execute(alone)
    assert bits(run) == bits(alone)


def test_a_verdict_that_came_before_the_end_of_a_sample_still_holds(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus, configuration(corpus))
    first = Sample(order_of(run, tmp_path), "valid/perplexity")
    first.next()
    first.end()
    write_json(run.path / VERDICT, {"step": 8, "score": 250.5})
    second = Sample(order_of(run, tmp_path), "valid/perplexity")
    assert [second.next()["done"], second.next()["done"]] == [False, True]
    second.end()
    assert run.status().reason == "stopped by ASHA at step 8 (valid/perplexity 250.50)"


def test_a_sample_that_fails_is_told_to_ray(corpus: Prepared, tmp_path: Path) -> None:
    run = made(tmp_path, corpus, dataclasses.replace(configuration(corpus), seed=3))
    order = dataclasses.replace(order_of(run, tmp_path), execute="test_search:broken")
    sample = Sample(order, "valid/perplexity")
    with pytest.raises(ArithmeticError, match="no luck"):
        sample.next()
    sample.end()


def broken(*_: Any, **__: Any) -> None:
    raise ArithmeticError("no luck")


# All of it, with a real Ray.

PATIENCE = 300.0
"""Seconds after which a test gives up waiting; never a statement about speed."""

RATES = """\
space:
  train.learning_rate_factor: {choice: [1.0, 1.0e-6, 2.0e-6, 3.0e-6]}
objective: valid/perplexity
rungs: {grace: 20, reduction: 2}
budget: 300
"""
TINY = {
    "data.corpus": "local:svo-sov",
    "data.vocabulary_size": 200,
    "data.max_pieces": 64,
    "train.batch_tokens": 256,
    "train.warmup_steps": 20,
    "train.evaluate_every": 10,
    "train.valid_decode": "none",
    "train.checkpoint_seconds": 0,
    "model.d_model": 16,
    "model.d_ff": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "decode.beam": 1,
    "decode.extra_length": 2,
}


def text_in(folder: Path) -> Path:
    folder.mkdir()
    for split, count in (("train", 600), ("valid", 12), ("test", 16)):
        pairs = smoke.generate(split)[:count]
        for side, language in enumerate(("svo", "sov")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return folder


def searching(place: Path, samples: int, seed: int) -> subprocess.Popen[str]:
    settings = [part for key, value in TINY.items() for part in ("--set", f"{key}={value}")]
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "ABLATE_DATA": str(place / "data"),
    }
    environment.pop("MLFLOW_TRACKING_URI", None)
    line = ["search", "space.yaml", "--scale", "smoke", "--samples", str(samples), "--seed", str(seed)]
    line += ["--study", "s", "--source", "text", "--cpus", "1", *settings]
    return subprocess.Popen(
        [sys.executable, "-m", "ablations", *line],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def searched(place: Path, samples: int, seed: int) -> str:
    """What the command tells when it is done. On a busy machine Ray gives up its own start after 30 s: once more."""
    for _ in range(5):
        process = searching(place, samples, seed)
        told, _ = process.communicate(timeout=PATIENCE)
        if "Ray does not start" not in told:
            break
    assert process.returncode == 0, told
    return told


@pytest.mark.slow
def test_a_search_stops_what_is_worse_and_goes_on_after_an_interruption(tmp_path: Path) -> None:
    text_in(tmp_path / "text")
    space = space_in(tmp_path, RATES)
    # A seed whose first sample learns and whose others, each another one, do not.
    seed = next(
        seed
        for seed in range(1, 1000)
        if space.sample(seed, 1) == ["train.learning_rate_factor=1.0"]
        and len({*space.sample(seed, 1), *space.sample(seed, 2), *space.sample(seed, 3)}) == 3
    )
    study = tmp_path / "s"

    process = searching(tmp_path, 2, seed)

    def scored() -> list[RunDirectory]:
        assert process.poll() is None, process.communicate()[0]
        found = [RunDirectory(config.parent) for config in study.glob("runs/search.001-*/config.json")]
        return [run for run in found if scores(run, "valid/perplexity")]

    held = hold(scored)
    (first,) = held.values()
    process.send_signal(signal.SIGINT)
    let_go_once_asked(held, study)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, told
    assert "interrupted" in told
    attempts_before = len(attempts.claims(first))

    told = searched(tmp_path, 2, seed)
    found = {run.variant: run.directory.status() for run in Study.load(study).runs}
    assert found["search.001"].state == "done"
    assert (found["search.002"].state, found["search.002"].step) == ("stopped", 20)
    assert found["search.002"].reason.startswith("stopped by ASHA at step 20 (valid/perplexity ")
    assert "not comparable at equal budget" in told
    assert len(attempts.claims(first)) <= attempts_before + 1

    told = searched(tmp_path, 3, seed)
    assert "search.001 seed 1: done already" in told
    assert "search.002 seed 1: stopped by ASHA at step 20" in told
    again = {run.variant: run.directory.status() for run in Study.load(study).runs}
    assert (again["search.001"].attempt, again["search.002"].attempt) == (
        found["search.001"].attempt,
        found["search.002"].attempt,
    )
    assert (again["search.003"].state, again["search.003"].step) == ("stopped", 20), "compared with those before"

    told = searched(tmp_path, 3, seed)
    assert "nothing is missing, nothing is run" in told
    looks = [look(run) for run in Study.load(study).planned]
    assert status.ranked(Study.load(study), looks)[0][0].run.variant == "search.001"
