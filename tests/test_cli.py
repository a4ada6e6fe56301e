"""The command line: what it prints where, its exit codes, and that it is quick to start."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from sweep_driver import pretended_study

from ablations.cli import options, run
from ablations.corpora import ROOT_VARIABLE
from ablations.progress import Teller
from ablations.single import translate_stream
from repro.errors import CheckError
from repro.runs import attempts
from repro.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "ray", "mlflow", "pandas", "scipy", "sentencepiece", "matplotlib")

TINY = [
    "train.budget=12",
    "train.batch_tokens=256",
    "train.evaluate_every=12",
    "train.log_every=4",
    "train.valid_decode=none",
    "train.checkpoint_seconds=0",
    "model.d_model=16",
    "model.d_ff=16",
    "model.n_layers=1",
    "model.n_heads=2",
    "decode.beam=1",
    "decode.extra_length=2",
]
"""A run of seconds at the smoke scale."""


def settings(*texts: str) -> list[str]:
    return [part for text in texts for part in ("--set", text)]


def environment(data: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", ROOT_VARIABLE: str(data)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where corpora are prepared for these tests."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def _here(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(data))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    command = [sys.executable, "-m", "ablations", "train", "--scale", "smoke", "--out", str(out), *settings(*TINY)]
    subprocess.run(command, check=True, env=environment(data), capture_output=True, text=True)
    return out


# Quick to start.


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["status", "."]])
def test_nothing_heavy_is_imported_before_it_is_needed(tmp_path: Path, arguments: list[str]) -> None:
    pretended_study(tmp_path, ["base", "A.h1"])
    code = (
        "import sys\n"
        "from ablations.cli import run\n"
        f"assert run({arguments!r}) == 0\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.endswith("heavy: []\n"), found.stdout + found.stderr


# Errors.


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("plan tabel3 --scale smoke", 2, ["tabel3", "table3"]),
        ("plan table3 --scale smok", 2, ["smok", "smoke"]),
        ("plan table3", 2, ["--scale"]),
        ("plan table3 --scale smoke --only A.h3", 2, ["A.h3", "A.h32"]),
        ("plan table3 --scale smoke --set model.d_modle=3", 2, ["model.d_modle", "model.d_model"]),
        ("plan table3 --scale smoke --set model.n_heads=4096", 2, ["d_k 0"]),
        ("plan table3 --scale smoke --seeds 0", 2, ["--seeds"]),
        ("plan table3 --scale smoke --seeds two", 2, ["--seeds"]),
        ("plan table3 --scale smoke --nope", 2, ["--nope"]),
        ("plan table3 --scale smoke --skip bigg", 2, ["bigg", "big"]),
        ("plan table3 --scale smoke --set data.corpus=smokey", 2, ["smokey", "smoke"]),
        ("status nowhere", 3, ["nowhere", "no study here"]),
        ("report nowhere", 3, ["nowhere", "no study here"]),
        ("sync nowhere", 3, ["nowhere", "no study here"]),
        ("evaluate nowhere", 3, ["nowhere", "no run directory"]),
        ("evaluate nowhere --split dev", 2, ["dev", "valid or test"]),
        ("translate nowhere", 3, ["nowhere", "no run directory"]),
        ("train --scale smoke --variant A.h2 --out x", 2, ["A.h2", "A.h1"]),
        ("run table3 --scale smoke --only base,,nope", 2, ["nope"]),
        (
            "run positions --scale smoke --set model.max_positions=8",
            3,
            ["positions.learned", "model.max_positions", "line", "of train (src)"],
        ),
        ("train --scale smoke --variant E.learned --set model.max_positions=8 --out x", 3, ["E.learned", "line"]),
        ("train --scale smoke --set train.batch_tokens=8 --out x", 3, ["train.batch_tokens", "line"]),
        (
            "train --scale smoke --set train.average_checkpoints=6 --out x",
            3,
            ["train.average_checkpoints", "1500 steps have 5", "train.evaluate_every=250"],
        ),
        ("data prepare smokey", 2, ["smokey", "smoke"]),
        ("data prepare multi30k_en_de --source nowhere", 3, ["nowhere"]),
        ("fly", 2, ["fly"]),
        ("status --study s", 2, ["--study", "ablate status [OPTIONS]", "ablate status --help"]),
        ("compare s base big", 2, ["big", "STUDY:VARIANT", "ablate compare --help"]),
    ],
)
def test_what_a_user_got_wrong_is_one_line_with_an_exit_code(
    line: str, code: int, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == code
    told = capfd.readouterr()
    assert code == 3 or told.out == ""
    assert told.err.startswith("ablate: ")
    assert told.err.count("\n") == 1
    for word in words:
        assert word in told.err


def test_a_study_of_another_configuration_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pretended_study(tmp_path / "s", ["base"])
    assert run(["run", "positions", "--scale", "smoke", "--study", "s"]) == 3
    told = capfd.readouterr().err
    assert "table = table3 instead of positions" in told
    assert told.count("\n") == 1


def test_a_disk_without_room_for_the_runs_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(".")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50 * 2**20))
    assert run(["run", "positions", "--scale", "smoke", "--set", "model.d_model=512", "--study", "s"]) == 3
    told = capfd.readouterr().err
    assert "s: the disk has 50 MB free, these runs need about" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "a/b"), OSError(5, "Input/output error", "a/b")]
)
def test_trouble_with_a_file_system_is_one_line_wherever_it_comes_from(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr("ablations.study.study_path", refuse)
    assert run(["status", "s"]) == 3
    told = capfd.readouterr().err
    assert told.startswith(f"ablate: a/b: {error.strerror} (")
    assert told.count("\n") == 1


# Documents.


def test_plan_prints_one_document_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "table3", "--scale", "paper", "--gpu", "P100", "--json"]) == 0
    told = capfd.readouterr()
    document = json.loads(told.out)
    assert told.err == ""
    assert (document["table"], document["scale"], len(document["variants"])) == ("table3", "paper", 20)


def test_plan_prints_a_table_with_what_it_rests_on(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "positions", "--scale", "multi30k", "--seeds", "2", "--gpu", "A100"]) == 0
    told = capfd.readouterr().out
    for word in ("positions.none", "model.positions none", "6 runs, 2 seeds", "estimated", "A100"):
        assert word in told


def test_status_prints_one_document_or_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pretended_study(tmp_path / "studies" / "s", ["base", "A.h1"])
    assert run(["status", "s", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [entry["state"] for entry in document["runs"]] == ["planned", "planned"]
    assert run(["status", "studies/s"]) == 0
    told = capfd.readouterr().out
    assert "2 planned" in told
    assert "A.h1" in told


def test_a_path_is_told_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    Teller(options.console()).say("studies/a:b:[red]c")
    assert capfd.readouterr().out == "studies/a:b:[red]c\n"


def test_the_corpora_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "list", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capfd.readouterr().out)["corpora"]]
    assert {"smoke", "multi30k_en_de", "multi30k_en_fr"} <= set(names)


# One run at a time.


def test_a_trained_run_scores_as_its_result_says(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = RunDirectory(trained).result()
    assert result is not None
    assert run(["evaluate", str(trained), "--json"]) == 0
    scores: dict[str, Any] = json.loads(capfd.readouterr().out)
    for name in ("bleu", "chrf", "perplexity", "reference_sha256"):
        assert scores[name] == result["test"][name]
    assert run(["evaluate", str(trained), "--split", "valid"]) == 0
    assert "bleu signature" in capfd.readouterr().out


def test_the_same_run_again_does_nothing(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (trained / "result.json").read_bytes()
    assert run(["train", "--scale", "smoke", "--out", str(trained), *settings(*TINY)]) == 0
    assert "done already" in capfd.readouterr().out
    assert (trained / "result.json").read_bytes() == before
    assert len(attempts.claims(RunDirectory(trained))) == 1


def test_another_run_in_the_same_directory_is_refused(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--scale", "smoke", "--seed", "2", "--out", str(trained), *settings(*TINY)]) == 3
    assert "seed = 1 instead of 2" in capfd.readouterr().err


def test_translation_is_line_for_line(trained: Path) -> None:
    source = "ba\u2028ba lo\n\n   \r\nko\x85lo\x0bba\r\nlast".encode()
    target = io.BytesIO()
    translate_stream(trained, None, io.BytesIO(source), target)
    lines = target.getvalue().split(b"\n")
    assert len(lines) == 6, "five lines, each ended"
    assert lines[-1] == lines[1] == lines[2] == b""


def test_translating_nothing_gives_nothing(trained: Path) -> None:
    target = io.BytesIO()
    translate_stream(trained, None, io.BytesIO(b""), target)
    assert target.getvalue() == b""


def test_a_line_that_is_not_utf8_is_named(trained: Path) -> None:
    with pytest.raises(CheckError, match="line 2 is not UTF-8"):
        translate_stream(trained, None, io.BytesIO(b"ba\nb\xe9\n"), io.BytesIO())


def test_a_byte_order_mark_is_refused_before_it_becomes_part_of_a_sentence(trained: Path) -> None:
    for mark in (b"\xef\xbb\xbf", b"\xff\xfe"):
        with pytest.raises(CheckError, match=r"standard input: (begins with a byte-order mark|is UTF-16)"):
            translate_stream(trained, None, io.BytesIO(mark + b"ba\n"), io.BytesIO())


def test_a_line_too_long_for_learned_positions_is_named_by_its_place_in_the_whole_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = settings(*TINY, "model.max_positions=60", "train.budget=1")
    arguments = ["train", "--scale", "smoke", "--variant", "E.learned", "--out", "learned", *learned]
    assert run(arguments) == 0
    monkeypatch.setattr("ablations.single._LINES_AT_ONCE", 2)
    source, target = io.BytesIO(b"ta\n" * 4 + b"ta " * 200 + b"\n"), io.BytesIO()
    with pytest.raises(CheckError, match=r"^line 5: \d+ pieces with the end mark, learned positions end at 60"):
        translate_stream(tmp_path / "learned", None, source, target)
    assert target.getvalue().count(b"\n") == 4


def test_another_corpus_than_the_one_trained_on_is_refused(
    trained: Path, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for path in (data / "smoke" / "raw").iterdir():
        lines = path.read_bytes().split(b"\n")[:400] if path.name.startswith("train") else [path.read_bytes()[:-1], b""]
        (text / path.name).write_bytes(b"\n".join([*lines[:-1], b""]))
    assert run(["data", "prepare", "local:svo-sov", "--source", "text", "--vocabulary-size", "320"]) == 0
    (other,) = (data / "local-svo-sov").glob("320-*")
    capfd.readouterr()
    assert run(["evaluate", str(trained), "--data", str(other)]) == 3
    told = capfd.readouterr().err
    assert f"{other}: the prepared corpus changed" in told
    assert told.count("\n") == 1


def test_an_unfinished_run_cannot_translate(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, asked = pretended_study(tmp_path, ["base"])
    assert run(["translate", str(asked[0].path)]) == 3
    assert "it is planned" in capfd.readouterr().err


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_lets_a_run_save_and_stop(tmp_path: Path, data: Path, sign: signal.Signals) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "ablations", "train", "--scale", "smoke", "--out", str(out), *settings(*TINY)]
    command += settings("train.budget=100000", "train.evaluate_every=100000")
    process = subprocess.Popen(command, env=environment(data), stdout=subprocess.PIPE, text=True)
    ends = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists():
        assert time.monotonic() < ends, "training begins"
        time.sleep(0.05)
    process.send_signal(sign)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    status = RunDirectory(out).status()
    assert status.state == "stopped"
    assert "saved at step" in status.reason
    assert status.reason in told
