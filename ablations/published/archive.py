"""Records as one file: a tar that is the same bytes for the same records, read with mistrust."""

from __future__ import annotations

import io
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping

from ablations.study import PLAN, RUNS
from ablations.tracking.artifacts import CLAIM, HYPOTHESES, RUN_FILES
from ablations.tracking.pulled import PLAIN
from repro.errors import CheckError

FOLDER = "records"
"""Where everything in the archive lies."""
BENCH = "bench-layers.json"
PROBES = "probes"
_MOST_BYTES = 2**30
"""Of the records unpacked: a file of megabytes can claim to hold more than a disk."""
_PROBE = re.compile(rf"{PROBES}/{PLAIN.pattern}\.json")
_IN_A_RUN = re.compile(rf"{RUNS}/{PLAIN.pattern}/(.+)")
AGAIN = "get the published study again"


def is_record(name: str) -> bool:
    """Whether a file of this name, relative to the study, is one of its records."""
    inside = _IN_A_RUN.fullmatch(name)
    if inside is None:
        return name in (PLAN, BENCH) or _PROBE.fullmatch(name) is not None
    return inside[1] in (*RUN_FILES, *HYPOTHESES) or CLAIM.fullmatch(inside[1]) is not None


def packed(files: Mapping[str, bytes]) -> bytes:
    """The archive of `files` by their names in the study: sorted, without times and owners, compressed by xz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def unpacked(content: bytes, where: str) -> dict[str, bytes]:
    """The files in the archive `content` by their names in the study; nothing is written.

    Raises CheckError naming the archive `where` when it is damaged, too large, or holds anything but plain files with
    the names of records.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(_plain(content, where)), mode="r:") as archive:
            return dict(_members(archive, where))
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OverflowError, RecursionError) as error:
        raise CheckError(f"damaged ({error})", where=where, fix=AGAIN) from error


def _plain(content: bytes, where: str) -> bytes:
    stream = lzma.LZMADecompressor(format=lzma.FORMAT_XZ)
    plain = stream.decompress(content, max_length=_MOST_BYTES + 1)
    if len(plain) > _MOST_BYTES:
        raise CheckError("holds more than a study's records", where=where, fix="do not trust it")
    if not stream.eof or stream.unused_data:
        raise CheckError("damaged (it does not end where it should)", where=where, fix=AGAIN)
    return plain


def _members(archive: tarfile.TarFile, where: str) -> Iterator[tuple[str, bytes]]:
    seen = set()
    for member in archive:
        folder, _, name = member.name.partition("/")
        told = repr(member.name)[:100]
        if member.type != tarfile.REGTYPE or member.issparse():  # a sparse one can claim any size
            raise CheckError(f"holds {told}, which is no plain file", where=where, fix="do not trust it")
        if folder != FOLDER or not is_record(name) or name in seen:
            raise CheckError(f"holds {told}, which is no record of a study", where=where, fix="do not trust it")
        seen.add(name)
        file = archive.extractfile(member)
        content = file.read() if file is not None else b""
        if len(content) != member.size:
            raise CheckError(f"damaged ({told} is cut short)", where=where, fix=AGAIN)
        yield name, content
