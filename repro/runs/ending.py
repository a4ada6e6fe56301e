"""How an attempt ended, from what its work returned or raised."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.config.schema import from_document
from repro.errors import UserError, may_pass
from repro.files import write_text
from repro.runs.attempts import EndState
from repro.runs.events import Interrupted, Superseded


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """The end of one attempt."""

    state: EndState | None
    """None: the run belongs to a newer owner, there is nothing to write."""
    reason: str = ""
    may_pass: bool = False
    """Of a failure: whether another attempt may fare better."""

    def document(self) -> dict[str, Any]:
        """The plain document that `Ending.read` reads back."""
        return dataclasses.asdict(self)

    @staticmethod
    def read(document: Mapping[str, Any]) -> Ending:
        """The ending of a document."""
        return from_document(Ending, document)


def ending_of(work: Callable[[], Ending | None], log: Path) -> Ending:
    """How `work` ends: what it returns, or "done" for None; every error is told in one line.

    The traceback of an error that nobody foresaw goes into the file `log`.
    """
    try:
        return work() or Ending(state="done")
    except Interrupted as interruption:
        return Ending(state="stopped", reason=str(interruption))
    except Superseded:
        return Ending(state=None)
    except UserError as error:
        return Ending(state="diverged" if _is_divergence(error) else "failed", reason=str(error))
    except Exception as error:
        return Ending(state="failed", reason=_told(error, log), may_pass=may_pass(error))


def _is_divergence(error: UserError) -> bool:
    from repro.training.trainer import DivergenceError  # torch takes seconds, and most runs never come here

    return isinstance(error, DivergenceError)


def _told(error: Exception, log: Path) -> str:
    told = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        write_text(log, traceback.format_exc())
    except UserError:
        return told  # a full disk keeps no traceback
    return f"{told} (traceback in {log.parent.name}/{log.name})"
