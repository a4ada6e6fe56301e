"""What goes wrong between a study and its tracking store, in plain words."""

from __future__ import annotations

_HINTS = (
    ("out-of-date database schema", "the database was made by another MLflow version: run `mlflow db upgrade` on it"),
    ("database is locked", "the database is locked by another program"),
    ("disk is full", "the disk is full"),
    ("readonly database", "the database may not be written"),
    ("unable to open database file", "the database cannot be opened"),
    ("401", "it wants a login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"),
    ("403", "it refuses this user: check MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN"),
    ("404", "something answers there, but no MLflow server of this version"),
    ("Read timed out", "it takes too long to answer (MLFLOW_HTTP_REQUEST_TIMEOUT sets the patience, in seconds)"),
    ("Connection refused", "nothing listens there"),
    ("Name or service not known", "the host is unknown"),
    ("Failed to resolve", "the host is unknown"),
    ("timed out", "no answer in time"),
    ("Max retries exceeded", "no answer"),
    ("too many 50", "it answers with errors"),
)
_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_ALREADY_EXISTS", "REQUEST_LIMIT_EXCEEDED")


class TrackingError(Exception):
    """The store did not take something. `lasting`: trying the same again will not help."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


def tracking_error(error: Exception, store: str) -> TrackingError:
    """`error`, from the MLflow client or below, as one line about the store called `store`."""
    from mlflow.exceptions import MlflowException

    text = " ".join(str(error).split())
    for sign, words in _HINTS:
        if sign in text:
            return TrackingError(f"MLflow at {store}: {words}")
    lasting = isinstance(error, MlflowException) and error.error_code in _REFUSALS
    return TrackingError(f"MLflow at {store}: {text[:300]}", lasting=lasting)
