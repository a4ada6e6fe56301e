"""Whatever answers at the address of an MLflow server, `ablate pull` ends with one line and brings nothing of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ablations.cli import run as ablate

EXPERIMENT = {
    "experiment_id": "1",
    "name": "x",
    "artifact_location": "mlflow-artifacts:/1",
    "lifecycle_stage": "active",
}


class Stranger(BaseHTTPRequestHandler):
    """Answers every request with what its server has for the end of the path, or for all."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answers: dict[str, bytes] = self.server.answers  # type: ignore[attr-defined]
        body = next((answer for path, answer in answers.items() if path in self.path), b"{}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "300")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def a_study(study: str, uri: str) -> dict[str, object]:
    tags = {"ablate.kind": "study", "ablate.study_id": study, "ablate.study": "s", "ablate.created": "yesterday"}
    info = {"run_id": "r" * 32, "experiment_id": "1", "status": "FINISHED", "lifecycle_stage": "active"}
    data = {"tags": [{"key": key, "value": value} for key, value in tags.items()]}
    return {"info": info | {"artifact_uri": uri}, "data": data}


def test_a_stranger_is_told_in_one_line_and_leaves_nothing(
    stranger: ThreadingHTTPServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"experiments/search": json.dumps({"experiments": [EXPERIMENT]}).encode()}
    no_end = {"experiments/search": json.dumps({"experiments": [EXPERIMENT], "next_page_token": "t"}).encode()}
    one = a_study("abc", "mlflow-artifacts:/1/r/artifacts")
    study = found | {"runs/search": json.dumps({"runs": [one]}).encode(), "runs/get": json.dumps({"run": one}).encode()}
    outside = {"mlflow-artifacts": json.dumps({"files": [{"path": "../../outside", "is_dir": False}]}).encode()}
    strangers: list[tuple[dict[str, bytes], int, str]] = [
        ({"": b"<html>hello</html>"}, 3, "not in a valid JSON format"),
        ({"": b"[1, 2]"}, 3, "not in a valid JSON format"),
        ({"": 100_000 * b"["}, 3, "not in a valid JSON format"),
        ({"": b"{}"}, 2, "no experiment 'x'"),
        (no_end, 3, "its pages have no end"),
        (found, 3, "no study there"),
        (study, 3, "study.json of the study abc there"),
        (study | outside, 3, "study.json of the study abc there"),
    ]
    place = tmp_path / "in" / "here"
    for answers, code, told in strangers:
        stranger.answers = answers  # type: ignore[attr-defined]
        uri = f"http://127.0.0.1:{stranger.server_port}"
        assert ablate(["pull", "--experiment", "x", "--study", str(place), "--tracking-uri", uri]) == code
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1, said
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".tracking.lock"]
