"""The command line `ablate`. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import typer

from ablations.cli import bench, data, doctor, probe, proof, published, records, runs, search, studies, submit
from repro import __version__
from repro.errors import UserError

app = typer.Typer(
    name="ablate",
    help="Does 'Attention Is All You Need' hold, here, on my data, on my hardware?",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
studies.register(app)
search.register(app)
submit.register(app)
runs.register(app)
records.register(app)
published.register(app)
probe.register(app)
proof.register(app)
doctor.register(app)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        raise typer.Exit(2)


@runtime_checkable
class _WrongUsage(Protocol):
    """What the option parser raises; its classes have other homes in other versions of typer."""

    exit_code: int

    def format_message(self) -> str: ...


def run(arguments: Sequence[str]) -> int:
    """Carry out one command line; its exit code: 0 all well, 1 some runs failed, 2 wrong usage, 3 a check failed."""
    logging.basicConfig(level=logging.WARNING, format="ablate: %(message)s", stream=sys.stderr)
    try:
        code = app(list(arguments), prog_name="ablate", standalone_mode=False)
    except UserError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 1)
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain again when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a place without permission, a disk that is full or broken: nothing of ours
        place = f"{error.filename}: " if error.filename else ""
        return _fail(f"{place}{error.strerror or error} (check the place, its permissions and the disk)", 3)
    except Exception as error:
        if not isinstance(error, _WrongUsage):
            raise
        message = error.format_message()
        return _fail(message + _usage(error), error.exit_code) if message else error.exit_code
    return code if isinstance(code, int) else 0


def _usage(error: _WrongUsage) -> str:
    """How the command is called that `error` is about; nothing where it is about none."""
    context = getattr(error, "ctx", None)
    if context is None:
        return ""
    called = " ".join(context.get_usage().removeprefix("Usage:").split())
    return f" ({called}; {context.command_path} --help tells more)"


def _fail(message: str, code: int) -> int:
    print("ablate: " + " ".join(message.split("\n")), file=sys.stderr)
    return code


def main() -> None:
    """The console command."""
    sys.exit(run(sys.argv[1:]))
