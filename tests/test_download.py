"""Downloads against a server that breaks off, ignores ranges, or sends something else."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from repro.data import corpora
from repro.data.corpora import Corpus
from repro.data.download import fetch_text
from repro.data.prepare import prepare
from repro.errors import CheckError

LINES = [f"line {number} of a text with words {number * 7919 % 1000}" for number in range(3000)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()
PACKED = gzip.compress(TEXT, mtime=0)
SHA256 = hashlib.sha256(TEXT).hexdigest()


class Server:
    """What the server sends and how, and what it was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: list[int] = []
        """After how many body bytes each coming answer breaks off."""
        self.ranges, self.lengths = True, True
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        asked = handler.headers.get("Range")
        self.asked.append((handler.path, asked))
        body = self.files.get(handler.path)
        if body is None:
            handler.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if start >= len(body):
            handler.send_error(416)
            return
        rest = body[start:]
        handler.send_response(206 if asked and self.ranges else 200)
        if self.lengths:
            handler.send_header("Content-Length", str(len(rest)))
        if asked and self.ranges:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.end_headers()
        handler.wfile.write(rest[: self.breaks.pop(0)] if self.breaks else rest)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    state = Server()
    state.files["/text.en.gz"] = PACKED
    with running(state):
        yield state


@contextmanager
def running(state: Server) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, *_: object) -> None: ...

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def fetch(server: Server, directory: Path, sha256: str = SHA256) -> Path:
    path = directory / "train.en"
    fetch_text(f"{server.url}/text.en.gz", path, sha256, otherwise="pass --source DIR", say=lambda _: None)
    return path


def test_a_whole_download_is_unpacked_and_leaves_no_part(server: Server, tmp_path: Path) -> None:
    assert fetch(server, tmp_path).read_bytes() == TEXT
    assert [path.name for path in tmp_path.iterdir()] == ["train.en"]
    assert server.asked == [("/text.en.gz", None)]


def test_a_transfer_that_breaks_off_is_resumed_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.breaks = [1000, 500]
    assert fetch(server, tmp_path).read_bytes() == TEXT
    assert [asked for _, asked in server.asked] == [None, "bytes=1000-", "bytes=1500-"]


def test_the_next_call_resumes_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.en.gz.part").write_bytes(PACKED[:2000])
    assert fetch(server, tmp_path).read_bytes() == TEXT
    assert server.asked == [("/text.en.gz", "bytes=2000-")]


def test_a_part_that_is_already_whole_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / "train.en.gz.part").write_bytes(PACKED)
    assert fetch(server, tmp_path).read_bytes() == TEXT


def test_a_server_that_ignores_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, [1000]
    assert fetch(server, tmp_path).read_bytes() == TEXT
    assert len(server.asked) == 2


def test_a_server_that_names_no_length_is_found_out_by_the_content(server: Server, tmp_path: Path) -> None:
    server.lengths, server.breaks = False, [1000]
    assert fetch(server, tmp_path).read_bytes() == TEXT


def test_a_transfer_that_keeps_breaking_off_is_refused_and_kept_for_the_next_call(
    server: Server, tmp_path: Path
) -> None:
    server.breaks = [10] * 50
    with pytest.raises(
        CheckError, match=r"not whole: it broke off after 30 of \d+ bytes .*run the same command"
    ) as refused:
        fetch(server, tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "train.en").exists()
    server.breaks = []
    assert fetch(server, tmp_path).read_bytes() == TEXT


def test_a_file_truncated_on_the_server_is_never_used(server: Server, tmp_path: Path) -> None:
    server.files["/text.en.gz"] = PACKED[:-100]
    for _ in range(2):
        with pytest.raises(CheckError, match=r"not whole.*--source DIR"):
            fetch(server, tmp_path)
        assert not (tmp_path / "train.en").exists()
    server.files["/text.en.gz"] = PACKED
    assert fetch(server, tmp_path).read_bytes() == TEXT


@pytest.mark.parametrize(
    "content", [b"<html>sign in</html>", PACKED[:1000] + b"\0" * 50 + PACKED[1050:], gzip.compress(b"another text\n")]
)
def test_content_that_is_not_the_known_text_is_never_used(server: Server, tmp_path: Path, content: bytes) -> None:
    server.files["/text.en.gz"] = content
    with pytest.raises(CheckError, match="not whole"):
        fetch(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file_is_thrown_away(server: Server, tmp_path: Path) -> None:
    for stale in (b"x" * 500, b"x" * (len(PACKED) + 50), PACKED[:-3] + b"xyz"):
        (tmp_path / "train.en.gz.part").write_bytes(stale)
        assert fetch(server, tmp_path).read_bytes() == TEXT
        (tmp_path / "train.en").unlink()


def test_lines_are_stripped_of_outer_blanks_before_they_are_compared(server: Server, tmp_path: Path) -> None:
    server.files["/text.en.gz"] = gzip.compress("".join(f" {line}\t\r\n" for line in LINES).encode())
    assert fetch(server, tmp_path).read_bytes() == TEXT


def test_a_missing_file_on_the_server_names_the_other_way(server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(CheckError, match=r"answers 404 .*--source DIR"):
        fetch(server, tmp_path)


def test_a_corpus_is_downloaded_once_and_prepared(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {
        f"{split}.{language}": "".join(f"{word} {n % 10} {word}\n" for n in range(size)).encode()
        for split, size in (("train", 100), ("valid", 5), ("test", 5))
        for language, word in (("en", "dog"), ("de", "Hund"))
    }
    known = Corpus(
        name="tiny",
        title="",
        languages=("en", "de"),
        origin="download",
        vocabulary_size=30,
        licence="none",
        base_url="http://127.0.0.1:9/never",
        remote_names={"train": "train", "valid": "val", "test": "test_2016_flickr"},
        sha256={name: hashlib.sha256(content).hexdigest() for name, content in text.items()},
    )
    monkeypatch.setitem(corpora.CORPORA, "tiny", known)
    remote = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    for name, content in text.items():
        split, language = name.split(".")
        server.files[f"/raw/{remote[split]}.{language}.gz"] = gzip.compress(content)
    server.breaks = [40]
    said: list[str] = []
    made = prepare("tiny", data_root=tmp_path, base_url=f"{server.url}/raw/", say=said.append)
    assert made.counts["train"]["pairs"] == 100
    assert made.raw("test", "tgt")[3] == "Hund 3 Hund"
    assert len(server.asked) == 7
    assert any("downloading" in line for line in said)
    assert prepare("tiny", data_root=tmp_path).digest == made.digest
    assert len(server.asked) == 7
