"""What goes wrong between a study and its tracking store, in plain words."""

from __future__ import annotations

import re

_HINTS = tuple(
    (re.compile(sign), words)
    for sign, words in (
        ("out-of-date database schema", "the database is of another MLflow version: run `mlflow db upgrade` on it"),
        ("database is locked", "the database is locked by another program"),
        ("disk is full", "the disk is full"),
        ("readonly database", "the database may not be written, or was deleted while in use"),
        ("unable to open database file", "the database cannot be opened"),
        ("no such table", "the database was deleted or is not MLflow's"),
        # A number alone is no sign: it may be a part of a port or of a run's id.
        (
            r"error code 401\b|\b401 Client Error|UNAUTHENTICATED",
            "it wants a login: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
        ),
        (
            r"error code 403\b|\b403 Client Error|PERMISSION_DENIED",
            "it refuses this user: check MLFLOW_TRACKING_USERNAME, MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN",
        ),
        (r"error code 404\b|\b404 Client Error", "something answers there, but no MLflow server of this version"),
        (
            "[Rr]ead timed out",
            "it takes too long to answer (MLFLOW_HTTP_REQUEST_TIMEOUT sets the patience, in seconds)",
        ),
        ("Connection refused", "nothing listens there"),
        ("Name or service not known|Failed to resolve", "the host is unknown"),
        ("timed out", "no answer in time"),
        (r"too many 5\d\d|error code 5\d\d\b|\b5\d\d Server Error", "it answers with errors"),
        ("Connection aborted|Connection reset|Remote end closed", "it breaks off connections"),
        ("Max retries exceeded", "no answer"),
    )
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
        if sign.search(text):
            return TrackingError(f"MLflow at {store}: {words}")
    lasting = isinstance(error, MlflowException) and error.error_code in _REFUSALS
    return TrackingError(f"MLflow at {store}: {text[:300]}", lasting=lasting)
