"""`ablate publish` and `unpack`: the same bytes again, nothing of the machine, and a study that can be gone on with."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_corpus import PIECES, small_corpus
from small_study import ROOT, bits, settings, small_study

from ablations.cli import run as ablate
from ablations.corpora import ROOT_VARIABLE
from ablations.published import publishing
from ablations.published.discreet import Discreet
from ablations.selection import choose
from ablations.study import Data, Study, open_study
from repro.data.prepared import Prepared
from repro.files import read_json, write_json
from repro.runs.attempts import claim, claims
from repro.runs.directory import RunDirectory
from repro.runs.execute import execute

DONE, FAILED, PLANNED = ("base", "A.h1"), "A.h16", "D.dropout-0"
BUDGET = 24
HOST, PID, HOME = "node17.example.org", 48_151, "/home/alice/studies"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return small_corpus(tmp_path_factory.mktemp("text"), tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def made(corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that are done, one that failed, one that nobody began, as another machine would have left them."""
    path = tmp_path_factory.mktemp("there") / "little"
    study = small_study(path, corpus, [*DONE, FAILED, PLANNED], BUDGET)
    for run in study.runs:
        if run.variant in DONE:
            assert execute(run.directory).state == "done"
        if run.variant == FAILED:
            attempt = claim(run.directory)
            assert attempt is not None
            attempt.end("failed", f"OSError: {HOME}/little/runs: lost on {HOST} (pid {PID})")
        for path_ in run.path.rglob("*.json"):
            if "checkpoints" not in path_.parts:
                write_json(path_, _elsewhere(read_json(path_)))
        if run.variant in DONE:
            environment = run.directory.environment() or {}
            run.directory.write_environment(environment | {"slurm": {"SLURM_JOB_NAME": "alice-thesis"}})
    plan = read_json(path / "study.json")
    plan["data"]["directory"] = f"{HOME}/data"
    write_json(path / "study.json", plan)
    return path


def _elsewhere(document: Any) -> Any:
    """A record as the machine of somebody else would have written it."""
    if isinstance(document, dict):
        changed = {
            "host": HOST,
            "pid": PID,
            "data_directory": f"{HOME}/data",
            "boot_id": "b007",
            "node": "gpu-partition",
        }
        return {key: changed.get(key, _elsewhere(value)) for key, value in document.items()}
    return document


@pytest.fixture(autouse=True)
def _here(corpus: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(corpus.directory.parents[1]))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def published(made: Path, corpus: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("published") / "little"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ROOT_VARIABLE, str(corpus.directory.parents[1]))
        assert ablate(["publish", str(made), str(out)]) == 0
    return out


@pytest.fixture
def again(published: Path, tmp_path: Path) -> Study:
    """The study made again of what was published."""
    assert ablate(["unpack", str(published), "again"]) == 0
    return Study.load(tmp_path / "again")


def content(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}  # type: ignore[union-attr]


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str], code: int = 3) -> str:
    """The one line that a command says when it refuses."""
    capfd.readouterr()
    assert ablate(arguments) == code
    told = capfd.readouterr()
    assert told.err.startswith("ablate: ")
    assert told.err.count("\n") == 1
    return told.err


# The same bytes.


def test_what_is_published_gives_the_same_bytes_again_from_itself_and_from_the_study_made_of_it(
    published: Path, again: Study, tmp_path: Path
) -> None:
    expected = content(published)
    assert ablate(["publish", str(published), "one"]) == 0
    assert content(tmp_path / "one") == expected
    assert ablate(["publish", "again", "two"]) == 0
    assert content(tmp_path / "two") == expected
    assert ablate(["publish", "again", "two", "--force"]) == 0, "what is published may be replaced"
    assert content(tmp_path / "two") == expected
    assert "ablate publish . /tmp/again && diff -r . /tmp/again" in expected["README.md"].decode()


def test_every_file_is_listed_with_its_digest_and_none_is_large(published: Path) -> None:
    found = content(published)
    lines = dict(reversed(line.split("  ")) for line in found.pop("SHA256SUMS").decode().splitlines())
    assert lines == {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    assert {"README.md", "results.csv", "evaluations.csv", "cells.csv", "plan.json", "records.tar.xz"} < found.keys()
    assert {"report/index.html", "report/report.md", "report/figures/difference.svg"} < found.keys()
    assert not [name for name in found if name.endswith((".png", ".pdf", ".parquet", ".safetensors", ".db"))]


# What it says.


def test_every_value_of_the_readmes_table_is_a_cell_and_comes_from_the_runs(published: Path, made: Path) -> None:
    with (published / "cells.csv").open(encoding="utf-8", newline="") as file:
        cells = [row for row in csv.DictReader(file) if row["table"] == "table3"]
    told = {(row["row"], row["text"]) for row in cells}
    text = (published / "README.md").read_text(encoding="utf-8").replace("\\", "")
    lines = [line for line in text.split("\n") if line.startswith(("| **base", "| A.h1", "| A.h16", "| D.dropout-0"))]
    table = [line for line in lines if line.count("|") > 6]
    assert len(table) == 4
    values = 0
    for line in table:
        name, *shown = (part.strip() for part in line.strip("|").split("|"))
        row = name.strip("*†‡")
        assert {(row, value) for value in shown if value} <= told
        values += len(shown)
    assert values == 4 * 7
    for run in Study.load(made).runs:
        if run.variant in DONE:
            (cell,) = (row for row in cells if (row["row"], row["column"]) == (run.variant, "bleu"))
            assert float(cell["value"]) == (run.directory.result() or {})["test"]["bleu"]
            assert cell["runs"] == run.id


def test_results_are_a_row_a_run_with_what_result_json_says(published: Path, made: Path) -> None:
    with (published / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert [row["state"] for row in rows.values()] == ["done", "done", "failed", "missing"]
    for run in Study.load(made).runs:
        if run.variant in DONE:
            result = run.directory.result() or {}
            assert float(rows[run.variant]["test_bleu"]) == result["test"]["bleu"]
            assert float(rows[run.variant]["train_flops"]) == result["train_flops"]
            assert rows[run.variant]["test_bleu_signature"] == result["test"]["signatures"]["bleu"]
    described = (published / "SCHEMA.md").read_text(encoding="utf-8")
    assert all(f"`{column}`" in described for column in rows["base"])


def test_the_readme_says_what_was_run_and_what_is_missing(published: Path) -> None:
    told = (published / "README.md").read_text(encoding="utf-8")
    command = f"ablate run table3 --scale smoke --seeds 1 --only {','.join((*DONE, FAILED, PLANNED))} --set "
    assert command + "data.corpus=local:svo-sov" in told
    assert "| runs | 2 of 4 done |" in told
    assert "| D.dropout-0 | 1 | not finished | " in told
    assert "| A.h16 | 1 | failed: OSError: …: lost on machine-1 (pid 0) | " in told
    assert "`--source DIR` tells these commands and `ablate publish` its text" in told, "no command makes this corpus"


def test_nothing_names_the_machine_its_user_or_its_places(published: Path, made: Path) -> None:
    secrets = [HOST, str(PID), "alice", "b007", "gpu-partition", str(made), str(made.parents[1])]
    files = content(published) | members(published / "records.tar.xz")
    assert any(name.endswith("environment.json") for name in files)
    assert any("attempts" in name for name in files)
    for name, data in files.items():
        for secret in secrets:
            assert secret.encode() not in data, f"{secret} in {name}"
    assert b"machine-1" in files["results.csv"]


def test_the_readmes_commands_do_what_it_says_where_it_says(published: Path, corpus: Prepared, tmp_path: Path) -> None:
    here = Path(shutil.copytree(published, "here"))
    text = (here / "README.md").read_text(encoding="utf-8")
    first = text.index("    export ABLATE_DATA=/tmp/corpora\n")
    block = text[first : text.index("\n\n", first)].replace("/tmp/corpora", str(corpus.directory.parents[1]))
    ours = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = ["sh", "-ec", block.replace("/tmp/again", str(tmp_path / "again")) + "\nsha256sum --quiet -c SHA256SUMS"]
    subprocess.run(shell, cwd=here, env={**os.environ, "PATH": ours}, check=True)
    assert content(here) == content(published)


def test_rows_with_more_seeds_and_what_they_lack_are_told_in_the_tables_order(again: Study, corpus: Prepared) -> None:
    data = Data(corpus="local:svo-sov", directory=corpus.directory, digest=corpus.digest, vocabulary_size=PIECES)
    open_study(again.path, choose("table3", "smoke", only=["A.h1"], settings=settings(BUDGET)), [1, 2], data)
    assert ablate(["publish", "again", "out"]) == 0
    told = Path("out/README.md").read_text(encoding="utf-8")
    assert "--seeds 1 --only base,A.h16,D.dropout-0 --set" in told
    assert "--seeds 2 --only A.h1 --set" in told
    missing = told[told.index("## What is missing") : told.index("## Files")]
    assert re.findall(r"\n\| (\S+) \| (\d) \|", missing) == [("A.h1", "2"), ("A.h16", "1"), ("D.dropout-0", "1")]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("PermissionError: '/home/alice'", "PermissionError: '…'"),
        ("OSError: full: '/home/alice smith/runs/final.safetensors'", "OSError: full: '…/final.safetensors'"),
        ("~alice/notes, ../alice/notes.py:7 and -I/home/alice", "…, …/notes.py:7 and -I…"),
        ("runs/A.h1-s1/config.json and/or +/-3, 0.1.0, 5 / 6", "runs/A.h1-s1/config.json and/or +/-3, 0.1.0, 5 / 6"),
        ("http://node17:8080/alice from 10.1.2.3:88 by alice@node17", "http://… from …:88 by …@machine-1"),
        ("node17.example.org, node17, node17.local: gone", "machine-1, machine-1, machine-1: gone"),
    ],
)
def test_a_reason_is_told_without_people_and_places(text: str, told: str) -> None:
    discreet = Discreet([HOST], {"corpus": "smoke", "vocabulary_size": 320, "digest": "0" * 64})
    assert discreet.status({"reason": text})["reason"] == told
    assert discreet.status({"reason": told})["reason"] == told, "what was made already stays"


# The study made of it.


def test_a_study_made_again_stands_where_the_published_one_stood(
    again: Study, made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    found = []
    for path in (again.path, made):
        assert ablate(["status", str(path), "--json"]) == 0
        runs = json.loads(capfd.readouterr().out)["runs"]
        found.append([{key: run[key] for key in ("id", "state", "step", "bleu", "attempts")} for run in runs])
    assert found[0] == found[1]
    for run in Study.load(made).runs:
        if run.variant in DONE:
            copy = again.path / "runs" / run.id
            assert (copy / "metrics.jsonl").read_bytes() == (run.path / "metrics.jsonl").read_bytes()
            assert RunDirectory(copy).hypotheses("test") == run.directory.hypotheses("test")
            assert not (copy / "checkpoints").exists()
    assert ablate(["report", "again"]) == 0
    assert ablate(["compare", "again:base", "again:A.h1", "--html", "c.html"]) == 0


def test_its_finished_runs_are_not_run_again_and_mlflow_shows_them(
    again: Study, made: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(made / "mlflow.db", again.path)
    asked = ["run", "table3", "--scale", "smoke", "--only", ",".join(DONE), "--study", "again"]
    asked += [part for text in settings(BUDGET) for part in ("--set", text)]
    capfd.readouterr()
    assert ablate(asked) == 0
    told = capfd.readouterr().out
    assert "base seed 1: done already at step 24" in told
    assert "nothing is missing, nothing is run" in told
    assert "3 new" in told, "the sync: two runs done, one failed"
    assert ablate(["sync", "again"]) == 0
    assert "3 as before" in capfd.readouterr().out


def test_it_grows_by_seeds_and_a_longer_budget_begins_anew(again: Study, corpus: Prepared, tmp_path: Path) -> None:
    data = Data(corpus="local:svo-sov", directory=corpus.directory, digest=corpus.digest, vocabulary_size=PIECES)
    fresh, grown = tmp_path / "fresh", {}
    for budget, seeds in ((BUDGET, [1, 2]), (2 * BUDGET, [1])):
        selection = choose("table3", "smoke", only=["base"], settings=settings(budget, "train.evaluate_every=8"))
        ours, others = (open_study(path, selection, seeds, data)[1] for path in (again.path, fresh))
        for run, other in zip(ours, others, strict=True):
            assert execute(run.directory).state == execute(other.directory).state == "done"
            grown[run.id] = run
            if (run.path / "checkpoints").exists():
                assert bits(run.directory) == bits(other.directory)
    assert len(grown) == 3
    trained = {run.id for run in grown.values() if run.directory.checkpoints.exists()}
    assert [run.seed for run in grown.values() if run.id not in trained] == [1], "done before it was published"


def test_what_needs_weights_says_that_there_are_none(
    again: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = str(again.runs[0].path)
    for command in (["translate", path], ["evaluate", path], ["evaluate", path, "--split", "valid"]):
        told = refused(command, capfd)
        assert "its weights are not here: a published or pulled record has none" in told


def test_the_corpus_that_is_missing_is_prepared_as_the_study_had_it(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    small_corpus(tmp_path / "text", tmp_path / "unused")
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "corpora"))
    assert ablate(["unpack", str(published), "study"]) == 0
    assert not Study.load(Path("study")).data.directory.exists()
    told = re.search("is not prepared here \\(`ablate (.+) DIR` prepares it, too\\)", capfd.readouterr().out)
    assert told
    assert ablate([*shlex.split(told[1]), "out", "--source", "text"]) == 0
    assert Prepared.load(Study.load(Path("study")).data.directory).digest == Study.load(Path("study")).data.digest
    assert content(tmp_path / "out") == content(published)


# Refused.


def test_a_study_in_which_somebody_works_is_not_published(
    again: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attempt = claim(again.runs[3].directory)
    assert attempt is not None
    with attempt:
        told = refused(["publish", "again", "out"], capfd)
        attempt.end("stopped", "asked to")
    assert "somebody works on D.dropout-0 seed 1" in told
    assert not (tmp_path / "out").exists()
    assert ablate(["publish", "again", "out"]) == 0, "stopped is not done, and no hindrance"


def test_a_study_without_a_finished_run_and_a_damaged_one_are_not_published(
    again: Study, capfd: pytest.CaptureFixture[str]
) -> None:
    result = again.runs[0].path / "result.json"
    result.write_text(result.read_text()[:-20])
    assert f"again/runs/{again.runs[0].id}/result.json" in refused(["publish", "again", "out"], capfd)
    for run in again.runs:
        (run.path / "result.json").unlink(missing_ok=True)
    assert "no run is finished" in refused(["publish", "again", "out"], capfd)
    assert "no study here" in refused(["publish", "nowhere", "out"], capfd)


def test_a_published_study_is_not_mistaken_for_a_study(published: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "report", "sync"):
        assert f"ablate unpack {published} STUDY" in refused([command, str(published)], capfd)


def test_nothing_of_anybodys_is_written_over(
    published: Path, again: Study, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "again: is not empty" in refused(["unpack", str(published), "again"], capfd)
    assert "again: is not empty" in refused(["publish", str(published), "again"], capfd)
    assert "no file of a published study" in refused(["publish", str(published), "again", "--force"], capfd)
    shutil.copytree(published, "out")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "'notes.txt'" in refused(["publish", str(published), "out", "--force"], capfd)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_a_directory_that_only_looks_published_is_not_replaced(
    published: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "images"
    there.mkdir()
    (there / "disk.iso").write_text("mine")
    (there / "SHA256SUMS").write_text(f"{hashlib.sha256(b'mine').hexdigest()}  disk.iso\n")
    assert "no file of a published study" in refused(["publish", str(published), "images", "--force"], capfd)
    assert (there / "disk.iso").read_text() == "mine"


def test_what_came_into_the_directory_meanwhile_is_not_written_over(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def late(*arguments: Any) -> Any:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("mine")
        return made(*arguments)

    made = publishing._made
    monkeypatch.setattr(publishing, "_made", late)
    assert "out: is not empty" in refused(["publish", str(published), "out"], capfd)
    assert content(tmp_path) == {"out/notes.txt": b"mine"}


def test_links_are_followed(published: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for link, place in (("a", "elsewhere"), ("b", "new")):
        Path(link).symlink_to(place)
    assert ablate(["publish", str(published), "a"]) == 0
    assert content(tmp_path / "elsewhere") == content(published)
    assert ablate(["unpack", "a", "b"]) == 0
    assert Study.load(tmp_path / "new").runs
    assert Path("a").is_symlink()
    assert Path("b").is_symlink()


def test_nothing_is_put_in_a_published_study_or_in_place_of_the_working_directory(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = Path(shutil.copytree(published, tmp_path / "here"))
    monkeypatch.chdir(here)
    for command in (["unpack", ".", "study"], ["publish", ".", "out"]):
        assert "lies in the published study" in refused(command, capfd)
    assert "you are in this directory" in refused(["publish", ".", ".", "--force"], capfd)
    monkeypatch.delenv(ROOT_VARIABLE)
    assert "export ABLATE_DATA=DIR" in refused(["publish", ".", "../out"], capfd)
    assert content(here) == content(published)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for command in (["unpack", "../here", "."], ["publish", "../here", "."]):
        assert "you are in this directory" in refused(command, capfd)


_KILLED = """
import os, signal, sys
from pathlib import Path
from ablations.cli import run
from ablations.published import publishing

rename = Path.rename

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def rename_and_die(path, target):
    rename(path, target)
    if Path(target).name == "old":
        die()

if sys.argv.pop(1) == "writing":
    publishing.write_bytes = die
else:
    Path.rename = rename_and_die
run(sys.argv[1:])
"""


@pytest.mark.parametrize("when", ["writing", "replacing"])
def test_one_that_was_killed_leaves_nothing_after_the_next(
    when: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    shutil.copytree(published, "out")
    (here / ".out.txt").write_text("mine")
    command = ["publish", str(published), "out"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    dead = subprocess.run([sys.executable, "-c", _KILLED, when, *command, "--force"], env=variables, check=False)
    assert dead.returncode == -signal.SIGKILL
    assert (here / "out").exists() is (when == "writing")
    assert [path for path in here.iterdir() if path.name.startswith(".out.ablate-")]
    if when == "replacing":
        assert ablate(command) == 3, "what was there is back, and not replaced without --force"
        assert content(here / "out") == content(published)
    assert ablate([*command, "--force"]) == 0
    assert content(here / "out") == content(published)
    assert sorted(path.name for path in here.iterdir()) == [".out.txt", "out"]


def test_text_that_is_not_the_one_scored_on_is_not_taken_for_it(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "empty"))
    assert "--source DIR" in refused(["publish", str(published), "out"], capfd)
    text = tmp_path / "text"
    text.mkdir()
    other = small_corpus(text, tmp_path / "unused")
    (text / "test.sov").write_text("".join(line + "x\n" for line in (text / "test.sov").read_text().splitlines()))
    assert other.digest
    told = refused(["publish", str(published), "out", "--source", "text"], capfd)
    assert "is not the one that its runs were scored on" in told


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "damaged"),
        (lambda data: b"", "damaged"),
        (lambda data: data + data, "damaged"),
    ],
)
@pytest.mark.parametrize("listed", [False, True])
def test_a_damaged_archive_is_refused_whatever_its_digest_says(
    harm: Callable[[bytes], bytes], words: str, listed: bool, published: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(published, "copy"))
    _put(copy, harm((copy / "records.tar.xz").read_bytes()), listed=listed)
    told = refused(["unpack", "copy", "study"], capfd)
    assert "copy/records.tar.xz" in told
    assert words in told
    assert not Path("study").exists()


def _put(copy: Path, archive: bytes, *, listed: bool = True) -> None:
    before = hashlib.sha256((copy / "records.tar.xz").read_bytes()).hexdigest()
    (copy / "records.tar.xz").write_bytes(archive)
    if listed:
        sums = copy / "SHA256SUMS"
        sums.write_text(sums.read_text().replace(before, hashlib.sha256(archive).hexdigest()))


def _tar(files: dict[str, bytes], *strange: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in strange:
            archive.addfile(member)
    return lzma.compress(buffer.getvalue())


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _sparse(name: str) -> tarfile.TarInfo:
    """A file of a few bytes that says it unpacks to 10^15."""
    member = _member(name)
    member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": name}
    member.pax_headers |= {"GNU.sparse.map": "1000000000000000,0", "GNU.sparse.size": "1000000000000000"}
    return member


@pytest.mark.parametrize(
    "strange",
    [
        _member("../outside.json"),
        _member("/outside.json"),
        _member("records/../../outside.json"),
        _member("records/runs/../../outside/config.json"),
        _member("records/runs/x/checkpoints/final.safetensors"),
        _member("records/report/index.html"),
        _member("records/study.json"),
        _member("records/runs/x/config.json", tarfile.SYMTYPE, "/etc/passwd"),
        _member("records/runs/x/config.json", tarfile.LNKTYPE, "/etc/passwd"),
        _member("records/runs/x/config.json", tarfile.FIFOTYPE),
        _member("records/runs", tarfile.DIRTYPE),
        _member("records/runs/not-planned/config.json"),
        _sparse("records/bench-layers.json"),
    ],
)
def test_an_archive_with_anything_else_in_it_is_refused(
    strange: tarfile.TarInfo, published: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(published, "copy"))
    _put(copy, _tar(members(copy / "records.tar.xz"), strange))
    for command in (["unpack", "copy", "study"], ["publish", "copy", "out"]):
        assert "copy/records.tar.xz" in refused(command, capfd)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_a_record_of_another_run_than_the_planned_one_is_refused(
    published: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(published, "copy"))
    files = members(copy / "records.tar.xz")
    base, other = (
        next(name for name in files if f"/{row}-s1" in name and name.endswith("config.json")) for row in DONE
    )
    _put(copy, _tar(files | {base: files[other]}))
    assert "its configuration is not the planned one" in refused(["unpack", "copy", "study"], capfd)


@pytest.mark.parametrize("words", ["[" * 100_000, '{"n": NaN}', '{"n": "\\ud800"}', '{"n": 1e999}', "[]", "\xff"])
@pytest.mark.parametrize("name", ["study.json", "config.json"])
def test_a_record_that_is_no_document_is_refused(
    words: str, name: str, published: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(published, "copy"))
    files = members(copy / "records.tar.xz")
    harmed = next(member for member in files if member.endswith(name))
    text = files[harmed].decode().rstrip().removesuffix("}") + "," + words[1:] if words.startswith("{") else words
    _put(copy, _tar(files | {harmed: text.encode("latin-1")}))
    assert "copy/records.tar.xz" in refused(["unpack", "copy", "study"], capfd)
    assert not Path("study").exists()


def test_an_archive_that_unpacks_to_more_than_a_study_is_refused(
    published: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ablations.published.archive._MOST_BYTES", 10_000)
    assert "holds more than a study's records" in refused(["unpack", str(published), "study"], capfd)


def test_the_attempts_at_a_published_run_are_over(again: Study) -> None:
    for run in again.runs:
        assert all(not attempt.working() for attempt in claims(run.directory))
