from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_disk import small_disk

from repro import files
from repro.errors import CheckError

WRITER = """
import sys
from pathlib import Path
from repro.files import write_text
path, letter = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
while True:
    write_text(path, letter * 200_000)
"""


def writer(path: Path, letter: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), letter], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_reader_sees_one_whole_content_or_another_while_two_processes_write_and_are_killed(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    files.write_text(path, "a" * 200_000)
    for _ in range(2):
        processes = [writer(path, "a"), writer(path, "b")]
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert path.read_text() in ("a" * 200_000, "b" * 200_000)
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert path.read_text() in ("a" * 200_000, "b" * 200_000)


def test_parents_are_made_and_no_temporary_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.json"
    files.write_json(path, {"ä": [1, 2.5, None]})
    assert json.loads(path.read_bytes()) == {"ä": [1, 2.5, None]}
    assert [entry.name for entry in path.parent.iterdir()] == ["c.json"]


def test_when_the_writer_fails_the_old_content_stays_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write_text(path, "old")

    def half(file: object) -> None:
        file.write(b"ne")  # type: ignore[attr-defined]
        raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        files.write_whole(path, half)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_clear_line_and_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", monkeypatch) as disk:
        path = disk.path / "file"
        files.write_text(path, "old")
        disk.fill()
        with pytest.raises(CheckError, match="the disk is full") as caught:
            files.write_text(path, "new" * 10_000)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.exit_code == 3
        disk.free()
        assert path.read_text() == "old"
        assert {entry.name for entry in disk.path.iterdir()} == {"file"}


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_may_not_be_written_is_one_clear_line(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CheckError, match="cannot be written"):
        files.write_text(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_of_a_directory_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    (tmp_path / "directory").mkdir()
    for path in (tmp_path / "taken" / "file", tmp_path / "taken" / "deeper" / "file", tmp_path / "directory"):
        with pytest.raises(CheckError, match="no file can be written here"):
            files.write_text(path, "text")
    with pytest.raises(CheckError, match="no file can be written here"):
        files.write_text(tmp_path / ("long" * 100), "text")


def test_nan_and_infinity_never_get_into_a_json_file(tmp_path: Path) -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="JSON"):
            files.write_json(tmp_path / "file", {"value": value})
    assert list(tmp_path.iterdir()) == []


def test_reading_names_the_file_that_is_missing_or_not_json(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with pytest.raises(CheckError, match=r"file\.json: no such file"):
        files.read_json(path)
    for content in (b"", b"{", b'{"a": 1', b"\xff\xfe", b"\x00", b"NaN", b"[-1e999]", b"1" + 400 * b"0"):
        path.write_bytes(content)
        with pytest.raises(CheckError, match=r"file\.json: not a JSON document"):
            files.read_json(path)
    with pytest.raises(CheckError, match="cannot be read"):
        files.read_json(tmp_path)


def test_of_many_that_create_a_file_at_once_one_succeeds_and_its_content_stands(tmp_path: Path) -> None:
    for with_links in (True, False):
        for number in range(20):
            path = tmp_path / f"{with_links}-{number}"
            assert winners(path, 8, with_links=with_links) == [path.read_text()]
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def winners(path: Path, rivals: int, *, with_links: bool) -> list[str]:
    """Who of `rivals` threads created `path`, each with its own name as content."""
    barrier, won = threading.Barrier(rivals), []

    def create(name: str) -> None:
        barrier.wait()
        if files.create_bytes(path, name.encode()):
            won.append(name)

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    with pytest.MonkeyPatch.context() as patch:
        if not with_links:
            patch.setattr(os, "link", no_links)
        threads = [threading.Thread(target=create, args=(f"rival {number}",)) for number in range(rivals)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return won


def test_a_link_made_by_a_repeated_request_counts_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def answered_twice(source: str, target: str) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "as a network file system says when the first answer was lost")

    monkeypatch.setattr(os, "link", answered_twice)
    assert files.create_bytes(tmp_path / "file", b"ours")
    assert (tmp_path / "file").read_bytes() == b"ours"


def test_a_file_that_does_not_fit_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", monkeypatch) as disk:
        disk.fill()
        with pytest.raises(CheckError, match="the disk is full"):
            files.create_bytes(disk.path / "file", b"x" * 10_000)
        disk.free()
        assert not (disk.path / "file").exists()


def test_the_canonical_text_has_sorted_keys_no_blanks_and_only_ascii() -> None:
    text = '{"a":[1,2.5,true,null],"b":{"x":"\\u00e9","y":1e-09}}'
    assert files.canonical_json({"b": {"y": 1e-9, "x": "é"}, "a": [1, 2.5, True, None]}) == text
    assert files.digest_of({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    with pytest.raises(ValueError, match="JSON"):
        files.digest_of(float("nan"))


def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\r\n\x00" * 100_000)
    assert files.digest_of_file(path) == hashlib.sha256(b"\r\n\x00" * 100_000).hexdigest()
