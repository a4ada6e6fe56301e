"""What a user sees while runs run: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ablations.looks import Look, in_words, look
from ablations.status import table
from ablations.study import StudyRun

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from repro.runs.events import Progress

POLL_SECONDS = 2.0
PLAIN_SECONDS = 60.0
"""Between two lines about running runs where there is no terminal."""


class Teller:
    """Tells the user what happens, line by line, above the live table if there is one."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def say_once(self, text: str) -> None:
        """One line, unless it was said already."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)


@contextmanager
def watching(runs: Sequence[StudyRun], teller: Teller) -> Iterator[None]:
    """Show how `runs` go on, read from their directories every 2 s, until left."""
    ended = threading.Event()
    view = _LiveView(teller) if teller.console.is_terminal else _PlainView(teller)
    thread = threading.Thread(target=_watch, args=(runs, view, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        view.show([look(run) for run in runs])
        view.close()


def _watch(runs: Sequence[StudyRun], view: _LiveView | _PlainView, ended: threading.Event) -> None:
    while not ended.wait(POLL_SECONDS):
        view.show([look(run) for run in runs])


class _LiveView:
    """One table that is drawn over again and again."""

    def __init__(self, teller: Teller) -> None:
        from rich.live import Live

        self._started = time.monotonic()
        self._live: Live = Live(console=teller.console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, looks: Sequence[Look]) -> None:
        """Draw the table; where it is higher than the terminal, what runs and what is done comes first."""
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        room = max(3, self._live.console.height - 4)
        shown = list(looks)
        if len(shown) > room:
            rank = {"running": 0, "failed": 1, "diverged": 1, "stopped": 2, "done": 3}
            shown = sorted(shown, key=lambda found: rank.get(found.status.state, 4))[:room]
        self._live.update(table(shown, f"{in_words(looks)}, {minutes}:{seconds:02d}"), refresh=True)

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


class _PlainView:
    """A line whenever a run changes its state, and now and then one about those that run."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._before: dict[str, tuple[str, int]] = {}
        self._spoke = time.monotonic()

    def show(self, looks: Sequence[Look]) -> None:
        """Tell what is new."""
        for found in looks:
            now = (found.status.state, found.status.attempt)
            if found.run.id in self._before and self._before[found.run.id] != now:
                self._teller.say(line(found))
                self._spoke = time.monotonic()
            self._before[found.run.id] = now
        if time.monotonic() - self._spoke > PLAIN_SECONDS:
            self._spoke = time.monotonic()
            self._teller.say(in_words(looks) + "; " + "; ".join(_on_the_way(looks)))

    def close(self) -> None:
        """Nothing to take away."""


def line(found: Look) -> str:
    """A run and its state in one line."""
    status = found.status
    parts = [f"{found.run.variant} seed {found.run.seed}: {status.state}"]
    if found.bleu is not None:
        parts.append(f"BLEU {found.bleu:.2f}")
    if status.step and status.state != "running":
        parts.append(f"step {status.step}")
    return ", ".join(parts) + (f" ({found.remark})" if found.remark else "")


def _on_the_way(looks: Sequence[Look]) -> list[str]:
    return [
        f"{found.run.variant} seed {found.run.seed} at {100 * found.status.progress:.0f} %"
        for found in looks
        if found.status.state == "running"
    ]


class TrainingBar:
    """The observer of one run in this process: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._console = console
        self._bar = Progress(
            TextColumn("step {task.fields[step]}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("train", total=1.0, step=0, told="")
        self._spoke = -math.inf

    def __enter__(self) -> TrainingBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def progress(self, event: Progress) -> None:
        """Show where the run is."""
        told = f"loss {event.loss:.3f}, " if math.isfinite(event.loss) else ""
        told += f"{event.target_tokens_per_second:,.0f} target tokens/s"
        if event.note:
            self._console.print(f"step {event.step}: {event.note}", markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=event.progress, step=event.step, told=told)
        elif time.monotonic() - self._spoke > PLAIN_SECONDS / 6 and not event.note:
            self._spoke = time.monotonic()
            self._console.print(f"step {event.step}, {100 * event.progress:.0f} %: {told}", highlight=False)
