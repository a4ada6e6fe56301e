"""A study is planned at its creation, grows by variants and seeds, and refuses another table or scale."""

from __future__ import annotations

import io
import json
import multiprocessing
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablations import status
from ablations.looks import look
from ablations.selection import choose
from ablations.study import Data, Study, StudyRun, default_path, open_study, study_path
from repro.errors import CheckError
from repro.runs import attempts
from repro.runs.directory import RunDirectory, Status


def data(digest: str = "d" * 64) -> Data:
    return Data(corpus="smoke", directory=Path("/data/smoke/256-dddddddddddd"), digest=digest, vocabulary_size=256)


def opened(
    path: Path,
    *,
    table: str = "table3",
    scale: str = "smoke",
    only: Iterable[str] | None = ("base", "A.h1"),
    settings: Iterable[str] = (),
    seeds: Iterable[int] = (1,),
    digest: str = "d" * 64,
) -> tuple[Study, list[StudyRun]]:
    return open_study(path, choose(table, scale, only=only, settings=settings), seeds, data(digest))


def frozen(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "study.json").read_text())
    return document


def test_a_new_study_holds_its_plan_and_a_directory_for_every_run(tmp_path: Path) -> None:
    study, asked = opened(tmp_path / "s", seeds=(1, 2), settings=["train.budget=50"])
    document = frozen(tmp_path / "s")
    assert (document["schema"], document["study"]) == (1, "s")
    assert (document["table"], document["scale"]) == ("table3", "smoke")
    assert (document["seeds"], document["set"]) == ([1, 2], ["train.budget=50"])
    assert document["data"]["digest"] == "d" * 64
    assert [variant["id"] for variant in document["variants"]] == ["base", "A.h1"]
    assert document["variants"][1]["changes"]["model.n_heads"] == 1
    assert [(run["variant"], run["seed"]) for run in document["runs"]] == [
        ("base", 1),
        ("A.h1", 1),
        ("base", 2),
        ("A.h1", 2),
    ]
    assert [run.id for run in asked] == [run["id"] for run in document["runs"]]
    for run, entry in zip(study.runs, document["runs"], strict=True):
        assert entry["directory"] == f"runs/{run.id}"
        assert run.id == f"{run.variant}-s{run.seed}-{run.hash[:12]}"
        config = run.directory.config()
        assert (config.variant, config.seed, config.train.budget) == (run.variant, run.seed, 50)
        assert config.data.digest == "d" * 64
        assert run.directory.status().state == "planned"


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    opened(tmp_path)
    before = (tmp_path / "study.json").stat().st_mtime_ns
    again, asked = opened(tmp_path)
    assert (tmp_path / "study.json").stat().st_mtime_ns == before
    assert len(again.runs) == len(asked) == 2


def test_a_study_grows_by_variants_and_seeds_and_reads_as_if_made_at_once(tmp_path: Path) -> None:
    opened(tmp_path / "grown", only=["C.ff-half"])
    opened(tmp_path / "grown", only=["base"], seeds=(1, 2))
    _, asked = opened(tmp_path / "grown", only=["base", "C.ff-half"], seeds=(1, 2))
    opened(tmp_path / "whole", only=["base", "C.ff-half"], seeds=(1, 2))
    assert [run.variant for run in asked] == ["base", "C.ff-half", "base", "C.ff-half"]
    grown, whole = frozen(tmp_path / "grown"), frozen(tmp_path / "whole")
    for key in ("variants", "runs", "seeds"):
        assert grown[key] == whole[key]


def test_fewer_rows_than_before_ask_only_for_these(tmp_path: Path) -> None:
    opened(tmp_path, only=None)
    study, asked = opened(tmp_path, only=["base"])
    assert [run.variant for run in asked] == ["base"]
    assert len(study.runs) == 20


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"table": "positions", "only": ["base"]}, ["table = table3 instead of positions"]),
        ({"scale": "multi30k-cpu"}, ["scale = smoke instead of multi30k-cpu"]),
    ],
)
def test_another_table_or_scale_is_refused_and_named(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    opened(tmp_path)
    before = frozen(tmp_path)
    with pytest.raises(CheckError) as error:
        opened(tmp_path, **change)
    for word in [*words, str(tmp_path), "--study"]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert frozen(tmp_path) == before


def test_a_setting_written_otherwise_is_the_same_study(tmp_path: Path) -> None:
    opened(tmp_path, settings=["train.budget=50"])
    opened(tmp_path, settings=["train.budget = 50.0"])


def test_rows_of_one_configuration_share_one_run(tmp_path: Path) -> None:
    study, asked = opened(tmp_path, table="table3+positions", only=["base", "E.learned", "positions.learned"])
    twin = next(run for run in study.planned if run.variant == "positions.learned")
    first = next(run for run in study.planned if run.variant == "E.learned")
    assert (twin.same_as, twin.path) == (first.id, first.path)
    assert [run.variant for run in study.runs] == ["base", "E.learned"]
    assert len(asked) == 3
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {run.id for run in study.runs}
    assert first.directory.config().variant == "E.learned"


def test_the_row_that_was_there_first_keeps_its_run(tmp_path: Path) -> None:
    opened(tmp_path, table="table3+positions", only=["positions.learned"])
    study, _ = opened(tmp_path, table="table3+positions", only=["E.learned", "positions.learned"])
    assert {run.variant: run.same_as is None for run in study.planned} == {
        "positions.learned": True,
        "E.learned": False,
    }


def _open_quietly(path: Path, only: str) -> None:
    opened(path, only=[only, "base"])


def test_processes_that_start_a_study_at_once_make_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    only = ["A.h1", "A.h4", "A.h16", "A.h32"]
    starters = [context.Process(target=_open_quietly, args=(tmp_path, name)) for name in only]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join(60)
        assert starter.exitcode == 0
    assert [run.variant for run in Study.load(tmp_path).runs] == ["base", *only]


def test_a_directory_without_a_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="no study here"):
        Study.load(tmp_path)
    with pytest.raises(CheckError, match="no study here"):
        study_path(str(tmp_path / "none"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 1}', '{"schema": 99}'])
def test_a_damaged_plan_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(CheckError, match=r"study\.json"):
        Study.load(tmp_path)


def test_a_study_can_be_moved(tmp_path: Path) -> None:
    opened(tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    study = Study.load(tmp_path / "there")
    assert study.name == "there"
    assert [run.directory.status().state for run in study.runs] == ["planned", "planned"]


def test_a_study_is_found_by_its_name_under_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    selection = choose("table3", "smoke")
    assert default_path(selection) == Path("studies/table3-smoke")
    open_study(default_path(selection), selection, [1], data())
    assert study_path("table3-smoke") == study_path("studies/table3-smoke") == Path("studies/table3-smoke")


def test_status_tells_every_run_in_the_documented_form(tmp_path: Path) -> None:
    study, _ = opened(tmp_path, only=["base", "A.h1", "A.h4"])
    done, failed, planned = study.runs
    with attempts.claim(done.directory) as attempt:  # type: ignore[union-attr]
        done.directory.write_status(Status(state="running", attempt=1, step=9))
        done.directory.write_result({"steps": 12, "test": {"bleu": 31.25}})
        attempt.end("done")
    with attempts.claim(failed.directory) as attempt:  # type: ignore[union-attr]
        failed.directory.write_status(Status(state="running", attempt=1, step=5))
        attempt.end("failed", "no luck")
    document = status.document(Study.load(tmp_path))
    assert document["study"] == tmp_path.name
    assert document["counts"] == {"done": 1, "failed": 1, "planned": 1}
    wanted = ("id", "variant", "seed", "state", "attempts", "step", "reason", "directory")
    assert [tuple(run[key] for key in wanted) for run in document["runs"]] == [
        (done.id, "base", 1, "done", 1, 12, "", str(done.path)),
        (failed.id, "A.h1", 1, "failed", 1, 5, "no luck", str(failed.path)),
        (planned.id, "A.h4", 1, "planned", 0, 0, "", str(planned.path)),
    ]
    json.dumps(document, allow_nan=False)


def test_a_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    study, _ = opened(tmp_path)
    (study.runs[0].path / "config.json").write_text("{")
    found = status.document(study)["runs"]
    assert [run["state"] for run in found] == ["failed", "planned"]
    assert "config.json" in found[0]["reason"]


def test_a_planned_run_whose_directory_is_gone_is_told_so(tmp_path: Path) -> None:
    study, _ = opened(tmp_path)
    shutil.rmtree(study.runs[0].path)
    assert "no run directory" in look(study.runs[0]).status.reason
    _, asked = opened(tmp_path)
    assert RunDirectory(asked[0].path).status().state == "planned"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"runs": None}, "runs is None, not a list"),
        ({"runs": [{"id": "x"}]}, r"runs\[0\]\.variant is missing"),
        ({"data": {"corpus": "smoke"}}, r"data\.directory is missing"),
        ({"variants": [{"id": "base"}]}, r"variants\[0\]\.group is missing"),
        ({"variants": []}, "the run base-s1-.* is of no planned row"),
        ({"base": 3}, "base is 3, not an object"),
    ],
)
def test_a_damaged_plan_is_one_clear_line(tmp_path: Path, change: dict[str, Any], wrong: str) -> None:
    opened(tmp_path / "s")
    (tmp_path / "s" / "study.json").write_text(json.dumps(frozen(tmp_path / "s") | change))
    with pytest.raises(CheckError, match=rf"study\.json: .*{wrong}") as caught:
        Study.load(tmp_path / "s")
    assert "\n" not in str(caught.value)


def test_a_frozen_base_that_cannot_be_read_is_a_failed_check(tmp_path: Path) -> None:
    opened(tmp_path / "s")
    document = frozen(tmp_path / "s")
    document["base"]["model"]["n_haeds"] = 3
    (tmp_path / "s" / "study.json").write_text(json.dumps(document))
    with pytest.raises(CheckError, match=r"its base cannot be read .*n_haeds"):
        opened(tmp_path / "s")


def test_brackets_in_a_studys_name_are_text(tmp_path: Path) -> None:
    study, _ = opened(tmp_path / "[bold]x[", only=["base"])
    console = Console(file=io.StringIO(), width=120)
    console.print(status.table([look(run) for run in study.planned], f"{study.name}: 1 planned"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().startswith("[bold]x[: 1 planned")
