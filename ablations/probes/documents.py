"""From trained runs to a probe's document: `STUDY/probes/NAME.json`, written whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ablations.probes.catalogue import Probe
from ablations.study import Study, StudyRun
from repro import SEMANTICS_VERSION, __version__
from repro.files import digest_of, read_json, write_json
from repro.probes import PROBES_VERSION
from repro.runs.directory import RunDirectory
from repro.runs.environment import cpu_model, environment

SCHEMA = 1
PLACE = "probes"
"""The documents' folder in a study."""
LAYERS = "bench-layers.json"
"""What `layers` measured, where the report looks for its Table 1."""

Say = Callable[[str], object]


def write_document(probe: Probe, scale: str, study: Study | None, seeds: Sequence[int], place: Path, say: Say) -> Path:
    """Measure `probe` on the runs of `study` with `seeds`, unless the document there is of just these.

    {"schema", "probe", "title", "scale", "seeds", "settings", "runs": [{"id", "variant", "seed", "directory" (in its
    study, which `extrapolation` has for itself), "hash", "bleu"}], "version", "semantics", "probes", "processor" (where
    no run is measured), "inputs" (digest of all this), "machine", "figures": {name: as `repro.probes.figures`},
    "results": [{"seed", "measured" (without a trained model), "rows": {variant: ...}}]}. Rows that have no trained
    weights are left out, and said.
    """
    path = place / PLACE / f"{probe.name}.json"
    runs = _runs(probe, study, seeds, say)
    head = _head(probe, scale, study, seeds, runs)
    if path.is_file() and read_json(path).get("inputs") == head["inputs"]:
        say(f"{probe.name}: measured already, {path}")
        return path
    results = [
        _result(probe, seed, [run for run in runs if run.seed == seed], number == 0, say)
        for number, seed in enumerate(seeds)
    ]
    document = head | {"machine": _machine(), "figures": probe.figures(results), "results": results}
    write_json(path, document)
    if probe.name == "layers":
        write_json(place / LAYERS, results[0]["measured"])
    say(f"{probe.name}: {path}")
    return path


def _runs(probe: Probe, study: Study | None, seeds: Sequence[int], say: Say) -> list[StudyRun]:
    """The trained runs of the probe's rows."""
    if study is None:
        return []
    found = []
    for run in study.planned:
        if run.variant in probe.rows and run.seed in seeds:
            if run.directory.result() is None:
                say(f"{probe.name}: {run.variant} seed {run.seed} is {run.directory.status().state}, left out")
            else:
                found.append(run)
    return found


def _head(
    probe: Probe, scale: str, study: Study | None, seeds: Sequence[int], runs: Sequence[StudyRun]
) -> dict[str, Any]:
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "probe": probe.name,
        "title": probe.title,
        "scale": scale,
        "seeds": list(seeds),
        "settings": list(study.document["set"]) if study is not None else [],
        "runs": [_run(run) for run in runs],
        "version": __version__,
        "semantics": SEMANTICS_VERSION,
        "probes": PROBES_VERSION,
    }
    if not probe.rows:
        head["processor"] = cpu_model()
    return head | {"inputs": digest_of(head)}


def _run(run: StudyRun) -> dict[str, Any]:
    directory = RunDirectory(run.path)
    result = directory.result() or {}
    bleu = (result.get("test") or {}).get("bleu")
    return {
        "id": run.id,
        "variant": run.variant,
        "seed": run.seed,
        "directory": f"{run.path.parent.name}/{run.path.name}",
        "hash": directory.hash(),
        "bleu": bleu,
    }


def _result(probe: Probe, seed: int, runs: Sequence[StudyRun], first: bool, say: Say) -> dict[str, Any]:
    from repro.runs.trained import Trained

    measured = probe.measured_alone(seed) if first or probe.rows else None
    rows = {}
    for run in runs:
        say(f"{probe.name}: {run.variant} seed {run.seed}")
        rows[run.variant] = probe.measured(Trained.load(run.path))
    return {"seed": seed, "measured": measured, "rows": rows}


def _machine() -> dict[str, Any]:
    found = environment()
    return {name: found[name] for name in ("python", "platform", "cpu", "versions", "code")}
