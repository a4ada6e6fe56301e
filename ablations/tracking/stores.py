"""Where runs are tracked: the study's own SQLite database, or what MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ablations.tracking.errors import TrackingError
from ablations.tracking.locks import exclusive
from ablations.tracking.names import shown
from repro.errors import UsageError

URI_VARIABLE = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"

_SERVERS = ("http", "https", "databricks", "uc", "mlflow-plugin")
_DATABASES = ("postgresql", "mysql", "mssql")

SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    # The client's own patience is 120 s a request and minutes of retries; a study goes on and tries again later.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "GIT_PYTHON_REFRESH": "quiet",
}
"""Environment of the MLflow client, set before it is imported; what the user has set stays."""
_FILE_SETTINGS = {"MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}
"""The same for a database file. A kept connection would go on writing to a file that was deleted meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Store:
    """One tracking store."""

    uri: str
    """As MLflow takes it. May hold a password: print `name`."""
    database: Path | None
    """The SQLite file; None for servers."""
    artifacts: Path | None
    """Where artifacts of new experiments go; None: the server decides."""
    own: bool
    """Whether it lies inside the study and moves with it."""

    @property
    def name(self) -> str:
        """What may be shown and stored: the file's path, or the address without user and password."""
        return str(self.database) if self.database is not None else shown(self.uri)

    @property
    def key(self) -> str:
        """The store's name in the study's marker file: the same after the study was moved."""
        return DATABASE if self.own else self.name

    @property
    def server(self) -> bool:
        """Whether this is a server with pages of its own."""
        return self.artifacts is None


def store_of(study: Path, environment: Mapping[str, str] = os.environ) -> Store:
    """The store for the study in the directory `study`. Raises UsageError for an address MLflow cannot use."""
    study = study.resolve()
    uri = environment.get(URI_VARIABLE, "").strip()
    if not uri:
        database = study / DATABASE
        return Store(uri=f"sqlite:///{database}", database=database, artifacts=study / ARTIFACTS, own=True)
    try:
        scheme, _ = urlsplit(uri).scheme.split("+")[0], urlsplit(uri).port
    except ValueError as error:  # what it tells is left out: it may be a part of a password
        what = "the address cannot be read: its brackets or its port are none"
        raise UsageError(what, where=URI_VARIABLE, fix="use http://HOST:PORT") from error
    if scheme == "sqlite" and uri.startswith(f"{urlsplit(uri).scheme}:///"):
        database = Path(uri.partition(":///")[2].split("?")[0]).absolute()
        own = database == study / DATABASE
        return Store(uri=f"sqlite:///{database}", database=database, artifacts=database.parent / ARTIFACTS, own=own)
    if scheme in _DATABASES:
        return Store(uri=uri, database=None, artifacts=study / ARTIFACTS, own=False)
    if scheme in _SERVERS or uri in _SERVERS:
        return Store(uri=uri, database=None, artifacts=None, own=False)
    raise UsageError(
        f"{shown(uri)!r} is no address of an MLflow server or database",
        where=URI_VARIABLE,
        fix="use http://HOST:PORT or sqlite:///PATH, or unset it to track inside the study",
    )


def given_store(study: Path, uri: str | None, environment: Mapping[str, str] = os.environ) -> Store:
    """The store at `uri`, or at MLFLOW_TRACKING_URI. Raises UsageError when neither is given or it is no address."""
    uri = uri or environment.get(URI_VARIABLE, "").strip()
    if not uri:
        raise UsageError("no MLflow server", where="--tracking-uri", fix=f"name it there or in {URI_VARIABLE}")
    return store_of(study, {URI_VARIABLE: uri})


def set_environment(store: Store) -> None:
    """Set what the MLflow client of `store` reads from the environment, before its first import."""
    for name, value in (SETTINGS | (_FILE_SETTINGS if store.database is not None else {})).items():
        os.environ.setdefault(name, value)


def has_schema(database: Path) -> bool:
    """Whether `database` is a complete MLflow database, of any version. Raises TrackingError if it cannot be read."""
    if not database.is_file():
        return False
    try:
        with reading(database) as connection:
            return bool(connection.execute("SELECT count(*) FROM alembic_version").fetchone()[0])
    except sqlite3.Error as error:
        if any(sign in str(error) for sign in ("no such table", "not a database")):
            return False
        raise TrackingError(f"the database {database} cannot be read: {error}") from error


def running_in(database: Path, parent: str, tag: tuple[str, str]) -> set[str] | None:
    """Ids of the undeleted runs that stand as RUNNING and carry `tag`; None when the run `parent` is gone.

    Asked without importing MLflow.
    """
    active = "SELECT run_uuid FROM runs WHERE lifecycle_stage = 'active'"
    tagged = "SELECT run_uuid FROM tags WHERE key = ? AND value = ?"
    try:
        with reading(database) as connection:
            if connection.execute(f"{active} AND run_uuid = ?", (parent,)).fetchone() is None:
                return None
            found = connection.execute(f"{active} AND status = 'RUNNING' AND run_uuid IN ({tagged})", tag)
            return {run_id for (run_id,) in found}
    except sqlite3.Error:
        return None


def identity(database: Path) -> tuple[int, int] | None:
    """Which file stands at `database`: it changes when the file is deleted and made anew. None: there is none."""
    try:
        stat = database.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


@contextmanager
def reading(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection to an existing file. Raises sqlite3.Error when there is none.

    Not a read-only one: it has to roll back what a killed writer left half done before anything can be read.
    """
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=rw", uri=True, timeout=20)) as connection:
        yield connection


def create_schema(store: Store) -> None:
    """Create the SQLite database of `store` if there is none, whole or not at all.

    Of several processes that call at once one creates it: it is filled under a temporary name, then linked to its
    own, which fails if that exists. Raises TrackingError when the file is something else.
    """
    database = store.database
    if database is None or has_schema(database):
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(database.with_name(f".{database.name}.lock"), seconds=120):
        if has_schema(database):
            return
        if database.exists() and database.stat().st_size > 0:
            raise TrackingError(f"{database} is no MLflow database; move it away or set {URI_VARIABLE}", lasting=True)
        for left in database.parent.glob(f".{database.name}.*.new*"):
            left.unlink(missing_ok=True)  # of a creator that was killed: we hold the lock now
        temporary = database.with_name(f".{database.name}.{uuid.uuid4().hex[:12]}.new")
        try:
            _fill(temporary, store)
            database.unlink(missing_ok=True)  # an empty file at most
            _publish(temporary, database)
        finally:
            temporary.unlink(missing_ok=True)


def _fill(path: Path, store: Store) -> None:
    set_environment(store)
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    # Nobody sees the file before it is complete: flushing after each of its thousand statements would be in vain.
    event.listen(Engine, "connect", _unsafe)
    try:
        made = SqlAlchemyStore(f"sqlite:///{path}", str(store.artifacts))
        made.engine.dispose()
    except MlflowException as error:
        raise TrackingError(f"the database {store.name} cannot be made: {error.message}") from error
    finally:
        event.remove(Engine, "connect", _unsafe)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _unsafe(connection: sqlite3.Connection, record: object) -> None:  # noqa: ARG001
    connection.execute("PRAGMA synchronous = OFF")


def _publish(temporary: Path, database: Path) -> None:
    try:
        os.link(temporary, database)
    except FileExistsError:
        return  # another host was quicker: its file is as good
    except OSError:
        temporary.rename(database)  # a file system without hard links


def rehome(database: Path, experiment: str, old: str, new: str) -> None:
    """After a study was moved: let the experiment's artifacts in `database` be found under `new` instead of `old`."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(database, timeout=20)) as connection, connection:
        connection.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (new, experiment))
        connection.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
            "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
            (new, len(old) + 1, experiment, len(old), old),
        )
