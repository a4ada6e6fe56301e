"""A study that is asked for more, or for something else: only what is missing runs, and nothing that was is lost."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_execute import StopAt, bits, configuration, corpus, made

from ablations.cluster import Resources
from ablations.conduct import conduct
from ablations.progress import Teller
from ablations.selection import choose
from ablations.study import Data, Study, StudyRun, open_study
from repro.data.prepared import Prepared
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from repro.runs.inherit import inherit

__all__ = ["corpus"]  # a fixture


def opened(
    path: Path,
    *,
    only: Iterable[str] = ("base", "A.h1"),
    settings: Iterable[str] = (),
    seeds: Iterable[int] = (1,),
    digest: str = "d" * 64,
    table: str = "table3",
) -> tuple[Study, list[StudyRun]]:
    data = Data(corpus="smoke", directory=Path("/data/smoke"), digest=digest, vocabulary_size=256)
    return open_study(path, choose(table, "smoke", only=only, settings=settings), seeds, data)


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "study.json").read_text())
    return found


def ids(runs: Iterable[StudyRun]) -> list[str]:
    return [run.id for run in runs]


# The plan.


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"settings": ["train.budget=2000"]}, "train.budget 1500 -> 2000"),
        ({"settings": ["model.norm=pre"]}, "model.norm post -> pre"),
        ({"digest": "e" * 64}, "data.digest dddddddddddd -> eeeeeeeeeeee"),
    ],
)
def test_what_changed_makes_new_runs_that_say_which_they_replace_and_why(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    _, old = opened(tmp_path)
    study, new = opened(tmp_path, **change)
    assert not set(ids(old)) & set(ids(new))
    assert ids(study.planned) == ids(new)
    assert [run.replaces for run in new] == ids(old)
    assert [run.why for run in new] == [why, why]
    assert ids(study.superseded) == ids(old)
    for run in [*old, *new]:
        assert run.directory.config().variant == run.variant, "the old directories stay"
    plan = document(tmp_path)
    assert [entry["why"] for entry in plan["history"]] == [why]
    assert plan["history"][0]["base"]["train"]["budget"] == 1500
    assert plan["set"] == list(change.get("settings", []))
    assert plan["data"]["digest"] == change.get("digest", "d" * 64)


def test_other_semantics_of_the_code_make_new_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, old = opened(tmp_path)
    for module in ("ablations.study", "ablations.growth", "repro.config.run", "repro.runs.directory"):
        monkeypatch.setattr(f"{module}.SEMANTICS_VERSION", 999)
    study, new = opened(tmp_path)
    assert all("the code's semantics" in run.why and "-> 999" in run.why for run in new)
    assert (ids(study.planned), ids(study.superseded)) == (ids(new), ids(old))
    assert document(tmp_path)["semantics"] == 999
    assert not any(run.directory.continues() for run in new), "other code begins at the first step"


def test_a_row_that_is_defined_otherwise_makes_a_new_run_of_that_row_only(tmp_path: Path) -> None:
    _, (base, row) = opened(tmp_path)
    plan = document(tmp_path)
    plan["runs"][1] |= {"hash": "f" * 64, "id": "A.h1-s1-ffffffffffff"}
    (tmp_path / "study.json").write_text(json.dumps(plan))
    study, asked = opened(tmp_path)
    assert ids(asked) == [base.id, row.id]
    assert [(run.id, run.replaces) for run in asked] == [(base.id, None), (row.id, "A.h1-s1-ffffffffffff")]
    assert ids(study.superseded) == ["A.h1-s1-ffffffffffff"]
    assert "history" not in document(tmp_path)


def test_runs_that_a_new_base_does_not_change_are_kept(tmp_path: Path) -> None:
    # The row without label smoothing is the same whichever kind of smoothing the base has, were it not for the base.
    settings = ["model.positions=learned"]
    _, old = opened(tmp_path, only=["base", "E.learned"])
    study, new = opened(tmp_path, only=["base", "E.learned"], settings=settings)
    learned = next(run for run in old if run.variant == "E.learned")
    assert {run.variant: run.path for run in new} == {"base": learned.path, "E.learned": learned.path}
    assert [run.variant for run in study.superseded] == ["base"]


def test_rows_that_are_not_asked_for_are_superseded_too_and_not_run(tmp_path: Path) -> None:
    _, old = opened(tmp_path, only=["base", "A.h1"], seeds=(1, 2))
    study, new = opened(tmp_path, only=["base"], settings=["train.budget=2000"])
    assert [(run.variant, run.seed) for run in study.planned] == [("base", 1)]
    assert ids(new) == ids(study.planned)
    assert sorted(ids(study.superseded)) == sorted(ids(old))
    assert {run.why for run in study.superseded} == {"train.budget 1500 -> 2000"}
    assert [entry["id"] for entry in document(tmp_path)["variants"]] == ["base"]


def test_going_back_takes_the_old_runs_back(tmp_path: Path) -> None:
    _, old = opened(tmp_path)
    before = document(tmp_path)
    opened(tmp_path, settings=["train.budget=2000"])
    study, again = opened(tmp_path)
    assert (ids(again), ids(study.planned)) == (ids(old), ids(old))
    assert len(study.superseded) == 2
    assert [run.path for run in again] == [run.path for run in old]
    now = document(tmp_path)
    assert {key: now[key] for key in ("base", "variants", "seeds", "set", "data")} == {
        key: before[key] for key in ("base", "variants", "seeds", "set", "data")
    }
    assert [entry["why"] for entry in now["history"]] == ["train.budget 1500 -> 2000", "train.budget 2000 -> 1500"]


def test_the_same_again_writes_nothing_after_a_change_either(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, settings=["train.budget=2000"])
    before = (tmp_path / "study.json").stat().st_mtime_ns
    opened(tmp_path, settings=["train.budget=2000"])
    assert (tmp_path / "study.json").stat().st_mtime_ns == before


def test_changes_of_rows_are_told_over_the_new_base(tmp_path: Path) -> None:
    opened(tmp_path, only=["base", "E.learned"])
    opened(tmp_path, only=["base", "E.learned"], settings=["model.positions=learned"])
    rows = {entry["id"]: entry["changes"] for entry in document(tmp_path)["variants"]}
    assert rows == {"base": {}, "E.learned": {}}


def test_superseded_runs_whose_directory_is_gone_are_listed_still(tmp_path: Path) -> None:
    _, old = opened(tmp_path)
    shutil.rmtree(old[0].path)
    study, new = opened(tmp_path, settings=["train.budget=2000"])
    assert ids(study.superseded) == ids(old)
    assert new[0].why == "train.budget 1500 -> 2000"


def test_what_is_new_is_said_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, old = opened(tmp_path / "s", only=["base"])
    order: list[str] = []
    told = io.StringIO()
    settings = ["train.budget=2000"]
    data = Data(corpus="smoke", directory=Path("/data/smoke"), digest="d" * 64, vocabulary_size=256)
    monkeypatch.setattr("ablations.ready._data_of", lambda *_: data)
    monkeypatch.setattr("ablations.ready._check", lambda *_, **__: None)

    def stopped(*_: Any, **__: Any) -> None:
        order.append(told.getvalue())
        raise KeyboardInterrupt

    monkeypatch.setattr("ablations.conduct.sweep", stopped)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(KeyboardInterrupt):
        conduct(
            choose("table3", "smoke", only=["base"], settings=settings),
            [1],
            path=tmp_path / "s",
            source=None,
            resources=Resources(),
            teller=Teller(Console(file=told, width=200)),
        )
    line = f"base seed 1 is new: train.budget 1500 -> 2000; the old run stays in runs/{old[0].id}"
    assert line in order[0]


# The work.


def after(shorter: RunDirectory, root: Path, corpus: Prepared, **train: Any) -> RunDirectory:
    """The run with another budget that may begin from `shorter`."""
    return RunDirectory.create(root, configuration(corpus, **train), corpus.directory, continues=shorter.path)


@pytest.mark.parametrize(
    ("shorter", "longer", "begins"),
    [
        # The shorter run was stopped at step 13. Evaluations are every 8 and log lines every 5 steps: 40 is a multiple
        # of both; 24 is not, there the checkpoint of step 13 is taken, and so it is for a budget below the end.
        ({"budget": 40}, {"budget": 48}, 40),
        ({"budget": 24}, {"budget": 40}, 13),
        ({"budget": 40}, {"budget": 30}, 13),
        ({"budget": 40, "average_checkpoints": 3}, {"budget": 50, "average_checkpoints": 3}, 40),
        ({"budget": 26, "average_checkpoints": 2}, {"budget": 30, "average_checkpoints": 2}, 13),
        (
            {"budget": 40, "average_checkpoints": 2, "average_select": "best"},
            {"budget": 48, "average_checkpoints": 2, "average_select": "best"},
            40,
        ),
        ({"budget": 9000, "budget_unit": "tokens"}, {"budget": 10000, "budget_unit": "tokens"}, 13),
    ],
)
def test_another_budget_begins_on_the_way_and_has_the_bits_of_a_run_from_the_start(
    corpus: Prepared, tmp_path: Path, shorter: dict[str, Any], longer: dict[str, Any], begins: int
) -> None:
    shorter, longer = shorter | {"checkpoint_seconds": 1e9}, longer | {"checkpoint_seconds": 1e9}  # saved at ends only
    first = made(tmp_path / "a", corpus, configuration(corpus, **shorter))
    assert execute(first, stop=StopAt(13)).state == "stopped"
    assert execute(first).state == "done"
    grown = after(first, tmp_path / "a", corpus, **longer)
    begun: list[int] = []

    class First:
        def progress(self, event: Any) -> None:
            begun.append(event.step)

    assert execute(grown, observer=First()).state == "done"
    assert begun[0] == begins
    alone = made(tmp_path / "b", corpus, configuration(corpus, **longer))
    assert execute(alone).state == "done"
    assert bits(grown) == bits(alone)


def test_the_best_weights_are_not_taken_over_where_an_evaluation_stands_that_we_would_not_make(
    corpus: Prepared, tmp_path: Path
) -> None:
    averaged = {"average_checkpoints": 2, "average_select": "best"}
    first = made(tmp_path, corpus, configuration(corpus, budget=26, **averaged))
    execute(first)
    assert inherit(after(first, tmp_path, corpus, budget=32, **averaged)) is None


def test_a_run_that_differs_in_more_than_the_budget_takes_nothing(corpus: Prepared, tmp_path: Path) -> None:
    first = made(tmp_path, corpus, configuration(corpus))
    execute(first)
    other = after(first, tmp_path, corpus, budget=32, warmup_steps=11)
    assert inherit(other) is None
    assert not other.checkpoints.exists()


def test_a_copy_that_was_cut_short_is_made_again(
    corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = made(tmp_path / "a", corpus, configuration(corpus, budget=40))
    execute(first)
    grown = after(first, tmp_path / "a", corpus, budget=48)

    def refuse(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("repro.training.checkpoint.adopt", refuse)
        with pytest.raises(KeyboardInterrupt):
            inherit(grown)
    assert inherit(grown) == 40
    assert inherit(grown) is None, "a run with a checkpoint of its own goes on from that"
    alone = made(tmp_path / "b", corpus, configuration(corpus, budget=48))
    execute(grown)
    execute(alone)
    assert bits(grown) == bits(alone)


def test_a_damaged_or_removed_shorter_run_costs_nothing_but_the_steps(corpus: Prepared, tmp_path: Path) -> None:
    first = made(tmp_path / "a", corpus, configuration(corpus, budget=40))
    execute(first)
    for weights in first.checkpoints.glob("step-*/weights.safetensors"):
        weights.write_bytes(b"damaged")
    damaged = after(first, tmp_path / "a", corpus, budget=48)
    assert inherit(damaged) is None
    shutil.rmtree(first.path)
    assert execute(damaged).state == "done"


def test_a_study_with_a_longer_budget_is_told_which_run_to_begin_from(corpus: Prepared, tmp_path: Path) -> None:
    data = Data(corpus="smoke", directory=corpus.directory, digest=corpus.digest, vocabulary_size=200)

    def study(budget: int) -> StudyRun:
        settings = [f"train.budget={budget}", "train.checkpoint_seconds=0"]
        _, (run,) = open_study(tmp_path / "s", choose("table3", "smoke", only=["base"], settings=settings), [1], data)
        return run

    first = study(20)
    execute(first.directory, stop=StopAt(2))
    assert study(30).directory.continues() == tmp_path / "s" / "runs" / study(30).path.name / ".." / first.path.name
    never = study(40)
    assert never.directory.continues() is not None
    (never.path / "config.json").unlink()  # as a kill between the plan and the run's directory leaves it
    assert study(40).directory.continues() is not None
    shutil.move(tmp_path / "s", tmp_path / "moved")
    moved = RunDirectory(tmp_path / "moved" / "runs" / never.path.name).continues()
    assert moved is not None
    assert moved.resolve() == (tmp_path / "moved" / "runs" / first.path.name).resolve()
