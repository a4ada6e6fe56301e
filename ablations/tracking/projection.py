"""Brings the tracking store to what the run directories say: each run once, each metric once a step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ablations.study import StudyRun
from ablations.tracking.artifacts import FILES, files_tag, short_digest, short_digests, stored_digests
from ablations.tracking.names import LONGEST_TAG, cut
from ablations.tracking.pages import view_tag
from ablations.tracking.points import Point, Tail, final_points
from ablations.tracking.records import MLFLOW_STATE, NOTE, PARENT, RunRecord, StudyRecord
from ablations.tracking.report import SyncReport
from ablations.tracking.server import Server, Tracked, is_parent, run_id_of
from ablations.tracking.summary import summary_points
from repro.errors import CheckError

DUPLICATE = "ablate.duplicate_of"


@dataclass(kw_only=True)
class _Child:
    """A child run and what is known to be in the store."""

    tracked: Tracked
    tail: Tail
    sent: dict[str, set[int]] = field(default_factory=dict)
    """Metric to the steps that the store has; asked for at the first need."""
    curves: set[str] = field(default_factory=set)
    """Metrics that metrics.jsonl holds."""


class Projection:
    """A connected store and a study. Throw it away after a TrackingError: the next one asks the store anew.

    `full`: ask for the steps of every metric instead of inferring them from the highest one, and look into every file.
    """

    def __init__(self, server: Server, record: StudyRecord, report: SyncReport, *, full: bool = False) -> None:
        self.record, self.report = record, report
        self.made_any = False
        self._server, self._full = server, full
        self._children: dict[str, _Child] = {}
        description = f"Runs of the table `{record.study.table}` at the scale `{record.study.scale}`."
        self.experiment = server.experiment(record.experiment, dict([view_tag(record), (NOTE, description)]))
        self.parent: Tracked
        self.reconcile()

    def reconcile(self) -> None:
        """Find parent and children by their tags; of two for one identity keep the older.

        That may be another one than the one written to: see `child`.
        """
        found = self._server.runs(self.experiment, self.record.id)
        parent = self.parent = self._one([run for run in found if is_parent(run)]) or self._new_parent()
        by_run: dict[str, list[Tracked]] = {}
        for run in found:
            if run_id_of(run) and not is_parent(run):
                by_run.setdefault(run_id_of(run), []).append(run)
        for run_id, candidates in by_run.items():
            kept = self._one(candidates)
            if kept is not None:
                self._server.send_tags(kept, {PARENT: parent.id})
                if run_id not in self._children or self._children[run_id].tracked.id != kept.id:
                    self._children[run_id] = self._child(kept, run_id)

    def child(self, run_id: str) -> str:
        """The id of the MLflow run that stands for a run; empty when there is none."""
        return self._children[run_id].tracked.id if run_id in self._children else ""

    def _one(self, candidates: list[Tracked]) -> Tracked | None:
        """The oldest of one identity's runs; the others are deleted. A deleted one is restored if there is no other."""
        for left in candidates:
            if DUPLICATE in left.tags and not left.deleted:  # whoever removed it was killed meanwhile
                self._server.delete(left, {})
        ours = [run for run in candidates if DUPLICATE not in run.tags]
        ranked = sorted(ours, key=lambda run: (run.deleted, run.age))
        if not ranked:
            return None
        kept, *others = ranked
        if kept.deleted:
            self._server.restore(kept)
        for other in others:
            if not other.deleted:
                self._server.delete(other, {DUPLICATE: kept.id})
                self.report.duplicates += 1
        return kept

    def _new_parent(self) -> Tracked:
        record = self.record
        self.made_any = True
        return self._server.create(self.experiment, record.study.name, record.tags(), record.started)

    def _child(self, tracked: Tracked, run_id: str) -> _Child:
        path = next((run.path for run in self.record.runs if run.id == run_id), self.record.study.path)
        return _Child(tracked=tracked, tail=Tail(path / "metrics.jsonl"))

    def run(self, run: StudyRun) -> tuple[RunRecord, str]:
        """Bring one run's child up to date. Returns what was read and the child's MLflow id ("" if not begun).

        Raises CheckError when the run's directory is damaged, TrackingError when the store does not take it.
        """
        try:
            record = RunRecord.read(self.record, run)
        except CheckError as error:
            self._damaged(run.id, str(error))
            raise
        if not record.begun:
            return record, ""
        child = self._children.get(run.id)
        made = child is None
        if child is None:
            child = self._children[run.id] = self._new_child(record)
        server, tracked = self._server, child.tracked
        news = [
            server.send_params(tracked, record.params()),
            self._send_points(child, record),
            self._send_files(tracked, record.files()),
            server.send_tags(tracked, record.tags()),
        ]
        was = tracked.status
        # The status last: a child that stands as FINISHED is complete.
        news.append(server.send_state(tracked, MLFLOW_STATE[record.status.state], record.ended))
        self.report.closed += not made and was == "RUNNING" and record.status.state == "stopped"
        (self.report.new if made else self.report.updated if any(news) else self.report.same).add(run.id)
        return record, tracked.id

    def _damaged(self, run_id: str, words: str) -> None:
        """Let a child whose records cannot be read not stand as RUNNING."""
        child = self._children.get(run_id)
        if child is not None and child.tracked.status == "RUNNING":
            self._close(child.tracked, "FAILED", words)

    def close_abandoned(self, running: Collection[str]) -> None:
        """No child stands as RUNNING but those of the runs `running`: not even when its run directory is gone."""
        for run_id, child in self._children.items():
            if child.tracked.status == "RUNNING" and run_id not in running:
                self._close(child.tracked, "KILLED", "nobody works on it, and its run directory is gone")

    def _close(self, tracked: Tracked, status: str, reason: str) -> None:
        self._server.send_tags(tracked, {"state": "stopped", "reason": cut(reason, LONGEST_TAG)})
        self._server.send_state(tracked, status, int(time.time() * 1000))
        self.report.closed += 1

    def _new_child(self, record: RunRecord) -> _Child:
        self.made_any = True
        tags = {**record.tags(), PARENT: self.parent.id}
        tracked = self._server.create(self.experiment, record.name, tags, record.started)
        return self._child(tracked, record.run.id)

    def _send_points(self, child: _Child, record: RunRecord) -> bool:
        points = child.tail.read()
        child.curves |= {point.key for point in points}
        finals = final_points(record.result, child.curves, record.ended) if record.result else []
        missing = self._missing(child, points, finals)
        for batch in self._server.send_points(child.tracked, missing):
            for point in batch:
                child.sent[point.key].add(point.step)
            self.report.points += len(batch)
        return bool(missing)

    def _missing(self, child: _Child, points: list[Point], finals: list[Point]) -> list[Point]:
        """Those whose metric the store does not have at that step, each once.

        Of two lines for one step the last counts; a final value only where there is no line.
        """
        both = points + finals
        for key in {point.key for point in both} - child.sent.keys():
            child.sent[key] = self._steps(child.tracked, key, [point.step for point in both if point.key == key])
        wanted = {(point.key, point.step): point for point in points}
        for point in finals:
            wanted.setdefault((point.key, point.step), point)
        return [point for point in wanted.values() if point.step not in child.sent[point.key]]

    def _steps(self, tracked: Tracked, key: str, ours: list[int]) -> set[int]:
        """The steps of a metric in the store.

        Points are sent in order and each request is kept whole or not at all, so a store whose highest step is ours
        has all of ours.
        """
        if key not in tracked.latest:
            return set()
        if not self._full and tracked.latest[key] == max(ours):
            return set(ours)
        return self._server.steps(tracked, key)

    def _send_files(self, tracked: Tracked, files: Mapping[str, Path]) -> bool:
        digests = short_digests(files)
        tag = files_tag(digests)
        if tracked.tags.get(FILES) == tag and not self._full:
            return False
        known = stored_digests(tracked.tags)
        if self._full:
            known = {name: short_digest(self._server.file(tracked, name) or b"") for name in digests}
        other = [name for name in digests if known.get(name) != digests[name]]
        if not other and tracked.tags.get(FILES) == tag:
            return False
        self._server.send_files(tracked, [(name, files[name]) for name in other])
        self._server.send_tags(tracked, {FILES: tag})
        self.report.files += len(other)
        return True

    def finish(self, states: Mapping[str, str], ended: int, *, active: bool) -> None:
        """Bring the parent up to date with `states`, those of all runs by id.

        `ended`: when the last run changed, Unix milliseconds. `active`: a driver is at work.
        """
        counts = Counter(states.values())
        server, parent, record = self._server, self.parent, self.record
        words, status = parent_state(counts, active=active)
        server.send_params(parent, record.params())
        self._send_files(parent, record.files())
        if status != "RUNNING":
            self._send_summary(counts, ended)
        server.send_tags(parent, {**record.tags(), "runs": in_words(counts), "state": words})
        server.send_state(parent, status, max(record.started, ended))

    def _send_summary(self, counts: Mapping[str, int], ended: int) -> None:
        points = summary_points(self.record, counts, ended)
        missing = [point for point in points if point.step > self.parent.latest.get(point.key, -1)]
        for batch in self._server.send_points(self.parent, missing):
            self.report.points += len(batch)


def in_words(counts: Mapping[str, int]) -> str:
    """The runs by state, as one phrase: "3 done, 1 failed"."""
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no runs"


def parent_state(counts: Mapping[str, int], *, active: bool) -> tuple[str, str]:
    """The study's state in words and as MLflow's status."""
    if active or counts.get("running"):
        return "running", "RUNNING"
    if counts.get("failed") or counts.get("diverged"):
        return "some runs failed", "FAILED"
    if counts.get("planned") or counts.get("stopped"):
        return "incomplete", "KILLED"
    return "done", "FINISHED"
