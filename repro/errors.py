"""Errors that a user can cause: one clear line saying what, where and what to do."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend. Shown as one line, never as a traceback.

    `what` names the fault, `where` the place (a file, a key, a line number) and `fix` the remedy.
    The command line exits with `exit_code`.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        head = f"{where}: {what}" if where else what
        super().__init__(f"{head} ({fix})" if fix else head)


class UsageError(UserError):
    """Wrong usage: an unknown variant or key, a value that cannot be (exit code 2)."""

    exit_code = 2


class CheckError(UserError):
    """A check before the start failed: data, disk, memory, a foreign study (exit code 3)."""

    exit_code = 3


def may_pass(error: BaseException) -> bool:
    """Whether the same work may fare better when it is tried again: the one rule of what is retried.

    What a machine does may pass: OSError, MemoryError, and RuntimeError, with which torch tells of devices and lost
    peers. What a user must mend (UserError) stays, and so does a fault of the program (all else). A process that died
    without a word is retried, too.
    """
    return isinstance(error, OSError | MemoryError | RuntimeError)
