"""The study in a few numbers, for the parent run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from ablations.tracking.points import Point, is_number
from ablations.tracking.records import StudyRecord
from repro.errors import CheckError
from repro.runs.attempts import claims

BASE = "base"


def summary_points(record: StudyRecord, counts: Mapping[str, int], milliseconds: int) -> list[Point]:
    """Counts of runs, scores and costs of what is done. The step is the number of attempts made: it only grows."""
    attempts, bleu, base, seconds, flops = 0, [], [], 0.0, 0.0
    for run in record.study.runs:
        attempts += len(claims(run.directory))
        try:
            result = run.directory.result() or {}
        except CheckError:
            continue  # the run itself is reported as damaged
        score = result.get("test", {}).get("bleu")
        if is_number(score):
            bleu.append(score)
            if run.variant == BASE:
                base.append(score)
        seconds += result.get("train_seconds", 0.0)
        flops += result.get("train_flops", 0.0)
    values = {
        "study/runs": sum(counts.values()),
        "study/runs_done": counts.get("done", 0),
        "study/runs_failed": counts.get("failed", 0) + counts.get("diverged", 0),
        "study/train_seconds": seconds,
        "study/train_flops": flops,
        **({"study/best_test_bleu": max(bleu)} if bleu else {}),
        **({"study/base_test_bleu": fmean(base)} if base else {}),
    }
    return [
        Point(key=key, step=attempts, value=float(value), milliseconds=milliseconds) for key, value in values.items()
    ]
