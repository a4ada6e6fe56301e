"""Where a published study or one made of it is written: a free place, filled whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ablations.published.form import is_published
from repro.errors import CheckError
from repro.files import disk_error

_NEW, _OLD = "new", "old"


def landing(path: Path) -> Path:
    """Where `path` leads, links followed. Raises CheckError where a directory cannot be put: in a published study,
    which has its files and no more, or in place of the working directory.
    """
    place = Path(os.path.realpath(path))
    check_outside(place, told=path, fix="choose a place outside of it")
    here = Path(os.path.realpath(os.curdir))
    if place.exists() and place in (here, *here.parents):
        fix = "choose another place, or give the command from outside of it"
        raise CheckError("you are in this directory, which would be replaced", where=str(path), fix=fix)
    return place


def check_outside(place: Path, *, told: Path, fix: str) -> None:
    """Raise CheckError naming `told` when `place` lies in a published study; it may be one."""
    for folder in place.parents:
        if is_published(folder):
            what = f"lies in the published study {folder}, which has its own files and no more"
            raise CheckError(what, where=str(told), fix=fix)


@contextmanager
def room_for(place: Path) -> Iterator[Path]:
    """A new empty directory beside `place`, removed at the end unless it is in `place` by then.

    What killed processes left of theirs is cleared away, too. Raises CheckError when the disk refuses to be written.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place.parent):
            for left in [found for found in place.parent.iterdir() if found.name.startswith(_prefix(place))]:
                _clear(left, place)
            room = Path(tempfile.mkdtemp(prefix=_prefix(place), dir=place.parent))
            held = os.open(room, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks: what is left there is not cleared
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (room / _NEW).mkdir()
    except OSError as error:
        raise disk_error(error, place) from error
    try:
        yield room / _NEW
    finally:
        _put_back(room, place)
        shutil.rmtree(room, ignore_errors=True)
        os.close(held)


def settle(new: Path, place: Path, check: Callable[[], None]) -> None:
    """Rename `new`, a directory of `room_for`, to `place`; what that holds by now is removed if `check` allows it.

    Raises what `check` raises, and CheckError when the disk refuses to be written.
    """
    try:
        with _alone(place.parent):
            check()
            if place.exists() and any(place.iterdir()):
                place.rename(new.parent / _OLD)
            new.rename(place)
    except OSError as error:
        raise disk_error(error, place) from error


def _prefix(place: Path) -> str:
    return f".{place.name}.ablate-"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One at a time in `folder`, where its file system knows locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _clear(room: Path, place: Path) -> None:
    """Remove `room` unless somebody works in it."""
    try:
        handle = os.open(room, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # gone, or none of ours
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        _put_back(room, place)
        shutil.rmtree(room, ignore_errors=True)
    finally:
        os.close(handle)


def _put_back(room: Path, place: Path) -> None:
    """What was at `place` before, if nothing came in its stead."""
    if (room / _OLD).exists() and not place.exists():
        (room / _OLD).rename(place)
