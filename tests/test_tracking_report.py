"""Where a server shows a study it shows the study's newest report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reports_study import full_study

from ablations.cli import run as ablate
from ablations.tracking import open_tracking
from reports.pages.page import write_report


@pytest.fixture
def study(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study whose tracking goes to a real server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")
    states = {("A.h1", 2): ("stopped", "SIGTERM")}
    return full_study(tmp_path / "study", only=("base", "A.h1"), seeds=(1, 2), states=states).path


def shown(server: str, study: Path, folder: Path) -> dict[str, bytes]:
    """The report as the server gives it out, by file name."""
    from mlflow import MlflowClient

    parent = json.loads((study / "tracking.json").read_text())["stores"][server]["parent"]["id"]
    folder.mkdir()
    return files(Path(MlflowClient(tracking_uri=server).download_artifacts(parent, "report", str(folder))))


def files(report: Path) -> dict[str, bytes]:
    return {path.relative_to(report).as_posix(): path.read_bytes() for path in report.rglob("*.*")}


def test_a_new_report_and_a_sync_bring_the_newest_report_to_the_server(
    server: str, study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert open_tracking(study).sync().complete
    assert ablate(["report", str(study)]) == 0
    told = capsys.readouterr()
    assert (told.out.strip(), told.err) == (str(study / "report" / "index.html"), "")
    first = shown(server, study, tmp_path / "first")
    assert {"index.html", "report.md", "tables/table3.tex", "data/runs.csv", "figures/difference.png"} <= first.keys()
    assert first == files(study / "report")

    write_report(study)  # tells of what MLflow has by now, and of nothing else
    result = next((study / "runs").glob("base-s1-*")) / "result.json"
    document = json.loads(result.read_text())
    document["test"]["bleu"] -= 1.0
    result.write_text(json.dumps(document), encoding="utf-8")
    write_report(study)
    assert files(study / "report")["index.html"] != first["index.html"]
    assert ablate(["sync", str(study)]) == 0
    assert shown(server, study, tmp_path / "second") == files(study / "report")


def test_a_study_that_the_server_does_not_have_stays_its_owners(
    server: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    before = {found.name for found in MlflowClient(tracking_uri=server).search_experiments()}
    assert ablate(["report", str(study)]) == 0
    assert capsys.readouterr().err == ""
    assert {found.name for found in MlflowClient(tracking_uri=server).search_experiments()} == before
    assert not (study / "tracking.json").exists()


def test_a_server_that_is_away_keeps_nobody_from_the_report(
    server: str, study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert open_tracking(study).sync().complete
    marker = study / "tracking.json"
    away = "http://127.0.0.1:9"
    marker.write_text(marker.read_text().replace(server, away), encoding="utf-8")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", away)
    assert ablate(["report", str(study)]) == 0
    told = capsys.readouterr()
    assert Path(told.out.strip()).is_file()
    assert len(told.err.splitlines()) == 1
    assert f"MLflow still shows an earlier report: MLflow at {away}: nothing listens there" in told.err
    assert "ablate sync" in told.err
