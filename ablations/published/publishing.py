"""`ablate publish` and `ablate unpack`: from a study to a directory for git, and back."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ablations.corpora import ROOT_VARIABLE, Say, data_root, prepare_for
from ablations.looks import Look, in_words, look
from ablations.published.archive import packed
from ablations.published.discreet import place_in_root
from ablations.published.form import (
    COPY,
    README,
    SUMS,
    check_free,
    is_published,
    read_archive,
    read_records,
    sums_of,
)
from ablations.published.places import check_outside, landing, room_for, settle
from ablations.published.readme import readme
from ablations.published.records import check, gathered, place
from ablations.study import ARCHIVE, PLAN, Study, study_path
from ablations.tracking.pulled import PLAIN
from repro.config import DataConfig
from repro.errors import CheckError, UsageError
from repro.files import write_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What came of publishing."""

    path: Path
    sizes: Mapping[str, int]
    """Bytes of every file by its name."""
    looks: tuple[Look, ...]
    """Where the published runs stand."""

    def __str__(self) -> str:
        """In plain words, two lines."""
        size, records = sum(self.sizes.values()) / 1e6, self.sizes[ARCHIVE] / 1e6
        return (
            f"{self.path}: {in_words(self.looks)}; {len(self.sizes)} files, {size:.2f} MB, of which records "
            f"{records:.2f} MB\nto build it again: ablate publish {shlex.quote(str(self.path))} DIR"
        )


def publish(name: str, out: Path, *, force: bool, source: Path | None, say: Say) -> Published:
    """Write the study called `name`, or the published study in that directory, as a published one into `out`.

    Everything but the archive is made from the archive, so a published study gives its own bytes again. `force`: what
    is published in `out` is replaced. `source`: the corpus's text, if it is not prepared. Raises UsageError for a
    search; CheckError when `out` is taken, when somebody works on the study, when its records are damaged, or when the
    text that it was scored on is not to be had: the report would lack what it shows of it.
    """
    landed = landing(out)
    check_free(landed, force=force)
    given, where = Path(name), name
    if is_published(given):
        where = str(given / ARCHIVE)
        archive, files, theirs = read_archive(given), read_records(given), None
    else:
        path = study_path(name)
        study = Study.load(path)
        if study.searched:
            what = "a search: its rows were trained on unequal budgets, there is no table of them to publish"
            raise UsageError(what, where=str(path))
        files, theirs = gathered(path), study.data.directory
        archive = packed(files)
    with _staged(files, where) as study:
        _bring_text(study, theirs, source, say, files)
        made, looks = _made(study, files[PLAN], archive)
    with room_for(landed) as new:
        for file, content in made.items():
            write_bytes(new / file, content)
        settle(new, landed, lambda: check_free(landed, force=force))
    return Published(path=out, sizes={name: len(content) for name, content in made.items()}, looks=looks)


def unpack(published: Path, study: Path, say: Say) -> Study:
    """Make the study directory `study` from the published one. Raises CheckError for damage, and where it is taken."""
    landed = landing(study)
    _check_empty(landed)
    files = read_records(published)
    with room_for(landed) as new:
        data = _at_home(files, new, str(published / ARCHIVE))
        settle(new, landed, lambda: _check_empty(landed))
    found = Study.load(landed)
    if not data.is_dir():
        # `ablate data prepare` takes its settings from the scales; the study's may be others, and so would be the text.
        command = f"ablate publish {shlex.quote(str(published))} DIR"
        what = "a report without it has no test on the test set and no examples"
        say(f"note: {found.data.corpus} is not prepared here (`{command}` prepares it, too); {what}")
    return found


def _check_empty(study: Path) -> None:
    if study.exists() and (not study.is_dir() or any(study.iterdir())):
        raise CheckError("is not empty", where=str(study), fix="choose another directory")


def _at_home(files: Mapping[str, bytes], study: Path, where: str) -> Path:
    """Write and check the records; the directory in which their corpus is, or will be."""
    place(files, study, Path())
    data = data_root() / place_in_root(check(study, files, where).document["data"])
    place(files, study, data)
    return data


@contextmanager
def _staged(files: Mapping[str, bytes], where: str) -> Iterator[Study]:
    """The study of the records `files` in a directory with the study's own name, until left."""
    with tempfile.TemporaryDirectory(prefix="ablate-") as room:
        place(files, Path(room) / "study", Path())
        name = str(check(Path(room) / "study", files, where).document.get("study", "study"))
        if not PLAIN.fullmatch(name):
            raise CheckError(f"a study cannot be called {name[:40]!r}", where=where, fix="do not trust it")
        path = Path(room) / "named" / name
        path.parent.mkdir()
        (Path(room) / "study").rename(path)
        yield Study.load(path)


def _bring_text(study: Study, theirs: Path | None, source: Path | None, say: Say, files: Mapping[str, bytes]) -> None:
    """Let the staged study find the text that its runs were scored on, prepared here if need be.

    `theirs`: where the study had it.
    """
    # Not the whole configuration, which a later version of the program may not read any more.
    settings = study.document["base"].get("data", {}) | study.document["data"]
    known = {name: settings[name] for name in ("corpus", "vocabulary_size", "max_pieces") if name in settings}
    data = DataConfig(**known)

    def prepared() -> Path:
        where = Path(os.path.realpath(data_root()))
        check_outside(where, told=data_root(), fix=f"keep corpora elsewhere: export {ROOT_VARIABLE}=DIR")
        return prepare_for(data, source=source, say=say).directory

    usual = data_root() / place_in_root(study.document["data"])
    tries: list[Callable[[], Path]] = [lambda: theirs] if theirs is not None and source is None else []
    for directory in (*tries, lambda: usual, prepared):
        place({PLAN: files[PLAN]}, study.path, directory())
        if _has_text(study.path):
            return
    raise CheckError(
        f"the text of {data.corpus} here is not the one that its runs were scored on",
        where=str(data_root()),
        fix="name the right one with --source DIR",
    )


def _has_text(study: Path) -> bool:
    from reports.records.study import load_study
    from reports.records.texts import lines_of_test

    return lines_of_test(load_study(study)) is not None


def _made(study: Study, plan: bytes, archive: bytes) -> tuple[dict[str, bytes], tuple[Look, ...]]:
    """All files of the published study by their names."""
    from reports.pages.published import published_pages, published_report

    report = published_report(study.path, ARCHIVE)
    looks = tuple(look(run) for run in study.runs)
    files = {ARCHIVE: archive, COPY: plan, **dict(published_pages(report))}
    files[README] = readme(study, looks, report).encode()
    return files | {SUMS: sums_of(files)}, looks
