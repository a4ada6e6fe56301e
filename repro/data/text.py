"""Reading text files line by line: UTF-8, split at line feeds only, sides never out of step."""

from __future__ import annotations

import codecs
from pathlib import Path

from repro.errors import CheckError

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_lines(path: Path) -> list[str]:
    """The lines of `path`, without their line ends.

    A line ends at a line feed and nowhere else: U+2028, U+0085, vertical tab, form feed and a lone carriage return stay
    inside their line. "\\r\\n" reads as "\\n". Raises CheckError when the file is missing, empty, not UTF-8, or begins
    with a byte-order mark (which would silently become a part of the first sentence).
    """
    return decode_lines(read_bytes(path), str(path))


def read_pairs(src: Path, tgt: Path) -> list[tuple[str, str]]:
    """Line i of `src` with line i of `tgt`. Raises CheckError when the files differ in their number of lines."""
    src_lines, tgt_lines = read_lines(src), read_lines(tgt)
    if len(src_lines) != len(tgt_lines):
        raise CheckError(
            f"{len(src_lines)} lines, but {tgt} has {len(tgt_lines)}",
            where=str(src),
            fix="line i of one side must translate line i of the other",
        )
    return list(zip(src_lines, tgt_lines, strict=True))


def read_bytes(path: Path) -> bytes:
    """The bytes of `path`; raises CheckError when there is no such file, or it cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise CheckError("no such file", where=str(path)) from error
    except OSError as error:
        raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error


def decode_lines(content: bytes, where: str) -> list[str]:
    """The lines of a file's bytes, by the rules of `read_lines`; `where` names the file in errors."""
    if not content:
        raise CheckError("is empty", where=where, fix="give a file with one sentence a line")
    refuse_marks(content, where)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CheckError(
            f"line {line} is not UTF-8 (byte 0x{content[error.start]:02x})",
            where=where,
            fix="convert the file, e.g.: iconv -f ISO-8859-1 -t UTF-8 OLD > NEW",
        ) from error
    return split_lines(text)


def refuse_marks(content: bytes, where: str) -> None:
    """Raise CheckError when a text's first bytes `content` are a byte-order mark; `where` names it in errors."""
    if content.startswith(_UTF16):
        raise CheckError("is UTF-16, not UTF-8", where=where, fix="convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW")
    if content.startswith(codecs.BOM_UTF8):
        raise CheckError("begins with a byte-order mark", where=where, fix="remove it: tail -c +4 OLD > NEW")


def split_lines(text: str) -> list[str]:
    """`text` split at "\\n" only, one "\\r" before it dropped; a last line needs no line end."""
    lines = text.split("\n")
    last = lines.pop()
    lines = [line[:-1] if line.endswith("\r") else line for line in lines]
    return [*lines, last] if last else lines


def is_blank(line: str) -> bool:
    """Whether `line` holds nothing but white space of any kind."""
    return not line or line.isspace()
