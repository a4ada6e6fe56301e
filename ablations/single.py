"""One run in this process: training it, scoring it, translating with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from ablations.progress import TrainingBar
from repro.config import RunConfig
from repro.data.text import refuse_marks
from repro.errors import CheckError, UsageError
from repro.runs.directory import RunDirectory

if TYPE_CHECKING:
    from rich.console import Console

_LINES_AT_ONCE = 2000
"""Lines that are read, translated and written together: they bound the memory and keep a pipe moving."""


def train_here(config: RunConfig, path: Path, data_directory: Path, console: Console, *, processes: int = 1) -> int:
    """Train `config` in the run directory `path`, with so many processes here; exit code 0 when it is done.

    A process that was started as one of several, through torchrun, joins these instead; rank 0 of them speaks.
    """
    from repro.runs.execute import execute, execute_joined
    from repro.training.joining import to_join

    joins = to_join()
    if joins and processes > 1:
        fix = "leave it out: torchrun has started the processes"
        raise UsageError(f"{processes} processes for each of several", where="--processes", fix=fix)
    run = RunDirectory.create_at(path, config, data_directory)
    before = run.status()
    if before.state == "done":
        console.print(f"{path}: done already, nothing to run", highlight=False, markup=False, soft_wrap=True)
    with _stoppable() as stop, TrainingBar(console) as bar:
        if joins:
            rank, status = execute_joined(run, observer=bar, stop=stop.is_set)
        else:
            rank, status = 0, execute(run, observer=bar, stop=stop.is_set, processes=processes)
    if rank:
        return 1 if status.state == "failed" else 0
    told = f" ({status.reason})" if status.reason else ""
    console.print(f"{path}: {status.state} at step {status.step}{told}", highlight=False, markup=False, soft_wrap=True)
    return 0 if status.state == "done" else 1


@contextmanager
def _stoppable() -> Iterator[threading.Event]:
    """While inside, SIGINT, SIGTERM and SIGUSR1 set the event; a second SIGINT raises KeyboardInterrupt."""
    asked = threading.Event()

    def handle(number: int, _: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def evaluate_here(path: Path, split: str, data_directory: Path | None = None) -> dict[str, Any]:
    """The scores of the run in `path` on `split`, as in its result.json."""
    from repro.runs.trained import Trained
    from repro.training.counters import Seconds
    from repro.training.evaluation import evaluate

    trained = Trained.load(path, data_directory)
    config = trained.config
    found = evaluate(
        trained.model, trained.prepared, split, config, config.decode, device=trained.device, seconds=Seconds()
    )
    return {"variant": config.variant, "seed": config.seed, "split": split} | found.scores


def translate_stream(
    path: Path,
    data_directory: Path | None,
    source: IO[bytes],
    target: IO[bytes],
    *,
    attention: Path | None = None,
) -> None:
    """Translate `source` into `target` with the run in `path`: line i of the one belongs to line i of the other.

    Lines end at "\\n" alone; a last one without it counts. `attention`: a file, .json or .html, for the weights of the
    first sentences. Raises CheckError for a byte-order mark, and naming the line that is not UTF-8 or longer than
    learned positions allow; UsageError for weights that there are not.
    """
    from ablations.probes import weights
    from repro.decoding.translate import translate_lines
    from repro.runs.trained import Trained

    if attention is not None:
        weights.check_name(attention)
    trained = Trained.load(path, data_directory)
    vocabulary = trained.prepared.vocabulary()
    done, first = 0, list[str]()
    for lines in _chunks(source):
        first += [line for line in lines if line.strip()][: weights.MOST - len(first)]
        found = translate_lines(
            trained.model, vocabulary, lines, trained.config.decode, device=trained.device, first_line=done + 1
        )
        done += len(lines)
        target.write("".join(f"{line}\n" for line in found.lines).encode("utf-8"))
        target.flush()
    if attention is not None:
        weights.write(trained, path, first, attention)


def _chunks(source: IO[bytes]) -> Iterator[list[str]]:
    lines: list[str] = []
    for number, raw in enumerate(source, 1):  # a binary file's lines end at "\n" and nowhere else
        if number == 1:
            refuse_marks(raw, "standard input")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            fix = "convert it, e.g. with iconv -t utf-8"
            raise CheckError(f"line {number} is not UTF-8", where="standard input", fix=fix) from error
        lines.append(text.removesuffix("\n").removesuffix("\r"))
        if len(lines) == _LINES_AT_ONCE:
            yield lines
            lines = []
    if lines:
        yield lines
