"""Signals: what SLURM tells a job, passed to its command once."""

from __future__ import annotations

import signal
import subprocess
from types import FrameType, TracebackType
from typing import Self

AGAIN = 75
"""Saved and stopped, to go on later (EX_TEMPFAIL of sysexits.h)."""


class Signals:
    """USR1 (the time is nearly over) and TERM (preemption, requeue, scancel), passed to the command once.

    What comes after the first does no harm: the command is saving. `first` tells which it was.
    """

    def __init__(self, *, as_usr1: bool) -> None:
        self.first: signal.Signals | None = None
        self._as_usr1 = as_usr1
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._taken)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process = None

    def waited(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code of `process`, which gets the signal, also one that came before it began."""
        self._process = process
        if self.first is not None:
            self._pass()
        code = process.wait()
        if self.first is not None and -code in {signal.SIGUSR1, signal.SIGTERM}:
            return AGAIN  # It was not ready yet to take it.
        return code

    def _taken(self, number: int, _: FrameType | None) -> None:
        if self.first is None:
            self.first = signal.Signals(number)
            self._pass()

    def _pass(self) -> None:
        """srun ends its tasks at once on TERM, but hands USR1 to them: `as_usr1`."""
        if self._process is not None and self.first is not None:
            self._process.send_signal(signal.SIGUSR1 if self._as_usr1 else self.first)
