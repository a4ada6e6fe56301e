"""Runs that travel through a store, as where nodes share no disk: each worker here has nothing but the store."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from held_runs import go_on, hold
from ray_commands import Command
from ray_nodes import Nodes
from rich.console import Console
from small_corpus import small_corpus
from small_study import bits, frozen, settings, small_study, wait_for

from ablations import worker
from ablations.cli import run as ablate
from ablations.nodes import Shared
from ablations.progress import Teller
from ablations.storage.away import SCRATCH
from ablations.storage.home import Home
from ablations.storage.lease import LEASE, Lease
from ablations.storage.objects import Objects, StorageError
from ablations.storage.trees import LIST, Tree
from ablations.study import Study
from ablations.submit import stored
from ablations.submit.frozen import Frozen
from ablations.worker import Order
from repro.data.prepared import Prepared
from repro.errors import CheckError, UsageError
from repro.runs import attempts
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute
from repro.runs.processes import Process


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def no_command_stays() -> Iterator[None]:
    yield
    Command.end_all()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket on an S3 server."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True).mkdir("runs")
    yield "s3://runs/prefix"
    server.stop()


@pytest.fixture(autouse=True)
def own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own disk; and everybody looks around often."""
    monkeypatch.setenv(SCRATCH, str(tmp_path / "node"))
    for module in ("home", "away"):
        monkeypatch.setattr(f"ablations.storage.{module}._LOOK_SECONDS", 0.1)


def home(url: str, study: Study, *, stop: threading.Event | None = None, sweep: str = "sweep") -> Home:
    event = stop or threading.Event()
    return Home(url, study, study.runs, sweep=sweep, asked=event.is_set, stop=event.set)


def order(of: Home, study: Study) -> Order:
    """For a worker that sees nothing of the study."""
    run = Path("/nowhere/runs") / study.runs[0].path.name
    driver = replace(Process.current(), host="elsewhere").document()
    return Order(run=str(run), stop="/nowhere/stop", driver=driver, sweep="sweep", storage=of.place())


def test_a_run_that_travelled_is_stopped_on_one_node_ends_on_another_and_is_the_run_of_one_machine(
    url: str, corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 1000
    study, local = small_study(tmp_path / "s", corpus, ["base"], budget), tmp_path / "t"
    (run,), stop = study.runs, threading.Event()
    monkeypatch.setattr(worker.nodes, "this_node", lambda: "")  # there is no Ray around
    with home(url, study, stop=stop) as place:
        watcher = threading.Thread(
            target=lambda: (wait_for(lambda: list((tmp_path / "node").rglob("metrics.jsonl")), "a step"), stop.set())
        )
        watcher.start()
        told = worker.work(order(place, study))
        watcher.join()
        assert told["state"] == "stopped", told
        place.fetch()
    assert 0 < run.directory.status().step < budget
    assert next(run.directory.checkpoints.glob("step-*"))
    assert not list((tmp_path / "node").glob("*/runs/*/status.json"))

    monkeypatch.setenv(SCRATCH, str(tmp_path / "another"))
    with home(url, study, sweep="again") as place:
        assert worker.work(order(place, study))["state"] == "done"
        place.fetch()
    assert [claim.ended for claim in attempts.claims(run.directory)] == ["stopped", "done"]
    (undisturbed,) = small_study(local, corpus, ["base"], budget).runs
    execute(undisturbed.directory)
    assert bits(run.directory) == bits(undisturbed.directory)
    assert not (tmp_path / "store" / LEASE).exists()
    assert not list((tmp_path / "store" / "stop").iterdir())


def test_an_s3_store_keeps_what_it_was_given_and_shows_every_writer_the_newest(s3: str, tmp_path: Path) -> None:
    ours, theirs = Objects(s3), Objects(s3)
    for content in (b"first", b"second"):
        ours.write("a/name", content)
        assert theirs.read("a/name") == content
    (tmp_path / "file").write_bytes(b"x" * 2**20)
    ours.send(tmp_path / "file", "large")
    assert theirs.fetch("large", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"x" * 2**20
    ours.remove("a/name")
    ours.remove("a/name")
    assert theirs.read("a/name") is None
    assert not theirs.fetch("a/name", tmp_path / "none")
    assert Shared.stored(s3).fault() == ""

    local = tmp_path / "run"
    (local / "attempts").mkdir(parents=True)
    for number in (1, 2):
        (local / "attempts" / "0001.json").write_text(f"beat {number}")
        (local / "result.json").write_text(f"result {number}")
        Tree(objects=ours, name="r", local=local).push(attempt=number)
        Tree(objects=theirs, name="r", local=tmp_path / "there").pull()
        assert (tmp_path / "there" / "result.json").read_text() == f"result {number}"
    with Lease(ours, print), pytest.raises(CheckError, match="another driver"), Lease(theirs, print):
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ablations.storage.objects._PAUSE_SECONDS", 0.0)
        fault = Shared.stored("s3://no-such-bucket/prefix").fault()
    assert "cannot use s3://no-such-bucket/prefix: the storage fails" in fault
    assert "\n" not in fault


def test_a_reader_finds_no_result_before_all_that_it_tells_of(url: str, tmp_path: Path) -> None:
    """Whatever the store holds at the moment when a writer dies, the list in it names nothing that is not there."""
    written: list[str] = []
    local, objects = tmp_path / "run", Objects(url)

    class Dies(Objects):
        def __init__(self, writes: int) -> None:
            super().__init__(url)
            self.left = writes

        def _write(self) -> None:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1

        def send(self, path: Path, name: str) -> None:
            self._write()
            super().send(path, name)
            written.append(name)

        def write(self, name: str, content: bytes) -> None:
            self._write()
            super().write(name, content)

    def make(version: str) -> dict[str, str]:
        files = {name: f"{name} {version}" for name in ("a.txt", "checkpoints/step-1/x", "result.json", ".own")}
        for name, text in files.items():
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            (local / name).write_text(text)
        files.pop(".own")
        return files

    first = make("1")
    Tree(objects=objects, name="r", local=local).push(attempt=1)
    second = make("2")
    for writes in range(4):
        with pytest.raises(KeyboardInterrupt):
            Tree(objects=Dies(writes), name="r", local=local).push(attempt=2)
        copy = tmp_path / f"copy{writes}"
        Tree(objects=objects, name="r", local=copy).pull()
        assert {name: (copy / name).read_text() for name in first} == first
    Tree(objects=objects, name="r", local=local).push(attempt=2)
    (local / "checkpoints/step-1/x").unlink()
    Tree(objects=objects, name="r", local=copy).pull()
    assert {name: (copy / name).read_text() for name in second} == second
    assert not (copy / ".own").exists()

    # What is not listed any more goes, in the store and in every copy; what was listed and is lost is told.
    Tree(objects=objects, name="r", local=local).push(attempt=3)
    Tree(objects=objects, name="r", local=copy).pull()
    assert not (copy / "checkpoints" / "step-1").exists()
    kept = list((tmp_path / "store" / "r" / "contents").iterdir())
    assert len(kept) == 2
    kept[0].unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ablations.storage.trees._PAUSE_SECONDS", 0.0)
        with pytest.raises(StorageError, match="has lost files"):
            Tree(objects=objects, name="r", local=tmp_path / "fresh").pull()


def test_one_driver_at_a_time_uses_a_place_and_one_that_died_does_not_keep_it(url: str) -> None:
    objects, lost = Objects(url), []
    with Lease(objects, lost.append):
        with pytest.raises(CheckError, match="another driver uses this place") as caught, Lease(objects, lost.append):
            pass
        assert "\n" not in str(caught.value)
    assert objects.read(LEASE) is None
    dead = replace(Process.current(), pid=2**22 - 1, start="1").document()
    objects.write_json(LEASE, {"id": "x", "driver": dead, "time": 1e10})
    with Lease(objects, lost.append):
        pass
    silent = replace(Process.current(), host="elsewhere").document()
    objects.write_json(LEASE, {"id": "x", "driver": silent, "time": 1.0})
    with Lease(objects, lost.append):
        pass
    assert lost == []


def test_an_old_worker_that_comes_back_stores_nothing_over_its_successor(
    url: str, corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablations.storage import away

    study = small_study(tmp_path / "s", corpus, ["base"])
    with home(url, study) as place:
        where, name = away.Place(**place.place()), study.runs[0].path.name
        with away.brought(where, name, lambda: False) as (old, _, stop):
            first = attempts.claim(old)
            assert first is not None
            first.end("stopped", "away for long")
            listed = Objects(url).read_json(f"runs/{name}/{LIST}")
            Objects(url).write_json(f"runs/{name}/{LIST}", {**(listed or {}), "attempt": 2})
            wait_for(stop, "it learns of its successor")
        assert (Objects(url).read_json(f"runs/{name}/{LIST}") or {})["attempt"] == 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("bucket/prefix", "is no URL"), ("s3://", "is no URL"), ("what://bucket/x", "what:// is no kind of storage")],
)
def test_a_url_of_no_store_is_told_in_one_line(wrong: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Objects(wrong)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_package_for_a_store_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(CheckError, match=r"no package for gs:// is installed \(pip install gcsfs"):
        Objects("gs://bucket/prefix")


def test_a_node_that_cannot_use_the_store_says_so_in_one_line(tmp_path: Path) -> None:
    assert Shared.stored(f"file://{tmp_path}/store").fault() == ""
    (tmp_path / "file").write_text("no directory")
    fault = Shared.stored(f"file://{tmp_path}/file/store").fault()
    assert "cannot use" in fault
    assert f"file://{tmp_path}/file/store" in fault
    assert "\n" not in fault


def test_a_submission_is_done_from_the_store_on_a_head_that_keeps_no_weights_and_comes_home_whole(
    url: str, corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = small_study(tmp_path / "s", corpus, ["base"])
    (run,), stop = study.runs, threading.Event()
    handed = replace(frozen(study), mode="ray-job", request={"storage": url})
    handed.write()
    stored.put(handed, study, study.runs, url)
    monkeypatch.setattr(worker.nodes, "this_node", lambda: "")  # there is no Ray around
    with stored.study_of(url, handed.token) as path:
        theirs = Study.load(path)
        assert (theirs.name, theirs.document) == (study.name, study.document)
        assert replace(Frozen.load(path, handed.token), study=study.path) == handed
        runs = Frozen.load(path, handed.token).listed()
        nowhere = theirs.data.document() | {"directory": "/nowhere/data"}
        elsewhere = Study(path=path, document=theirs.document | {"data": nowhere})
        with Home(url, elsewhere, runs, sweep="s", asked=stop.is_set, stop=stop.set, weights=False) as place:
            assert worker.work(order(place, theirs))["state"] == "done"
            place.fetch()
        assert runs[0].directory.status().state == "done"
        assert not runs[0].directory.checkpoints.exists()
    assert not path.parent.exists()

    assert run.directory.status().state == "planned"
    stored.fetch(handed, weights=False)
    assert run.directory.status().state == "done"
    assert not run.directory.checkpoints.exists()
    stored.fetch(handed, last=True)
    (undisturbed,) = small_study(tmp_path / "t", corpus, ["base"]).runs
    execute(undisturbed.directory)
    assert bits(run.directory) == bits(undisturbed.directory)
    shutil.rmtree(tmp_path / "store")
    stored.fetch(handed)  # all of it is here: nobody asks for more


def test_news_come_home_and_a_claim_that_an_ended_job_left_behind_does_not_keep_its_run(
    url: str, corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_LOOK_SECONDS", 0.1)
    study = small_study(tmp_path / "s", corpus, ["base"])
    handed = replace(frozen(study), mode="ray-job", request={"storage": url})
    stored.put(handed, study, study.runs, url)
    there = RunDirectory(tmp_path / "node" / "run")
    tree = Tree(objects=Objects(url), name=f"runs/{study.runs[0].path.name}", local=there.path)
    tree.pull()
    claim = attempts.claim(there, by={"submission": handed.token})
    assert claim is not None
    tree.push(attempt=1, step=0)
    run = study.runs[0].directory
    with stored.coming_home(handed, Teller(Console(quiet=True))):
        wait_for(lambda: run.status().state == "running", "news of the run")
    status = run.status()
    assert (status.state, status.attempt) == ("stopped", 1)
    assert "its job t0 has ended" in status.reason
    claim.end("stopped", "the test is over")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("{tmp}/store", "the head finds no submission t0 there"),
        ("{tmp}/file/store", "the head cannot use file://{tmp}/file/store: the storage fails"),
    ],
)
def test_a_head_that_cannot_use_the_store_says_so_in_one_line(
    place: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setattr("ablations.storage.objects._PAUSE_SECONDS", 0.0)
    url = f"file://{place.format(tmp=tmp_path)}"
    assert ablate(["work", "s", "--submission", "t0", "--address", "auto", "--storage", url]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert told.format(tmp=tmp_path) in line
    assert url in line
    assert ablate(["work", "s", "--storage", url]) == 2
    assert "goes with --submission and --address" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_nodes_that_share_nothing_but_the_store_do_a_study_and_one_of_them_dies(
    url: str, corpus: Prepared, tmp_path: Path
) -> None:
    budget, pace = 2400, "train.evaluate_every=1200"  # long enough that the store hears of a run while it lasts
    places = {name: tmp_path / name for name in ("driver", "head", "other")}
    for name, place in places.items():
        place.mkdir()
        if name == "driver":
            shutil.copytree(corpus.directory.parent.parent, place / "data")
    # A path that leads each process to the place where it was started stands for a disk of its own.
    here = Path("/proc/self/cwd")
    apart = {"RAY_CHDIR_TO_TRIAL_DIR": "0"}
    study = places["driver"] / "study"
    with Nodes(cwd=places["head"], environment=apart | {SCRATCH: str(places["head"])}) as nodes:
        other = nodes.add(cwd=places["other"], environment={SCRATCH: str(places["other"])})
        words = ["run", "table3+positions+scaling", "--scale", "smoke", "--only", "base,A.h1"]
        words += [word for text in settings(budget, pace) for word in ("--set", text)]
        words += ["--study", str(here / "study"), "--address", nodes.address, "--storage", url]
        sweep = Command(*words, corpus=corpus, cwd=places["driver"], ABLATE_DATA=str(here / "data"))

        def known() -> list[RunDirectory]:
            """The runs that the store knows to be begun, where they are worked on."""
            found = [config.parent for config in tmp_path.glob("[ho]*/*/runs/*/config.json")]  # of head and other
            lists = {run: Objects(url).read_json(f"runs/{run.name}/{LIST}") for run in found}
            return [RunDirectory(run) for run, listed in lists.items() if listed and listed["attempt"]]

        held = hold(known, 2)  # one on each node
        pids = other.pids()
        other.kill()
        go_on(held)
        code, output = sweep.end()
    assert code == 0, output
    runs = {run.variant: run.directory for run in Study.load(study).runs}
    claims = [claim for run in runs.values() for claim in attempts.claims(run)]
    assert len([claim for claim in claims if claim.owner is not None and claim.owner.pid in pids]) == 1
    (local,) = small_study(tmp_path / "local", corpus, ["base"], budget, pace).runs
    execute(local.directory)
    assert bits(runs["base"]) == bits(local.directory)
    for name in ("head", "other"):
        assert not (places[name] / "study").exists()
        assert not (places[name] / "data").exists()
