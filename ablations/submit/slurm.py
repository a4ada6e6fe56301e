"""`ablate submit slurm`: what is missing of a study as a SLURM array, or as a Ray inside one allocation."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ablations.cluster import Resources
from ablations.conduct import close_finished
from ablations.looks import look
from ablations.progress import Teller
from ablations.ready import make_ready
from ablations.selection import Selection
from ablations.study import PLAN, Study, StudyRun, default_path
from ablations.submit.frozen import JOBS, Frozen, Options, submissions
from ablations.submit.queued import queued
from ablations.submit.snapshot import Snapshot, snapshot, would_be
from ablations.submit.submitting import alone, freeze, job_environment, new_token, uncovered
from repro.errors import CheckError, UsageError, UserError
from slurm import submission
from slurm.queue import look as look_at_queue
from slurm.site import Site
from slurm.submission import Request

if TYPE_CHECKING:
    from ablations.room import Room

_MEMORY = re.compile(r"(\d+)([KMGTkmgt]?)[Bb]?")
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}
"""What SLURM takes a size to be in."""
TOKEN_TO_COME = "TOKEN"
"""Stands for the token in a script that is only shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a study is laid over nodes."""

    mode: Literal["array", "ray"] = "array"
    nodes: int = 1
    """Of one run in array mode, of the allocation in Ray mode."""
    runs_per_node: int = 1
    """In Ray mode."""
    resources: Resources = dataclasses.field(default_factory=Resources)
    """What one run gets, over all its nodes."""
    after_death: Literal["resume", "restart"] = "resume"

    def __post_init__(self) -> None:
        gpus = self.resources.gpus_per_run or 0.0
        if self.mode == "array" and gpus != int(gpus):
            fix = "take whole ones, or --mode ray, where runs share GPUs"
            raise UsageError(f"{gpus:g} GPUs for a task of its own", where="--gpus-per-run", fix=fix)
        if self.mode == "array" and self.runs_per_node != 1:
            raise UsageError("an array has one run a task", where="--runs-per-node", fix="--mode ray")
        if self.mode == "array" and self.resources.processes % self.nodes:
            what = f"{self.resources.processes} processes on {self.nodes} nodes"
            raise UsageError(what, where="--nodes", fix="give every node as many processes")

    def with_gpu(self, wanted: bool) -> Layout:
        """With a GPU for each run unless the user said how many."""
        if self.resources.gpus_per_run is not None or not wanted:
            return self
        return dataclasses.replace(self, resources=dataclasses.replace(self.resources, gpus_per_run=1.0))

    def demands(self) -> dict[str, Any]:
        """What is asked of the scheduler, in the words of `Request`."""
        cpus = max(self.resources.cpus_per_run, self.resources.processes)
        gpus = self.resources.gpus_per_run or 0.0
        demands = {"mode": self.mode, "nodes": self.nodes}
        if self.mode == "array":
            processes = self.resources.processes
            each = {"cpus": math.ceil(cpus / processes), "processes": processes // self.nodes}
            return demands | each | {"gpus": int(gpus) // self.nodes}
        return demands | {"cpus": math.ceil(cpus * self.runs_per_node), "gpus": math.ceil(gpus * self.runs_per_node)}

    def options(self, *, wants_gpu: bool) -> Options:
        """What the job is to know."""
        processes = self.resources.processes
        return Options(
            wants_gpu=wants_gpu,
            cpus_per_run=self.resources.cpus_per_run,
            gpus_per_run=self.resources.gpus_per_run,
            processes_per_run=processes // self.nodes if self.mode == "array" else processes,
            at_once=self.resources.at_once,
            after_death=self.after_death,
        )


def submit(
    selection: Selection,
    seeds: Sequence[int],
    *,
    path: Path | None,
    source: Path | None,
    site_file: Path | None,
    layout: Layout,
    teller: Teller,
    command: str,
) -> int:
    """Submit what is missing of a study and not queued yet; the exit code. When nothing is left there is no job."""
    site = _site(site_file, layout)
    layout = layout.with_gpu(selection.scale.gpu)
    ready = make_ready(
        selection,
        seeds,
        path=path,
        source=source,
        room=lambda _: _room(site, layout),
        cpus_per_run=layout.resources.cpus_per_run,
        teller=teller,
    )
    if ready.finished:
        close_finished(ready.study, teller)
        teller.say("no job is submitted")
        return 0
    with alone(ready.study.path, teller):
        _complete(ready.study.path.absolute(), site, teller)
        runs = uncovered([look(run) for run in ready.asked], _covered(ready.study.path, ready.asked), teller)
        if not runs:
            teller.say("every run that is missing is taken care of: no job is submitted")
            return 0
        _submit(ready.study, runs, site, layout, selection.scale.gpu, command, teller)
    name = shlex.quote(str(ready.study.path))
    teller.say(f"to see how it goes: ablate status {name}; to end it: ablate cancel {name}")
    return 0


def scripts(
    selection: Selection, seeds: Sequence[int], *, path: Path | None, site_file: Path | None, layout: Layout
) -> list[tuple[str, str]]:
    """What `submit` would hand to sbatch now, by name; nothing is written, prepared or submitted."""
    site = _site(site_file, layout)
    layout = layout.with_gpu(selection.scale.gpu)
    path = path or default_path(selection)
    count = _count_left(path, selection, seeds)
    if not count:
        raise CheckError("nothing is missing that is not queued already, there would be no job", where=str(path))
    request = _request(path, would_be(path), TOKEN_TO_COME, count, layout.demands(), site)
    return [(script.name, script.text) for script in submission.render(request, site, TOKEN_TO_COME)]


def _count_left(path: Path, selection: Selection, seeds: Sequence[int]) -> int:
    """How many runs would be submitted."""
    study = Study.load(path) if (path / PLAN).is_file() else None
    if study is not None:
        selection = selection.with_data(study.data.digest)
    wanted = {row.with_seed(seed).hash() for seed in seeds for row in selection.rows}
    looks = [look(run) for run in study.runs if run.hash in wanted] if study else []
    covered = _covered(path, [found.run for found in looks]) if looks else {}
    left_out = {
        found.run.hash
        for found in looks
        if found.finished or found.status.state == "running" or found.run.path in covered
    }
    return len(wanted - left_out)


def _site(file: Path | None, layout: Layout) -> Site:
    site = Site.load(file)
    if layout.mode == "array" and layout.resources.at_once is not None:
        site = site.model_copy(update={"at_once": layout.resources.at_once})
    return site


def _room(site: Site, layout: Layout) -> Room | None:
    """The memory of one run on a node, where the site file tells; a GPU's memory is not known here."""
    size = _MEMORY.fullmatch(site.memory or "")
    if size is None or not int(size[1]) or layout.resources.gpus_per_run:
        return None
    from ablations.room import Room

    where = f"the {site.memory} of a node that the site file asks for"
    if layout.runs_per_node > 1:
        where += f" for {layout.runs_per_node} runs"
    return Room(
        bytes=int(size[1]) * _UNITS[size[2].upper()] // layout.runs_per_node,
        kind="cpu",
        where=where,
        processes=layout.resources.processes // (layout.nodes if layout.mode == "array" else 1),
    )


def _covered(study: Path, runs: Iterable[StudyRun]) -> dict[Path, str]:
    """Those of `runs` that a task in the queue will do or does, each with that in words.

    Raises CheckError when SLURM does not answer: what may be queued is not submitted again.
    """
    queue = queued(study)
    if queue is None:
        return {}
    found = {run.path: queue.places.get(run.path.absolute()) for run in runs}
    places = {path: place for path, place in found.items() if place is not None}
    if not queue.asked and any(place.meaning == "unknown" for place in places.values()):
        what = f"cannot be asked for jobs that were submitted before ({'; '.join(queue.warnings)})"
        raise CheckError(what, where="SLURM", fix="submit again when it answers")
    return {path: f"{place.meaning} in job {place.job}" for path, place in places.items() if place.live}


def _complete(study: Path, site: Site, teller: Teller) -> None:
    """Bring submissions to their end that a command before began and was killed in, or whose answer got lost."""
    cut_short = set(submission.unsubmitted(study / JOBS))
    for frozen in submissions(study):
        if frozen.token in cut_short:
            teller.say(f"a submission before was cut short: {frozen.token} is completed")
            _hand_over(frozen, site, teller)


def _submit(
    study: Study,
    runs: Sequence[StudyRun],
    site: Site,
    layout: Layout,
    wants_gpu: bool,
    command: str,
    teller: Teller,
) -> None:
    frozen = freeze(
        study,
        runs,
        snapshot(study.path),
        token=new_token(),
        mode=layout.mode,
        options=layout.options(wants_gpu=wants_gpu),
        command=command,
        request=layout.demands(),
    )
    _hand_over(frozen, site, teller)


def _hand_over(frozen: Frozen, site: Site, teller: Teller) -> None:
    """Let SLURM have it. What was refused is forgotten, so that nothing stands in the way of another try."""
    code = frozen.study / frozen.code
    request = _request(frozen.study, code, frozen.token, len(frozen.runs), frozen.request, site)
    try:
        submission.submit(request, site, frozen.token, teller.say)
    except UserError:
        folder = frozen.study / JOBS
        if frozen.token not in {*submission.unsubmitted(folder), *(task.token for task in look_at_queue(folder).tasks)}:
            frozen.forget()
        raise


def _request(
    study: Path, code: Snapshot | Path, token: str, runs: int, demands: Mapping[str, Any], site: Site
) -> Request:
    array = demands["mode"] == "array"
    place = ["--task", "{task}"] if array else ["--address", "{address}"]
    command: Iterable[str] = [
        str(site.python),
        "-m",
        "ablations",
        "work",
        str(study.absolute()),
        "--submission",
        token,
        *place,
    ]
    return Request(
        folder=study.absolute() / JOBS,
        name=study.resolve().name,
        command=tuple(command),
        tasks=runs if array else 1,
        code=code if isinstance(code, Path) else code.path,
        environment=job_environment(),
        **demands,
    )
