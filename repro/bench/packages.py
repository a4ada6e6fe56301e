"""The packages of the extra `bench`, which are other ways to do the same work: whether they are here and fit."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from repro.errors import CheckError, UsageError

T = TypeVar("T")

_FIX = "pip install -c constraints.txt '.[bench]'"


def installed(package: str) -> bool:
    """Whether `package` can be found; it is not imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # something in this Python keeps it from being imported
        return False


def build_system(name: str, systems: Mapping[str, Callable[..., T]], packages: Mapping[str, str], *arguments: Any) -> T:
    """The one of `systems` called `name`, made from `arguments`; `packages` names what some of them need.

    Raises UsageError for a name that there is not and for a package that is not installed, CheckError for one that is
    and cannot be imported.
    """
    if name not in systems:
        raise UsageError(f"no system is called {name!r}", where="--system", fix="choose from " + ", ".join(systems))
    package = packages.get(name)
    if package is None:
        return systems[name](*arguments)
    if not installed(package):
        raise UsageError(f"{name} needs the package {package}", where="--system", fix=_FIX)
    try:
        return systems[name](*arguments)
    except ImportError as error:
        what = f"{package} is installed but cannot be imported: {error}"
        raise CheckError(what, where="--system", fix=f"{_FIX}, or leave {name} out") from error
