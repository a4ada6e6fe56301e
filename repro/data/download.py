"""Downloads that are whole or not used: resumed where they broke off, checked against a digest, renamed at the end."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

from repro.errors import CheckError
from repro.files import disk_error, write_bytes

_TRIES = 3
_TIMEOUT_SECONDS = 30.0
_BLOCK = 1 << 16


class _BrokenError(Exception):
    """A transfer that ended early, or content that is not what it should be; worth another try."""


def fetch_text(url: str, path: Path, sha256: str, *, otherwise: str, say: Callable[[str], None]) -> None:
    """Download the gzip file at `url`, unpack it and write its text to `path`, if its digest is `sha256`.

    The text's lines are stripped of outer blanks and its line ends are "\\n", which is the form that the digest is of.
    What has come of a broken transfer stays in `path` + ".gz.part" and the next try, or the next call, asks for the
    rest only. Raises CheckError when the address cannot be reached (the line ends with `otherwise`, the other way to
    the text), when the transfer keeps breaking off, or when what came is not the known text: `path` is then not made.
    """
    part = path.with_name(f"{path.name}.gz.part")
    trouble = ""
    for _ in range(_TRIES):
        try:
            say(f"downloading {url}")
            text = _unpack(part, may_grow=_transfer(url, part, otherwise))
            if hashlib.sha256(text).hexdigest() != sha256:
                part.unlink()
                raise _BrokenError("what came is not the known text (its SHA-256 differs)")
        except _BrokenError as error:
            trouble = str(error)
            say(f"{url}: {trouble}")
            continue
        write_bytes(path, text)
        part.unlink()
        return
    raise CheckError(
        f"the download is not whole: {trouble}", where=url, fix=f"run the same command again, or {otherwise}"
    )


def stripped(text: bytes) -> bytes:
    """UTF-8 `text` with every line stripped of outer blanks and ended by "\\n"."""
    lines = text.decode("utf-8").removesuffix("\n").split("\n")
    return "".join(f"{line.strip()}\n" for line in lines).encode("utf-8")


def _transfer(url: str, part: Path, otherwise: str) -> bool:
    """Bring `part` to the whole content of `url`; raises _BrokenError when the connection ends before that.

    False when the server had nothing more to send for a part kept from before: if that is not whole, it never will be.
    """
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
            _append(response, part, have)
        return True
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return False
        raise CheckError(f"the server answers {error.code} {error.reason}", where=url, fix=otherwise) from error
    except urllib.error.URLError as error:
        raise CheckError(f"cannot be reached ({error.reason})", where=url, fix=otherwise) from error
    except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
        raise _BrokenError(f"the connection broke off ({error or type(error).__name__})") from error


def _append(response: http.client.HTTPResponse, part: Path, have: int) -> None:
    """Write the body of `response` behind the first `have` bytes of `part`, or over all of it if it starts at 0."""
    resumed = response.status == 206
    start = _range_start(response) if resumed else 0
    if resumed and start != have:
        part.unlink()
        raise _BrokenError(f"the server sent byte {start} on, asked for {have} on")
    promised = response.headers.get("Content-Length")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if resumed else "wb") as file:
            got = _copy(response, file)
    except OSError as error:
        if isinstance(error, TimeoutError | ConnectionError):
            raise
        raise disk_error(error, part) from error
    if promised is not None and got < int(promised):
        raise _BrokenError(f"it broke off after {start + got} of {start + int(promised)} bytes")


def _range_start(response: http.client.HTTPResponse) -> int:
    """The first byte's number in "Content-Range: bytes 100-199/200"; -1 when the header says none."""
    first = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _copy(response: http.client.HTTPResponse, file: IO[bytes]) -> int:
    got = 0
    while block := response.read(_BLOCK):
        file.write(block)
        got += len(block)
    return got


def _unpack(part: Path, may_grow: bool) -> bytes:
    """The text in `part`. A damaged file is removed; one that is merely short is kept if it may yet be completed."""
    try:
        return stripped(gzip.decompress(part.read_bytes()))
    except EOFError as error:
        if not may_grow:
            part.unlink()
        raise _BrokenError("the file ends early") from error
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        part.unlink()
        raise _BrokenError(f"the file is damaged ({error})") from error
