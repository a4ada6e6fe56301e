"""MLflow's pages for a study: their addresses, and a saved view of the runs with the columns that matter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from ablations.tracking.records import KIND, STUDY_ID, StudyRecord

COLUMNS = {
    "attributes.`Duration`": 80,
    "metrics.`test/bleu`": 90,
    "metrics.`test/chrf`": 90,
    "metrics.`test/perplexity`": 120,
    "metrics.`valid/bleu`": 90,
    "metrics.`model/parameters`": 140,
    "metrics.`train/flops`": 140,
    "metrics.`time/train_seconds`": 140,
    "metrics.`train/target_tokens_per_second`": 240,
    "tags.`changes`": 180,
    "tags.`state`": 90,
    "tags.`reason`": 240,
}
"""What the saved view shows of each run, as the page calls it, and how wide, in pixels. Units are in the names."""
CHARTS = (
    ("BAR", "test/bleu"),
    ("BAR", "test/perplexity"),
    ("LINE", "valid/bleu"),
    ("LINE", "valid/perplexity"),
    ("LINE", "train/loss"),
    ("BAR", "model/parameters"),
)
"""The saved view's first charts."""
ORDER = "metrics.`test/bleu`"
VIEW = "mlflow.sharedViewState."
"""Experiment tags of this name and a key are the page's saved views."""
_SECTION = "ablate-scores"
_TRAINING = "workflowType=machine_learning"
"""The page's side for model training; the other one is for language-model traces."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """Addresses of MLflow's pages for one study, on the server at `server`."""

    server: str
    experiment: str
    """The experiment's id."""
    study: str
    """The study's identity."""

    @property
    def runs(self) -> str:
        """The study's runs, best test BLEU first, with the columns of the saved view."""
        return f"{self._runs}&viewStateShareKey={self.study}"

    @property
    def nested(self) -> str:
        """All of the experiment: each study with its runs folded below it."""
        return self._runs

    @property
    def charts(self) -> str:
        """The study's runs as bars and learning curves, test BLEU first."""
        return f"{self.runs}&compareRunsMode=CHART"

    @property
    def _runs(self) -> str:
        return f"{self.server.rstrip('/')}/#/experiments/{self.experiment}/runs?{_TRAINING}"

    def run(self, id: str) -> str:
        """The page of one MLflow run; the parent's lists its children and holds the report."""
        return f"{self.server.rstrip('/')}/#/experiments/{self.experiment}/runs/{id}?{_TRAINING}"

    def compare(self, runs: Sequence[str]) -> str:
        """The runs with these MLflow ids side by side: all parameters, metrics and tags."""
        return f"{self.server.rstrip('/')}/#/compare-runs?{self._selection(runs)}&{_TRAINING}"

    def _selection(self, runs: Sequence[str]) -> str:
        return f"runs={_json(list(runs))}&experiments={_json([self.experiment])}"


def only_runs(study: str) -> str:
    """MLflow's search expression for a study's runs without their parent."""
    return f"tags.`{STUDY_ID}` = '{study}' and tags.`{KIND}` = 'run'"


def view_tag(record: StudyRecord) -> tuple[str, str]:
    """The experiment's tag that makes a saved view of the study, found in the page's menu "Views"."""
    state = {
        "searchFilter": only_runs(record.id),
        "orderByKey": ORDER,
        "orderByAsc": False,
        "selectedColumns": list(COLUMNS),
        "columnOrder": list(COLUMNS),
        "columnWidths": COLUMNS,
        "compareRunSections": [{"uuid": _SECTION, "name": "Scores", "display": True, "isReordered": False}],
        "compareRunCharts": [_chart(kind, metric) for kind, metric in CHARTS],
    }
    view = {
        "name": f"Scores of {record.study.name}",
        "createdAt": record.started,
        "updatedAt": record.started,
        "state": json.dumps(state),
    }
    return VIEW + record.id, json.dumps(view)


def _chart(kind: str, metric: str) -> dict[str, object]:
    return {
        "type": kind,
        "uuid": f"{_SECTION}-{metric}",
        "metricKey": metric,
        **({"selectedMetricKeys": [metric], "xAxisKey": "step", "lineSmoothness": 0} if kind == "LINE" else {}),
        "runsCountToCompare": 10,
        "metricSectionId": _SECTION,
        "deleted": False,
        "isGenerated": False,
    }


def _json(value: object) -> str:
    return quote(json.dumps(value, separators=(",", ":")), safe="")
