"""The MLflow client as this project uses it: few calls, batches, errors in plain words. The only user of mlflow."""

from __future__ import annotations

import logging
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from ablations.tracking.errors import TrackingError, tracking_error
from ablations.tracking.points import Point
from ablations.tracking.records import CREATED, KIND, RUN_ID, STUDY_ID
from ablations.tracking.stores import Store, create_schema, rehome, set_environment

METRICS_A_REQUEST = 1000
OTHERS_A_REQUEST = 100
"""MLflow's limits for one log_batch."""
_RUNS_A_PAGE = 200
T = TypeVar("T")
_ABSENT = re.compile(r"error code 404\b|\b404 Client Error|No such (file|artifact)|ensure that the path is correct")
"""What stores say of an artifact that they do not have."""
_NOISY = ("alembic", "mlflow", "urllib3.connectionpool")


@dataclass(kw_only=True, slots=True)
class Tracked:
    """One MLflow run as the store has it, kept up to date with what is sent."""

    id: str
    status: str
    """RUNNING, FINISHED, FAILED, KILLED or SCHEDULED."""
    deleted: bool = False
    started: int = 0
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    """Metric to its highest step."""

    @property
    def age(self) -> tuple[float, str]:
        """Sorts the oldest first."""
        created = self.started / 1000
        with suppress(KeyError, ValueError):  # anybody may have written into a tag
            created = float(self.tags[CREATED])
        return created, self.id


class Server:
    """A store that answers. Every method raises TrackingError."""

    def __init__(self, store: Store) -> None:
        self.store = store
        create_schema(store)
        set_environment(store)
        with self._plainly():
            from mlflow import MlflowClient

            for name in _NOISY:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            self._client = MlflowClient(tracking_uri=store.uri)

    def experiment(self, name: str, tags: Mapping[str, str]) -> str:
        """The id of the experiment called `name`, made or undeleted if needed."""
        with self._plainly():
            found = self._client.get_experiment_by_name(name) or self._new_experiment(name)
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
            for key, value in tags.items():
                if found.tags.get(key) != value:
                    self._tag_experiment(found.experiment_id, key, value)
        store = self.store
        if store.own and store.database is not None and found.artifact_location != str(store.artifacts):
            rehome(store.database, found.experiment_id, found.artifact_location, str(store.artifacts))
        return str(found.experiment_id)

    def _tag_experiment(self, id: str, key: str, value: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._client.set_experiment_tag(id, key, value)
        except MlflowException:
            # Of two studies that set a new tag at once one fails.
            if self._client.get_experiment(id).tags.get(key) != value:
                self._client.set_experiment_tag(id, key, value)

    def _new_experiment(self, name: str) -> Any:
        from mlflow.exceptions import MlflowException

        place = None if self.store.artifacts is None else str(self.store.artifacts)
        try:
            return self._client.get_experiment(self._client.create_experiment(name, artifact_location=place))
        except MlflowException as error:
            found = self._client.get_experiment_by_name(name)  # another driver may have been quicker
            if found is None:
                raise tracking_error(error, self.store.name) from error
            return found

    def runs(self, experiment: str, study: str) -> list[Tracked]:
        """Everything tracked of the study with the id `study`, parent and deleted runs included."""
        return self._search([experiment], f"tags.`{STUDY_ID}` = '{study}'", deleted=True)

    def _search(self, experiments: list[str], query: str, *, deleted: bool) -> list[Tracked]:
        from mlflow.entities import ViewType

        kind = ViewType.ALL if deleted else ViewType.ACTIVE_ONLY

        def ask(token: str | None) -> Any:
            return self._client.search_runs(
                experiments, query, run_view_type=kind, max_results=_RUNS_A_PAGE, page_token=token
            )

        return [_tracked(run) for run in self._pages(ask)]

    def experiments(self) -> dict[str, str]:
        """The ids of all experiments by name."""
        found = self._pages(lambda token: self._client.search_experiments(page_token=token))
        return {experiment.name: str(experiment.experiment_id) for experiment in found}

    def _pages(self, ask: Callable[[str | None], Any]) -> Iterator[Any]:
        """What all pages hold; `ask` gives the page of a token."""
        seen: set[str | None] = set()
        token: str | None = None
        while token not in seen:
            seen.add(token)
            with self._plainly():
                page = ask(token)
            yield from page
            if not page.token:
                return
            token = page.token
        raise TrackingError(f"MLflow at {self.store.name}: its pages have no end")

    def parents(self, experiment: str) -> list[Tracked]:
        """The parent runs of all studies in the experiment, oldest first."""
        return sorted(
            self._search([experiment], f"tags.`{KIND}` = 'study'", deleted=False), key=lambda parent: parent.age
        )

    def file(self, run: Tracked, name: str) -> bytes | None:
        """The artifact `name` of a run; None when the store does not have it."""
        from mlflow.exceptions import MlflowException

        with tempfile.TemporaryDirectory() as folder, self._plainly():
            try:
                found = Path(self._client.download_artifacts(run.id, name, folder))
            except (MlflowException, OSError) as error:
                if _ABSENT.search(str(error)):
                    return None
                raise
            return found.read_bytes() if found.is_file() else None

    def create(self, experiment: str, name: str, tags: Mapping[str, str], started: int) -> Tracked:
        """A new run with the tags it is found by, in one request."""
        stamped = {name: value for name, value in tags.items() if value} | {CREATED: f"{time.time():.3f}"}
        with self._plainly():
            return _tracked(self._client.create_run(experiment, start_time=started, tags=stamped, run_name=name))

    def steps(self, run: Tracked, key: str) -> set[int]:
        """The steps at which the store has the metric `key`."""
        with self._plainly():
            return {metric.step for metric in self._client.get_metric_history(run.id, key)}

    def send_points(self, run: Tracked, points: Sequence[Point]) -> Iterator[Sequence[Point]]:
        """Send `points` in their order; yields each batch when the store has it."""
        from mlflow.entities import Metric

        for batch in _batches(points, METRICS_A_REQUEST):
            metrics = [Metric(point.key, point.value, point.milliseconds, point.step) for point in batch]
            with self._plainly():
                self._client.log_batch(run.id, metrics=metrics)
            for point in batch:
                run.latest[point.key] = max(point.step, run.latest.get(point.key, point.step))
            yield batch

    def send_params(self, run: Tracked, params: Mapping[str, str]) -> bool:
        """Send the parameters that the run lacks; a parameter never changes. Returns whether any was sent."""
        from mlflow.entities import Param

        missing = {name: value for name, value in params.items() if name not in run.params}
        for batch in _batches(missing.items(), OTHERS_A_REQUEST):
            with self._plainly():
                self._client.log_batch(run.id, params=[Param(name, value) for name, value in batch])
        run.params |= missing
        return bool(missing)

    def send_tags(self, run: Tracked, tags: Mapping[str, str]) -> bool:
        """Send the tags that differ. Returns whether any was sent."""
        from mlflow.entities import RunTag

        # An empty tag is worth sending only to blank out an old one.
        other = {name: value for name, value in tags.items() if run.tags.get(name, "") != value}
        for batch in _batches(other.items(), OTHERS_A_REQUEST):
            with self._plainly():
                self._client.log_batch(run.id, tags=[RunTag(name, value) for name, value in batch])
        run.tags |= other
        return bool(other)

    def send_files(self, run: Tracked, files: Iterable[tuple[str, Path]]) -> None:
        """Store artifacts under their names; existing ones are replaced."""
        for name, path in files:
            folder = str(PurePosixPath(name).parent)
            with self._plainly():
                self._client.log_artifact(run.id, str(path), None if folder == "." else folder)

    def send_state(self, run: Tracked, status: str, ended: int) -> bool:
        """Set the run's status, with its end unless it is RUNNING. Returns whether it was another one."""
        if run.status == status:
            return False
        with self._plainly():
            if status == "RUNNING":
                self._client.update_run(run.id, status=status)
            else:
                self._client.set_terminated(run.id, status=status, end_time=ended)
        run.status = status
        return True

    def delete(self, run: Tracked, remark: Mapping[str, str]) -> None:
        """Close and delete a run that should not be there; MLflow keeps deleted runs until `mlflow gc`."""
        self.send_tags(run, remark)
        self.send_state(run, "KILLED", int(time.time() * 1000))
        with self._plainly():
            self._client.delete_run(run.id)
        run.deleted = True

    def restore(self, run: Tracked) -> None:
        """Undelete a run."""
        with self._plainly():
            self._client.restore_run(run.id)
        run.deleted = False

    def running(self, experiment: str, parent: str, study: str) -> set[str] | None:
        """Ids of the study's undeleted runs that stand as RUNNING; None when the run `parent` is gone."""
        from mlflow.exceptions import MlflowException

        query = f"tags.`{STUDY_ID}` = '{study}' and attributes.status = 'RUNNING'"
        with self._plainly():
            try:
                if self._client.get_run(parent).info.lifecycle_stage != "active":
                    return None
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise
            return {run.id for run in self._search([experiment], query, deleted=False)}

    @contextmanager
    def _plainly(self) -> Iterator[None]:
        """Errors of the client, of HTTP and of the database as TrackingError."""
        try:
            yield
        except TrackingError:
            raise
        except Exception as error:
            raise tracking_error(error, self.store.name) from error


def _tracked(run: Any) -> Tracked:
    document = run.to_proto().data  # the public form that has the metrics' steps
    return Tracked(
        id=run.info.run_id,
        status=run.info.status,
        deleted=run.info.lifecycle_stage == "deleted",
        started=run.info.start_time or 0,
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        latest={metric.key: metric.step for metric in document.metrics},
    )


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def is_parent(run: Tracked) -> bool:
    """Whether the run stands for the whole study."""
    return run.tags.get(KIND) == "study"


def run_id_of(run: Tracked) -> str:
    """Which run of the study a child is; empty for the parent."""
    return run.tags.get(RUN_ID, "")
