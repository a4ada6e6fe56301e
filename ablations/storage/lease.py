"""The right of one driver to use a place in the store, renewed while it lives."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ablations.storage.objects import Objects
from repro.errors import CheckError
from repro.runs.processes import Process

LEASE = "lease.json"
TTL_SECONDS = 120.0
"""Silence after which a driver on another machine is held dead."""

_BEAT_SECONDS = 20.0
_SETTLE_SECONDS = 1.0
"""Stores know no exclusive creation: of two that write at once the later one wins, and both look again after this."""


class Lease:
    """Held from `with` to its end. Raises CheckError when another driver has it."""

    def __init__(self, objects: Objects, lost: Callable[[str], object]) -> None:
        """`lost`: called, with why, when the lease turns out to be somebody else's."""
        self._objects, self._lost = objects, lost
        self._id = uuid.uuid4().hex
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="storage-lease", daemon=True)

    def __enter__(self) -> Self:
        found = self._objects.read_json(LEASE)
        if found is not None and self._is_held(found):
            raise self._refusal(found)
        self._write()
        time.sleep(_SETTLE_SECONDS)
        found = self._objects.read_json(LEASE) or {}
        if found.get("id") != self._id:
            raise self._refusal(found)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            if (self._objects.read_json(LEASE) or {}).get("id") == self._id:
                self._objects.remove(LEASE)
        except CheckError:
            return  # it runs out by itself

    def _write(self) -> None:
        document = {"id": self._id, "driver": Process.current().document(), "time": time.time()}
        self._objects.write_json(LEASE, document)

    def _renew(self) -> None:
        while not self._ended.wait(_BEAT_SECONDS):
            try:
                found = self._objects.read_json(LEASE) or {}
                if found.get("id") not in (self._id, None):
                    self._lost(str(self._refusal(found)))
                    return
                self._write()
            except CheckError:
                continue  # away for a moment; the runs go on

    def _is_held(self, found: dict[str, Any]) -> bool:
        try:
            alive = Process.read(found["driver"]).alive()
            return alive if alive is not None else time.time() - float(found["time"]) < TTL_SECONDS
        except (KeyError, TypeError, ValueError):
            return False

    def _refusal(self, found: dict[str, Any]) -> CheckError:
        driver = found.get("driver", {})
        who = f"host {driver.get('host', '?')}, pid {driver.get('pid', '?')}"
        fix = f"wait for it, end it, or choose another prefix; one that died is forgotten after {TTL_SECONDS:.0f} s"
        return CheckError(f"another driver uses this place ({who})", where=f"--storage {self._objects.url}", fix=fix)
