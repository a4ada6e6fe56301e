"""What a run is given to watch it with: it collects what the run says, or ends it after some updates."""

from __future__ import annotations

from repro.runs.events import Progress


class Notes:
    """The notes of a run, in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def progress(self, event: Progress) -> None:
        if event.note:
            self.notes.append(event.note)


class StopAt:
    """Asks a run to stop when it has looked so many times."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0
