"""A study as a job of a real Ray cluster of two nodes, and of servers that are none, too old, or forget to answer."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import socket
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from held_runs import go_on, hold, let_go_once_asked
from ray_commands import Command, begun
from ray_nodes import Nodes
from small_corpus import small_corpus
from small_study import bits, frozen, settings, small_study, wait_for

from ablations.cli import run as ablate
from ablations.storage.away import SCRATCH, step_of
from ablations.study import Study
from ablations.submit import jobserver, rays
from ablations.submit.frozen import submissions
from ablations.submit.jobserver import Job, JobServer, job_address
from ablations.submit.queued import queued
from ablations.submit.rays import Wanted
from ablations.submit.snapshot import snapshot
from repro.data.prepared import Prepared
from repro.errors import CheckError, UsageError
from repro.runs import attempts
from repro.runs.execute import execute

ROWS = ["base", "A.h1"]
LONG, PACE = 1000, "train.evaluate_every=500"
"""Enough steps to be met in the middle, also by a wish to stop that is looked for once a second."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


# Addresses, packages, reasons.


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ray://head:10001", "is the address of Ray's client"),
        ("head:8265", "is no address of a job server"),
        ("head", "is no address of a job server"),
        ("http://", "is no address of a job server"),
        ("http://head:99999", "is no address of a job server"),
        ("http://head:8265/jobs", "is no address of a job server"),
        ("ftp://head:8265", "is no address of a job server"),
    ],
)
def test_an_address_that_cannot_be_a_job_servers_is_told_in_one_line(address: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        job_address(address)
    assert told in str(caught.value)
    assert "http://HOST:8265" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_server_that_is_not_there_is_told_in_one_line() -> None:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with pytest.raises(CheckError, match="no job server answers") as caught:
        JobServer(address)
    assert "\n" not in str(caught.value)


def test_the_package_holds_the_whole_snapshot_is_always_the_same_and_no_larger_than_ray_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

    assert jobserver.UPLOAD_LIMIT == DASHBOARD_CLIENT_MAX_SIZE
    code = snapshot(tmp_path)
    with rays._packed(code) as package, zipfile.ZipFile(package) as archive:
        content, names = package.read_bytes(), archive.namelist()
    assert {code.path / name for name in names} == {path for path in code.path.rglob("*") if path.is_file()}
    (code.path / "repro" / "__pycache__").mkdir()
    (code.path / "repro" / "__pycache__" / "x.pyc").write_text("left by a run")
    with rays._packed(code) as package:
        assert package.read_bytes() == content
    monkeypatch.setattr(rays, "UPLOAD_LIMIT", len(content))
    with pytest.raises(CheckError, match="to upload, Ray takes less than"), rays._packed(code):
        pass


def test_the_reason_of_a_failed_job_is_what_ablate_said_last() -> None:
    message = "Job entrypoint command failed with exit code 3, last available logs:\njoining\nablate: node a: no disk\n"
    assert Job(state="FAILED", message=message, exit_code=3).reason == "node a: no disk"
    assert Job(state="FAILED", message="The driver died\n  out of memory\n").reason == "out of memory"
    assert Job(state="SUCCEEDED", message="Job finished successfully.").reason == ""


# Servers that are not as they should be.


class Pretender:
    """Answers as told where a job server should be."""

    def __init__(self, version: str = "2.60.0", status: int = 200, page: str | None = None) -> None:
        self.taken: list[dict[str, Any]] = []
        self.job: dict[str, Any] = {"status": "RUNNING", "message": ""}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = [job for job in outer.taken if self.path.endswith(f"/api/jobs/{job['submission_id']}")]
                if self.path == "/api/version":
                    self._say(status, page or json.dumps({"ray_version": version, "version": "4"}))
                elif self.path.startswith("/api/packages/"):
                    self._say(200, "true")
                elif known:
                    self._say(200, json.dumps(outer.job))
                else:
                    self._say(404, "no such job")

            def do_POST(self) -> None:
                outer.taken.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.connection.shutdown(socket.SHUT_RDWR)  # taken, and never answered
                self.close_connection = True

            def _say(self, code: int, text: str) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ({"version": "2.9.3"}, r"runs Ray 2\.9\.3, wanted is 2\.60 to below 3"),
        ({"version": "3.0.1"}, r"runs Ray 3\.0\.1, wanted is 2\.60 to below 3"),
        ({"page": "<html>a printer</html>"}, "is no job server of Ray"),
        ({"page": "{}"}, "is no job server of Ray"),
        ({"status": 500}, "is no job server of Ray"),
        ({"status": 401}, r"wants a token.*RAY_AUTH_TOKEN"),
        ({"status": 403}, r"wants a token.*RAY_AUTH_TOKEN"),
    ],
)
def test_a_server_that_is_too_old_or_none_of_rays_is_told_in_one_line(answers: dict[str, Any], told: str) -> None:
    with closing(Pretender(**answers)) as pretender:
        with pytest.raises(CheckError, match=told) as caught:
            JobServer(pretender.address)
        assert "\n" not in str(caught.value)
        assert pretender.address in str(caught.value)


def test_a_job_whose_answer_was_lost_is_adopted_and_not_handed_in_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # which Ray's own client would rather believe
    package = tmp_path / "code.zip"
    with zipfile.ZipFile(package, "w") as archive:
        archive.writestr("code.py", "")
    with closing(Pretender()) as pretender:
        server = JobServer(pretender.address)
        server.submit("t0", "true", package, {}, {})
        assert [job["submission_id"] for job in pretender.taken] == ["t0"]
        job = server.look("t0")
        assert job is not None
        assert job.live
        assert server.look("t1") is None


def test_how_a_job_ended_is_kept_for_clusters_forget(corpus: Prepared, tmp_path: Path) -> None:
    study = small_study(tmp_path / "s", corpus, ["base"])
    (run,) = study.runs

    def place() -> tuple[str, str, int]:
        found = queued(study.path)
        assert found is not None
        at = found.places[run.path]
        return at.meaning, at.reason, len(found.warnings)

    with closing(Pretender()) as pretender:
        handed = frozen(study)
        dataclasses.replace(handed, mode="ray-job", request={"address": pretender.address}).write()
        assert place() == ("gone", "its cluster does not know it any more", 0)
        pretender.taken.append({"submission_id": handed.token})
        assert place() == ("running", "", 0)
        ended = {"status": "FAILED", "message": "code 3\nablate: node a: no disk", "driver_exit_code": 3}
    assert place() == ("unknown", "the job server does not answer", 1)
    said: list[str] = []
    assert rays.cancel(study.path, said.append) == []
    assert f"Ray job {handed.token} is not cancelled: --address {pretender.address}: no job server" in said[0]
    with closing(Pretender()) as pretender:
        dataclasses.replace(handed, mode="ray-job", request={"address": pretender.address}).write()
        pretender.taken.append({"submission_id": handed.token})
        pretender.job = ended
        assert place() == ("failed", "node a: no disk", 0)
    assert place() == ("failed", "node a: no disk", 0)


@pytest.mark.parametrize(
    ("storage", "code", "told"),
    [("bucket/prefix", 2, "is no URL"), ("gs://bucket/x", 3, "no package for gs:// is installed (pip install gcsfs")],
)
def test_a_store_that_cannot_be_used_here_is_refused_before_anything_is_done(
    storage: str,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    words = ["submit", "ray", "demo", "--scale", "smoke", "--address", "http://127.0.0.1:1"]
    assert ablate([*words, "--study", str(tmp_path / "s"), "--storage", storage]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not (tmp_path / "s").exists()


def test_new_rows_do_not_go_where_a_job_of_the_study_has_its_runs(
    corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ABLATE_DATA", str(corpus.directory.parent.parent))
    path, url = tmp_path / "s", f"file://{tmp_path}/store"
    handed = frozen(small_study(path, corpus, ["base"]))
    with closing(Pretender()) as pretender:
        dataclasses.replace(handed, mode="ray-job", request={"address": pretender.address, "storage": url}).write()
        pretender.taken.append({"submission_id": handed.token})
        words = ["submit", "ray", "table3", "--scale", "smoke", "--only", "base,A.h1", "--study", str(path)]
        words += [word for text in settings(24) for word in ("--set", text)]
        code = ablate([*words, "--address", pretender.address, "--storage", f"{url}/"])
        captured = capsys.readouterr()
    assert code == 3, captured
    assert "base seed 1: running in job t0, not submitted again" in captured.out
    assert f"--storage {url}: Ray job t0 of this study uses this place" in captured.err
    assert [submission.token for submission in submissions(path)] == ["t0"]


# On a real cluster.


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Each node's own."""
    return [tmp_path_factory.mktemp(name) for name in ("head", "other")]


@pytest.fixture(scope="module")
def cluster(disks: list[Path]) -> Iterator[Nodes]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with Nodes(jobs=True, environment={"PATH": path, SCRATCH: str(disks[0])}) as nodes:
        nodes.add(environment={SCRATCH: str(disks[1])})
        yield nodes


@pytest.fixture(autouse=True)
def no_command_stays() -> Iterator[None]:
    yield
    Command.end_all()


def request(study: Path | str, cluster: Nodes, budget: int, *more: str) -> list[str]:
    """The words that hand the rows in."""
    words = ["submit", "ray", "table3+positions+scaling", "--scale", "smoke", "--only", ",".join(ROWS)]
    words += [word for text in settings(budget, *([PACE] if budget == LONG else [])) for word in ("--set", text)]
    return [*words, "--study", str(study), "--address", cluster.job_server, *more]


def states(study: Path) -> dict[str, int]:
    """How many runs are in each state of their jobs, as `status` counts them."""
    found = queued(study)
    assert found is not None
    assert not found.warnings
    counts: dict[str, int] = found.document()["counts"]
    return counts


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_on_a_disk_of_its_own_is_done_through_a_store_cancelled_and_handed_in_again(
    cluster: Nodes,
    disks: list[Path],
    corpus: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A path that leads each process to the place where it was started stands for a disk that is not shared.
    here, study, budget = Path("/proc/self/cwd"), tmp_path / "study", 300
    shutil.copytree(corpus.directory.parent.parent, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABLATE_DATA", str(here / "data"))
    words = request(here / "study", cluster, budget, "--storage", f"file://{tmp_path}/store")

    def taken() -> bool:
        lists = list((tmp_path / "store" / "runs").glob("*/list.json"))
        return len(lists) == 2 and all(json.loads(path.read_bytes())["attempt"] > 0 for path in lists)

    # Cancelled while it is at work and nobody follows: what was saved comes home.
    assert ablate([*words, "--no-follow"]) == 0
    wait_for(taken, "somebody at each run")
    runs = {run.variant: run.directory for run in Study.load(study).runs}
    assert {run.status().state for run in runs.values()} == {"planned"}
    assert ablate(["cancel", str(study)]) == 0
    left = {variant: run.status() for variant, run in runs.items()}
    assert {status.state for status in left.values()} <= {"stopped", "done"}  # done: on a machine that is quick
    assert all(step_of(run) == (1, left[variant].step) for variant, run in runs.items())

    # The same words: gone on with to the end, followed, the same bits as without any cluster.
    capsys.readouterr()
    assert ablate(words) == 0, capsys.readouterr()
    assert f"Ray job {submissions(study)[1].token}: succeeded" in capsys.readouterr().out
    for variant, run in runs.items():
        ended = [claim.ended for claim in attempts.claims(run)]
        assert ended == (["stopped", "done"] if left[variant].state == "stopped" else ["done"])
    (local,) = small_study(tmp_path / "local", corpus, ROWS[:1], budget).runs
    execute(local.directory)
    assert bits(runs["base"]) == bits(local.directory)
    assert (study / "report" / "index.html").is_file()
    assert states(study) == {"ended": 2}
    for disk in disks:
        assert not [path for path in disk.rglob("*") if path.name in ("study.json", "config.json", "status.json")]

    # Nothing is left to do, and the store is not asked.
    shutil.rmtree(tmp_path / "store")
    assert ablate(words) == 0
    assert "nothing is missing, nothing is run" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_is_handed_in_followed_cancelled_and_handed_in_again_and_loses_a_node_and_no_bit(
    cluster: Nodes,
    corpus: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ABLATE_DATA", str(corpus.directory.parent.parent))
    study = tmp_path / "study"

    # Followed until Ctrl-C, which leaves the job alone.
    follower = Command(*request(study, cluster, LONG), corpus=corpus)
    assert follower.process.stdout is not None
    for line in follower.process.stdout:
        if "joining the Ray" in line:
            break
    follower.process.send_signal(signal.SIGINT)
    code, output = follower.end()
    assert code == 1, output
    (first,) = submissions(study)
    assert f"Ray job {first.token} goes on" in output

    # The same words: no second job.
    held = hold(lambda: begun(study), 2)  # a run on each node
    assert ablate(request(study, cluster, LONG, "--no-follow")) == 0
    assert f"running in job {first.token}, not submitted again" in capsys.readouterr().out
    assert [handed.token for handed in submissions(study)] == [first.token]
    assert states(study) == {"running": 2}

    # Cancelled: saved, and said.
    cancelling = Command("cancel", str(study), corpus=corpus)
    let_go_once_asked(held, study)
    code, output = cancelling.end()
    assert code == 0, output
    assert f"{study}: cancelled Ray job {first.token}" in output
    stopped = {run.variant: run.directory.status() for run in Study.load(study).runs}
    assert {status.state for status in stopped.values()} == {"stopped"}
    assert all("saved at step" in status.reason for status in stopped.values())
    assert states(study) == {"ended": 2}

    # Handed in again: another job goes on from there, and loses a node.
    follower = Command(*request(study, cluster, LONG), corpus=corpus)
    held = hold(lambda: begun(study, attempt=2), 2)
    pids = cluster.nodes[1].pids()
    cluster.nodes[1].kill()
    go_on(held)
    code, output = follower.end()
    assert code == 0, output
    assert len(submissions(study)) == 2
    assert f"Ray job {submissions(study)[1].token}: succeeded" in output
    claims = {run.variant: attempts.claims(run.directory) for run in Study.load(study).runs}
    lost = [claim for of_run in claims.values() for claim in of_run if claim.owner and claim.owner.pid in pids]
    assert len(lost) == 1
    assert states(study) == {"ended": 2}

    local = small_study(tmp_path / "local", corpus, ROWS[:1], LONG, PACE)
    for run in local.runs:
        execute(run.directory)
    there = {run.variant: run.directory for run in Study.load(study).runs}
    for run in local.runs:
        assert bits(there[run.variant]) == bits(run.directory)
        environment = there[run.variant].environment()
        assert environment is not None
        assert environment["code"]["snapshot"].startswith(submissions(study)[1].code.rpartition("/")[2])
    assert (study / "report" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_that_the_head_does_not_see_is_refused_and_the_one_who_handed_it_in_is_told(
    cluster: Nodes, corpus: Prepared, tmp_path: Path
) -> None:
    # A path that leads each process to the place where it was started stands for a disk that is not shared.
    here = Path("/proc/self/cwd/study")
    code, output = Command(*request(here, cluster, 4), corpus=corpus, cwd=tmp_path).end()
    assert code == 3, output
    assert f"failed (the head does not see {here}" in output.splitlines()[-1]
    assert "Traceback" not in output
    (run, _) = Study.load(tmp_path / "study").runs
    assert run.directory.status().state == "planned"


def test_what_would_be_handed_in_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    from ablations.selection import choose

    study = tmp_path / "s"
    wanted = Wanted(address="http://head:8265", python="/opt/p y/bin/python")
    lines = rays.shown(choose("demo", "smoke"), path=study, wanted=wanted)
    assert lines[0] == "job server: http://head:8265"
    assert f"'/opt/p y/bin/python' -m ablations work {study} --submission" in lines[1]
    assert "--storage" not in lines[1]
    travelling = dataclasses.replace(wanted, storage="s3://bucket/prefix")
    assert rays.shown(choose("demo", "smoke"), path=study, wanted=travelling)[1].endswith(
        "--storage s3://bucket/prefix"
    )
    assert not study.exists()
