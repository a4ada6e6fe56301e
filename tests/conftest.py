"""What several test modules stand on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tracking_study import empty_database

from ablations.ui import running_server


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps its store."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database(), folder / "mlflow.db")
    return folder


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    """A real MLflow server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        with running_server(home, 0) as (url, _):
            yield url
