"""`ablate ui`: MLflow's pages for a study, served on this machine only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ablations.study import PLAN, STUDIES, Study
from ablations.tracking import open_tracking
from ablations.tracking.marker import Marker
from ablations.tracking.pages import Pages
from ablations.tracking.records import StudyRecord
from ablations.tracking.stores import ARTIFACTS, has_schema, store_of
from repro.errors import CheckError, UsageError

HOST = "127.0.0.1"
PORT = 5000
MOST_COMPARED = 10
"""Runs on the comparison page: more make it unreadable."""
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_TRIES = 3
_PORT_TAKEN = "already in use"
_SETTINGS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def ui_command(study_dir: Path, port: int) -> list[str]:
    """The command that serves the store of the study on 127.0.0.1:`port`."""
    store = store_of(study_dir)
    artifacts = store.artifacts or study_dir.resolve() / ARTIFACTS
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    command += ["--artifacts-destination", str(artifacts)]
    if store.database is not None:  # another database's address may hold a password: it goes by the environment
        command += ["--backend-store-uri", store.uri]
    return command


def serve_ui(study_dir: Path | None = None, *, port: int = PORT, say: Callable[[str], None] = print) -> None:
    """Show where the pages of a study are, serving them until Ctrl-C unless a server does so already.

    Without `study_dir`: the study that changed last under studies/. Raises UsageError or CheckError when there is
    nothing to show.
    """
    study = study_dir if study_dir is not None else newest_study()
    tracking = open_tracking(study)
    report = tracking.sync()
    for problem in report.problems:
        say(problem)
    if tracking.store.server:
        for line in addresses(study, tracking.store.name):
            say(line)
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with running_server(study, port, say) as (url, process):
            for line in addresses(study, url):
                say(line)
            say("Ctrl-C ends it.")
            process.wait()
    except KeyboardInterrupt:
        say("ended")
    finally:
        signal.signal(signal.SIGTERM, before)


def newest_study(root: Path = STUDIES) -> Path:
    """The study under `root` whose plan or marks changed last. Raises UsageError when there is none."""
    studies = [plan.parent for plan in root.glob(f"*/{PLAN}")]
    found = [(max(path.stat().st_mtime for path in study.glob("*.json")), study) for study in studies]
    if not found:
        raise UsageError("there is no study yet", where=str(root), fix="name one, or make one with `ablate run`")
    return max(found)[1]


def addresses(study_dir: Path, server: str) -> list[str]:
    """Lines that say where on `server` the study's pages are, best runs first in the comparison."""
    record = StudyRecord(study=Study.load(study_dir))
    marker = Marker.load(study_dir, store_of(study_dir).key)
    if marker.parent is None:
        return [f"MLflow: {server} (nothing of this study is there yet)"]
    pages = Pages(server=server, experiment=marker.parent.experiment, study=record.id)
    lines = [
        f"Runs:       {pages.runs}",
        f"Charts:     {pages.charts}",
        f"Study:      {pages.run(marker.parent.id)}",
    ]
    best = best_children(record, marker)
    return [*lines, f"Comparison: {pages.compare(best)}"] if len(best) > 1 else lines


def best_children(record: StudyRecord, marker: Marker) -> list[str]:
    """MLflow ids of each variant's best finished run, highest test BLEU first, at most MOST_COMPARED."""
    best: dict[str, tuple[float, str]] = {}
    for run in record.study.runs:
        mark = marker.runs.get(run.id)
        if mark is None or mark.state != "done":
            continue
        try:
            result = run.directory.result() or {}
        except CheckError:
            continue
        score = float(result.get("test", {}).get("bleu", 0.0))
        best[run.variant] = max(best.get(run.variant, (-1.0, "")), (score, mark.child))
    return [child for _, child in sorted(best.values(), reverse=True)][:MOST_COMPARED]


@contextmanager
def running_server(
    study_dir: Path, port: int = PORT, say: Callable[[str], None] = print
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of the study's store, as (address, process), ended on leaving. Another port if `port` is taken.

    `port` 0: any. Raises CheckError when there is nothing to serve, or with the server's own words when it does not
    start.
    """
    database = store_of(study_dir).database
    if database is not None and not has_schema(database):  # the server would try for minutes
        raise CheckError("no MLflow database", where=str(database), fix=f"run `ablate sync {study_dir}`")
    with tempfile.TemporaryFile() as output:
        url, process = _started(study_dir, port, say, output)
        try:
            yield url, process
        finally:
            _stop(process)


def _started(
    study_dir: Path, port: int, say: Callable[[str], None], output: IO[bytes]
) -> tuple[str, subprocess.Popen[bytes]]:
    """A server that answers, and its address. Where another process took the port meanwhile, on the next free one."""
    store = store_of(study_dir)
    environment = os.environ | _SETTINGS
    if store.database is None:
        environment["MLFLOW_BACKEND_STORE_URI"] = store.uri
    for left in reversed(range(_TRIES)):
        free = free_port(port)
        if port not in (0, free):
            say(f"port {port} is taken, {free} is used")
        output.seek(0)
        output.truncate()
        process = subprocess.Popen(
            ui_command(study_dir, free),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # a group of its own, so that its workers end with it
        )
        url = f"http://{HOST}:{free}"
        try:
            _await(url, process, lambda: _words(output))
            return url, process
        except CheckError:
            _stop(process)
            if not left or _PORT_TAKEN not in _words(output):
                raise
        except BaseException:
            _stop(process)
            raise
    raise AssertionError("the last try raises")


def free_port(port: int) -> int:
    """`port` if nobody listens there, else one that the system picks."""
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, candidate))
                return int(probe.getsockname()[1])
    raise CheckError("no port is free", where=HOST)


def _await(url: str, process: subprocess.Popen[bytes], words: Callable[[], str]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise CheckError(f"the MLflow server ended at once: {words()}", where=url)
        # A proxy of the environment has no business between this machine and itself.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError), opener.open(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise CheckError(f"the MLflow server does not answer: {words()}", where=url)


def _words(output: IO[bytes]) -> str:
    """The last line that tells of an error, or the last one."""
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").strip().split("\n")
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1]).strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
