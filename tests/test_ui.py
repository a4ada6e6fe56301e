"""`ablate ui` serves a study's pages on this machine and says where they are; the pages show what they should."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from chromium import Tab, browser_tab
from tracking_study import MadeStudy

from ablations import ui
from ablations.study import Study
from ablations.tracking import open_tracking
from ablations.tracking.marker import Marker
from ablations.tracking.pages import COLUMNS, Pages, view_tag
from ablations.tracking.records import StudyRecord
from ablations.ui import addresses, best_children, free_port, newest_study, running_server, serve_ui, ui_command
from repro.errors import CheckError, UsageError


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> MadeStudy:
    """Four finished variants, one of them with two seeds, and one that diverged; synced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        made = MadeStudy(tmp_path_factory.mktemp("studies") / "demo", rows=5, seeds=2)
        for place, id in enumerate(made.ids[:6]):
            if made.configs[id].variant != "positions.none":
                made.complete(id, bleu=90.0 - place)
        diverged = next(id for id in made.ids if made.configs[id].variant == "positions.none")
        made.start(diverged)
        made.log(diverged, 10, 20)
        made.end(diverged, "diverged", "20 updates with a loss of nan")
        assert open_tracking(made.path).sync().complete
    return made


def test_the_server_is_for_this_machine_only(tmp_path: Path) -> None:
    command = ui_command(tmp_path, 5050)
    options = dict(zip(command[4::2], command[5::2], strict=True))
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert options == {
        "--host": "127.0.0.1",
        "--port": "5050",
        "--workers": "1",
        "--backend-store-uri": f"sqlite:///{tmp_path}/mlflow.db",
        "--artifacts-destination": f"{tmp_path}/mlartifacts",
    }


def test_a_password_is_on_no_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me:secret@db/mlflow")
    assert not any("secret" in word for word in ui_command(tmp_path, 5050))


def test_a_taken_port_is_replaced() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        assert free_port(taken) not in (taken, 0)
    assert free_port(taken) == taken


def test_without_a_name_the_newest_study_is_shown(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study yet"):
        newest_study(tmp_path)
    old, new = (MadeStudy(tmp_path / name, rows=1).path for name in ("old", "new"))
    os.utime(old / "study.json", (1, 1))
    assert newest_study(tmp_path) == new


def test_the_comparison_shows_the_best_run_of_each_variant_best_first(study: MadeStudy) -> None:
    record = StudyRecord(study=Study.load(study.path))
    marker = Marker.load(study.path, "mlflow.db")
    names = {mark.child: id for id, mark in marker.runs.items()}
    shown = [names[child] for child in best_children(record, marker)]
    assert shown == study.ids[:4]  # base, A.h1, A.h2, C.ff-half with seed 1; positions.none has no score


def test_addresses_say_where_runs_charts_and_comparison_are(study: MadeStudy) -> None:
    lines = dict(line.split(": ", 1) for line in addresses(study.path, "http://127.0.0.1:5050"))
    assert lines.keys() == {"Runs", "Charts", "Study", "Comparison"}
    assert all(line.strip().startswith("http://127.0.0.1:5050/#/") for line in lines.values())
    comparison = parse_qs(urlsplit(urlsplit(lines["Comparison"].strip()).fragment).query)
    assert len(json.loads(comparison["runs"][0])) == 4
    assert len(json.loads(comparison["experiments"][0])) == 1


def test_an_unsynced_study_has_no_addresses_yet(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    assert "nothing of this study is there yet" in addresses(study.path, "http://x")[0]


def test_the_saved_view_sorts_by_bleu_and_shows_units(study: MadeStudy) -> None:
    name, value = view_tag(StudyRecord(study=Study.load(study.path)))
    view = json.loads(value)
    state = json.loads(view["state"])
    assert name.startswith("mlflow.sharedViewState.")
    assert view["name"] == "Scores of demo"
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`test/bleu`", False)
    assert state["selectedColumns"] == list(COLUMNS)
    assert len(value) < 5000


def test_without_a_database_no_server_is_started(tmp_path: Path) -> None:
    study = MadeStudy(tmp_path / "study", rows=1)
    with pytest.raises(CheckError, match="ablate sync"), running_server(study.path, 0):
        pass


def test_a_port_that_another_process_takes_meanwhile_is_given_up_for_the_next(
    study: MadeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        ports = iter([first])
        whole = ui.free_port
        monkeypatch.setattr(ui, "free_port", lambda port: next(ports, 0) or whole(port))
        with running_server(study.path, 0) as (url, _):
            assert not url.endswith(f":{first}")
            with urllib.request.urlopen(f"{url}/health") as answer:
                assert answer.status == 200


def test_the_command_serves_until_told_to_end_and_other_studies_can_be_tracked_there(
    study: MadeStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from pathlib import Path; from ablations.ui import serve_ui; serve_ui(Path({str(study.path)!r}), port=0)"
    process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(5)]
    assert said[-1] == "Ctrl-C ends it.\n"
    url = said[0].split()[1].partition("/#/")[0]
    with urllib.request.urlopen(f"{url}/health") as answer:
        assert answer.status == 200

    # With a server set, the addresses are there, and no second server is started.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    other = MadeStudy(tmp_path / "other", rows=1, created="2026-02-01T00:00:00+00:00")
    other.complete(other.ids[0])
    pointed: list[str] = []
    serve_ui(other.path, say=pointed.append)
    assert [line.split()[0] for line in pointed] == ["Runs:", "Charts:", "Study:"]
    assert pointed[0].split()[1].startswith(f"{url}/#/experiments/")

    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{url}/health")


@pytest.mark.slow
def test_the_pages_in_a_browser_show_parent_children_and_comparison(study: MadeStudy) -> None:
    with running_server(study.path, 0) as (url, _):
        record = StudyRecord(study=Study.load(study.path))
        marker = Marker.load(study.path, "mlflow.db")
        assert marker.parent is not None
        pages = Pages(server=url, experiment=marker.parent.experiment, study=record.id)
        scored = ["base seed 1", "A.h1 seed 1", "A.h2 seed 1", "C.ff-half seed 1"]
        wanted = {
            pages.nested: ["demo", "matching runs"],
            pages.runs: [*scored, "test/bleu", "train/target_tokens_per_second"],
            pages.charts: ["Scores", "test/bleu", "valid/bleu", "A.h2 seed 1"],
            pages.run(marker.parent.id): ["Child runs", "positions.none seed 1", "study/runs_done"],
            pages.compare(best_children(record, marker)): ["Comparing 4 Runs", *scored, "test/bleu"],
        }
        texts = asyncio.run(_texts(wanted))
    assert sorted(scored, key=texts[pages.runs].index) == scored  # the best test BLEU first


async def _texts(wanted: dict[str, list[str]]) -> dict[str, str]:
    """The text of each page once it holds all the words wanted there."""
    async with browser_tab() as tab:
        return {url: await _text(tab, url, words) for url, words in wanted.items()}


async def _text(tab: Tab, url: str, words: list[str]) -> str:
    await tab.call("Page.navigate", url="about:blank")
    await tab.call("Page.navigate", url=url)
    text = ""
    for _ in range(240):
        text = await tab.text()
        if all(word in text for word in words):
            return text
        await asyncio.sleep(0.25)
    missing = [word for word in words if word not in text]
    raise AssertionError(f"{unquote(url)} lacks {missing}; it shows: {text[:2000]}")
