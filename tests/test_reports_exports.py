"""The data and the tables of a report as files: complete, documented, exact, and the same bytes every time."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from reports_study import SyntheticStudy, full_study, tiny_config

from ablations.cli import run as ablate
from reports.exports.files import named_tables, write_exports
from reports.exports.tidy import SCHEMA_VERSION, SCHEMAS, evaluations_frame, runs_frame
from reports.pages import markdown
from reports.records.collection import load_studies
from reports.records.study import load_study
from repro.files import read_json

STRANGE = '100 % & #1_x, "हिन्दी" <b> | {y} ~^ \\input'


def files(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def leaves(document: Any) -> Iterator[Any]:
    if isinstance(document, dict | list):
        for value in document.values() if isinstance(document, dict) else document:
            yield from leaves(value)
    else:
        yield document


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    states = {("A.h1", 2): ("failed", 'no, "luck"\nat all'), ("A.h4", 1): ("missing", "")}
    only = ["base", "A.h1", "A.h4", "C.width-half", "baseline.gnmt"]
    path = tmp_path_factory.mktemp("tour") / "s"
    return full_study(path, table="table3+baselines", only=only, seeds=(1, 2), states=states).path


@pytest.fixture(scope="module")
def out(tour: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("out")
    names = write_exports(load_studies([tour]), directory)
    assert set(names) == set(files(directory))
    return directory


def test_the_same_study_gives_the_same_bytes(tour: Path, out: Path, tmp_path: Path) -> None:
    write_exports(load_studies([tour]), tmp_path)
    assert files(tmp_path) == files(out)


def test_every_column_is_documented_in_its_order(out: Path) -> None:
    text = (out / "data" / "SCHEMA.md").read_text(encoding="utf-8")
    assert f"schema version {SCHEMA_VERSION}" in text
    sections = {part.split(":")[0]: part for part in text.split("## ")[1:]}
    for name, fields in SCHEMAS.items():
        header = (out / "data" / f"{name}.csv").read_text(encoding="utf-8").split("\n")[0].split(",")
        assert header == [field.name for field in fields]
        documented = [line.split("`")[1] for line in sections[name].split("\n") if line.startswith("| `")]
        assert documented == header
        metadata = pq.read_schema(out / "data" / f"{name}.parquet").metadata
        assert metadata[b"schema_version"] == str(SCHEMA_VERSION).encode()


def test_csv_and_parquet_hold_the_same_numbers_exactly(out: Path) -> None:
    for name, fields in SCHEMAS.items():
        stored = pq.read_table(out / "data" / f"{name}.parquet").to_pylist()
        text = (out / "data" / f"{name}.csv").read_bytes().decode()
        written = list(csv.DictReader(io.StringIO(text, newline="")))
        assert len(stored) == len(written) > 0
        for row, line in zip(stored, written, strict=True):
            for field in fields:
                read = {"number": float, "whole": int, "truth": lambda word: word == "True", "text": str}[field.kind]
                assert row[field.name] == (read(line[field.name]) if line[field.name] else None), field.name


def test_a_run_is_a_row_with_all_that_its_result_says(tour: Path, out: Path) -> None:
    frame = pd.read_parquet(out / "data" / "runs.parquet")
    study = load_study(tour)
    assert list(frame["run"]) == [run.id for run in study.runs]
    for run, row in zip(study.runs, frame.to_dict("records"), strict=True):
        assert (row["state"], row["hash"], row["seed"]) == (run.state, run.hash, run.seed)
        assert (tour / row["directory"]) == run.path
        if not run.done:
            assert row["result"] is None or pd.isna(row["result"])
            continue
        result = read_json(run.path / "result.json")
        assert json.loads(row["result"]) == result
        assert row["test_bleu"] == result["test"]["bleu"]
        assert row["valid_perplexity"] == result["valid"]["perplexity"]
        assert row["seconds_decode"] == result["seconds"]["decode"]
        assert row["test_bleu_signature"] == result["test"]["signatures"]["bleu"]
        assert row["corpus_digest"] == result["digests"]["corpus"]
        told = {str(value) for value in row.values()} | {str(x) for v in row.values() for x in _read(v)}
        assert {str(value) for value in leaves({k: v for k, v in result.items() if k != "schema"})} <= told
    failed = frame[frame["state"] == "failed"].iloc[0]
    assert failed["reason"] == 'no, "luck"\nat all'


def _read(value: Any) -> list[Any]:
    """The leaves of a value that is JSON."""
    try:
        return list(leaves(json.loads(value)))
    except (TypeError, ValueError):
        return []


def test_an_evaluation_is_a_row_with_what_had_been_spent(tour: Path, out: Path) -> None:
    frame = pd.read_parquet(out / "data" / "evaluations.parquet")
    study = load_study(tour)
    run = study.by_variant["C.width-half"][0]
    rows = frame[frame["run"] == run.id]
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    evaluated = [line for line in lines if "valid/bleu" in line["metrics"]]
    assert list(rows["step"]) == [line["step"] for line in evaluated]
    assert list(rows["valid_bleu"]) == [line["metrics"]["valid/bleu"] for line in evaluated]
    spent = [line["metrics"]["train/flops"] for line in evaluated[:-1]]
    assert list(rows["flops"])[:-1] == pytest.approx(spent)
    assert list(rows["flops"])[-1] == run.result["train_flops"]
    assert frame["run"].nunique() == sum(run.state in ("done", "failed") for run in study.runs)


def test_what_was_spent_is_not_told_beyond_what_was_logged(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    run = made.run(tiny_config(), "stopped")
    made.write()
    with (run.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 10**6, "time": 1.0, "metrics": {"valid/bleu": 3.0}}) + "\n")
    last = evaluations_frame([load_study(made.path)]).iloc[-1]
    assert (last["step"], last["valid_bleu"]) == (10**6, 3.0)
    assert pd.isna(last["flops"])
    assert pd.isna(last["seconds"])


def test_every_measured_cell_leads_to_its_run_directories(tour: Path, out: Path) -> None:
    cells = pd.read_csv(out / "data" / "cells.csv")
    names = {path.name for path in (tour / "runs").iterdir()}
    ours = cells[(cells["table"] == "table3") & cells["column"].isin(["bleu", "perplexity", "difference", "flops"])]
    ours = ours[ours["kind"] == "plain"]
    assert len(ours) >= 15
    assert all(set(runs.split(" ")) <= names for runs in ours["runs"])
    pair = ours[(ours["row"] == "A.h1") & (ours["column"] == "difference")].iloc[0]["runs"].split(" ")
    assert len(pair) == 2  # one seed failed, and a difference comes from two runs
    published = cells[cells["column"].str.startswith("paper.")]
    assert len(published) > 10
    assert published["runs"].isna().all()


def test_tables_are_there_for_the_study_for_every_budget_and_of_the_paper(out: Path) -> None:
    names = {path.name for path in (out / "tables").iterdir()}
    axes = ("steps", "tokens", "flops", "seconds")
    stems = ["table1", "table2", "table3", *(f"table3-at-equal-{axis}" for axis in axes)]
    assert names == {f"{stem}{end}" for stem in stems for end in (".tex", "-tabular.tex", ".csv")}


def test_several_studies_have_tables_of_their_own(tour: Path, tmp_path: Path) -> None:
    full_study(tmp_path / "other one", scale="multi30k-cpu", only=["base"], seeds=(1,))
    names = named_tables(load_studies([tour, tmp_path / "other one"]))
    assert {"table3-s", "table3-other-one", "table2-s", "table2-other-one", "table1"} <= names.keys()


def test_strange_names_survive_in_every_format(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.variant(STRANGE, "a_b & c", STRANGE, {"data.corpus": STRANGE})
    made.run(tiny_config())
    made.run(tiny_config(variant=STRANGE, seed=2), "failed", STRANGE)
    study = load_study(made.write())
    write_exports([study], tmp_path / "out")
    for end, read in ((".csv", pd.read_csv), (".parquet", pd.read_parquet)):
        frame = read(tmp_path / "out" / "data" / f"runs{end}")
        assert list(frame["variant"]) == ["base", STRANGE]
        assert list(frame["reason"])[1] == STRANGE
    shown = pd.read_csv(tmp_path / "out" / "tables" / "table3.csv")
    assert list(shown["row"]) == ["base", STRANGE]
    lines = markdown.table(named_tables([study])["table3"]).split("\n")
    line = lines[3]
    assert line.startswith(r"""| 100 % &amp; #1\_x, "हिन्दी" &lt;b&gt; \| {y} \~^ \\input""")
    assert len(re.findall(r"(?<!\\)\|", line)) == len(re.findall(r"(?<!\\)\|", lines[0]))


@pytest.mark.parametrize("state", ["missing", "failed", "running"])
def test_a_study_in_which_nothing_finished_has_tables_and_data(tmp_path: Path, state: str) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config(), state, "why")
    study = load_study(made.write())
    made.close()
    write_exports([study], tmp_path / "out")
    frame = runs_frame([study])
    assert list(frame["state"]) == [state]
    row = pd.read_csv(tmp_path / "out" / "tables" / "table3.csv").iloc[0]
    assert row["BLEU_test (13a)"] == "–"
    assert state in row["seeds"]


def test_a_study_of_one_run_has_tables_and_data(tmp_path: Path) -> None:
    made = SyntheticStudy(tmp_path / "s", base=tiny_config())
    made.variant("base", "base", "base", {})
    made.run(tiny_config())
    write_exports([load_study(made.write())], tmp_path / "out")
    cells = pd.read_csv(tmp_path / "out" / "data" / "cells.csv")
    bleu = cells[(cells["table"] == "table3") & (cells["column"] == "bleu")].iloc[0]
    assert bleu["value"] == load_study(made.path).runs[0].result["test"]["bleu"]
    assert np.isnan(bleu["low"])


@pytest.mark.slow
def test_a_study_of_five_hundred_runs_is_written_whole(tmp_path: Path) -> None:
    study = full_study(tmp_path / "s", table="table3+scaling+positions", seeds=range(1, 20))
    write_exports(load_studies([study.path]), tmp_path / "out")
    assert len(pd.read_csv(tmp_path / "out" / "data" / "runs.csv")) == 27 * 19
    assert len(pd.read_csv(tmp_path / "out" / "tables" / "table3.csv")) == 27


def one_run(path: Path, **result: Any) -> Path:
    made = SyntheticStudy(path, base=tiny_config(seed=len(path.name)))
    made.variant("base", "base", "base", {})
    made.run(tiny_config(seed=1))
    made.run(tiny_config(seed=2), **result)
    return made.write()


@pytest.mark.slow
def test_one_command_reports_several_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full_study(tmp_path / "other", scale="multi30k-cpu", only=["base"], seeds=(1,))
    studies = [str(one_run(tmp_path / "one")), str(tmp_path / "other")]
    assert ablate(["report", *studies, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'index.html'}\n"
    assert set(pd.read_csv(tmp_path / "out" / "data" / "runs.csv")["study"]) == {"one", "other"}
    assert ablate(["report", *studies]) == 2
    assert "--out" in capsys.readouterr().err


def test_the_command_refuses_mixed_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = str(one_run(tmp_path / "s", test={"reference_sha256": "0" * 64}))
    assert ablate(["report", study]) == 3
    shown = capsys.readouterr().err
    assert "different test references" in shown
    assert shown.count("\n") == 1


@pytest.mark.slow
def test_the_command_shows_mixed_scores_when_asked(tmp_path: Path) -> None:
    study = str(one_run(tmp_path / "s", test={"reference_sha256": "0" * 64}))
    assert ablate(["report", study, "--mixed"]) == 0
    assert list(pd.read_csv(tmp_path / "s" / "report" / "tables" / "table3.csv")["marks"]) == ["§"]
