"""Ray, held at arm's length: a private one for this sweep or a given cluster, and Tune to run runs on it.

Ray is told runs, resources and retries and nothing else. What remains to be done is planned from disk, what came of it
is read from disk, and everything Ray writes is thrown away.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ablations import nodes
from ablations.worker import Order, RunError, work
from repro.errors import CheckError, UsageError
from repro.runs.owned import owned_directory
from repro.runs.processes import end_descendants

RETRIES = 2
"""Further tries in a row of a run whose process died, or that failed for a reason that may pass."""

STARTS = 3
"""How often a private Ray is started before that is given up."""

PRIVATE_ROOT = Path("/tmp")
"""Where a private Ray keeps its files: not TMPDIR, which batch systems make too long for the paths of sockets."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_PREFIX = "ablate-"
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Hardly anything goes through Ray's object store; its least is 75 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Where runs are run and what each gets."""

    address: str | None = None
    """A running cluster's address; None: a private Ray on this machine, ended with the sweep."""
    cpus: int | None = None
    """CPUs to use on this machine; None: those that this process may use."""
    cpus_per_run: float = 1
    gpus_per_run: float | None = None
    """None: one where the scale wants a GPU and there is one, else none. A part, e.g. 0.5: runs share a GPU."""
    at_once: int | None = None
    """Most runs at a time; None: as many as there is room for."""
    storage: str | None = None
    """The URL of a store through which runs travel; None: every node sees the study."""
    weights: bool = True
    """Whether what is stored comes here with its weights."""
    processes_per_run: int | None = None
    """Processes that share each run's batches; None: one for each of its GPUs, or one."""

    def __post_init__(self) -> None:
        gpus, processes = self.gpus_per_run or 0.0, self.processes_per_run
        for name, value in {"--gpus-per-run": gpus, "--cpus-per-run": self.cpus_per_run}.items():
            if not math.isfinite(value):
                raise UsageError(f"{value} is no number of devices", where=name)
        if gpus > 1 and gpus != int(gpus):
            raise UsageError(f"{gpus:g} GPUs a run", where="--gpus-per-run", fix="a part of one, or whole ones")
        if processes is not None and gpus and processes != max(1, int(gpus)):
            fix = "leave it out: a run has one process for each of its GPUs"
            raise UsageError(f"{processes} processes on {gpus:g} GPUs", where="--processes-per-run", fix=fix)

    @property
    def processes(self) -> int:
        """Processes of each run."""
        return self.processes_per_run or max(1, int(self.gpus_per_run or 1))


class Cluster:
    """A Ray to run runs on, from `with` to its end."""

    def __init__(
        self,
        resources: Resources,
        *,
        wants_gpu: bool,
        scratch: Path,
        shared: nodes.Shared | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """`scratch`: a directory that every node sees, for what Ray writes. `shared`: what every node must see."""
        self._resources, self._wants_gpu, self._shared, self._say = resources, wants_gpu, shared, say
        self._scratch = scratch.absolute()
        self._private: Path | None = None

    def __enter__(self) -> Self:
        _set_environment()
        if self._resources.address is None:
            self._start()
        else:
            self._join(self._resources.address)
        try:
            check_room(nodes.living(), self._share())
            if self._shared is not None:
                nodes.check_nodes(self._shared)
        except (UsageError, CheckError):
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, orders: Iterable[Order], *, trainable: Any = None, scheduler: Any = None) -> dict[str, str]:
        """Do the runs, as many at a time as there is room for; the reason of each that did not end well, by directory.

        Returns when none is left: the failure of one never ends the others. Raises CheckError when Ray itself died,
        for which Tune would wait for ever.
        `trainable` and `scheduler`: Tune's, for runs that may be stopped early.
        """
        from ray import tune

        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # why a run failed stands in its directory
        storage = (self._private or self._scratch) / "tune"
        try:
            tuner = tune.Tuner(
                tune.with_resources(trainable or _trainable(), self._share()),
                param_space={"order": tune.grid_search([dataclasses.asdict(order) for order in orders])},
                tune_config=tune.TuneConfig(
                    scheduler=scheduler, reuse_actors=True, max_concurrent_trials=self._resources.at_once
                ),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=str(storage),
                    failure_config=tune.FailureConfig(max_failures=RETRIES),
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # runs keep their own
                    callbacks=[nodes.watch(self._share(), self._say)],
                    verbose=0,
                ),
            )
            return {
                result.config["order"]["run"]: _last_line(result.error)
                for result in nodes.heeded(tuner.fit)
                if result.error is not None
            }
        finally:
            shutil.rmtree(storage, ignore_errors=True)

    def _start(self) -> None:
        """Start a private Ray. It gives up its own start after 30 s, too little for a busy machine: tried again."""
        for number in range(1, STARTS + 1):
            try:
                self._start_once()
                return
            except Exception as error:  # Ray raises plain ones, too, when a part of it does not come up in time
                self._end()
                if number == STARTS:
                    fix = "free memory, /dev/shm and /tmp and run the same command again"
                    raise CheckError(f"Ray does not start: {_last_line(error)}", fix=fix) from error
                self._say(f"Ray does not start ({_last_line(error)}): tried again")

    def _start_once(self) -> None:
        import ray

        self._private = owned_directory(PRIVATE_ROOT, _PREFIX)
        with _own_answer_to_sigterm():
            ray.init(
                address="local",
                num_cpus=self._resources.cpus or available_cpus(),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(self._private),
            )

    def _end(self) -> None:
        import ray

        ray.shutdown()
        if self._private is not None:
            end_descendants(str(self._private))  # those of a start that failed are unknown to Ray
            shutil.rmtree(self._private, ignore_errors=True)

    def _join(self, address: str) -> None:
        import ray

        _check_answers(address)
        try:
            with _own_answer_to_sigterm():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise CheckError(
                f"no Ray answers ({_last_line(error)})",
                where=f"--address {address}",
                fix="start it or leave --address out",
            ) from error

    @property
    def gpus_per_run(self) -> float:
        """GPUs that each run gets."""
        import ray

        if self._resources.gpus_per_run is not None:
            return self._resources.gpus_per_run
        return 1.0 if self._wants_gpu and ray.cluster_resources().get("GPU", 0) else 0.0

    @property
    def processes(self) -> int:
        """Processes of each run."""
        return self._resources.processes

    def _share(self) -> dict[str, float]:
        return {"cpu": max(self._resources.cpus_per_run, self.processes), "gpu": self.gpus_per_run}


@contextmanager
def _own_answer_to_sigterm() -> Iterator[None]:
    """While inside, Ray may set an answer of its own to SIGTERM, to exit at once; afterwards ours holds again."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def check_room(found: Sequence[Mapping[str, Any]], share: Mapping[str, float]) -> None:
    """Raise UsageError when a run's `share` ("cpu", "gpu") is more than any of the nodes `found` has ("Resources")."""
    most = {name: max((node["Resources"].get(name.upper(), 0) for node in found), default=0) for name in share}
    for name, wanted in share.items():
        if wanted > most[name]:
            there = f"there are {most[name]:g}" + (" on the largest node" if len(found) > 1 else "")
            what = f"a run wants {wanted:g} {name.upper()}s, {there}"
            raise UsageError(what, where=f"--{name}s-per-run", fix="ask for fewer")
    if not any(nodes.has_room(node["Resources"], share) for node in found):
        what = f"no node has {share['cpu']:g} CPUs and {share['gpu']:g} GPUs together"
        raise UsageError(what, where="--cpus-per-run, --gpus-per-run", fix="ask for fewer")


def _check_answers(address: str) -> None:
    """Raise CheckError when nobody listens at HOST:PORT, for which Ray would wait for minutes. Other forms pass."""
    place = address.removeprefix("ray://")
    if place.rpartition(":")[2].isdigit() and not nodes.answers(place):
        fix = "start Ray there or leave --address out"
        raise CheckError("nobody answers", where=f"--address {address}", fix=fix)


def _trainable() -> Any:
    """The class whose instances, one a worker, do one order after the other for Tune.

    A class, as Tune calls a function in a thread, where signals cannot be heeded.
    """
    from ray import tune

    class Worker(tune.Trainable):  # type: ignore[misc]
        def step(self) -> dict[str, Any]:
            return {**work(Order(**self.config["order"])), "done": True}

        def reset_config(self, new_config: dict[str, Any]) -> bool:  # noqa: ARG002 - Tune sets it
            return True

    return Worker


def available_cpus() -> int:
    """The CPUs that this process may use: its affinity mask, its SLURM share, its container's quota; at least one."""
    limits = [float(len(os.sched_getaffinity(0)))]
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK"):
        with suppress(KeyError, ValueError):
            limits.append(float(os.environ[name]))
    with suppress(OSError, ValueError):
        quota, period = CPU_QUOTA.read_text().split()
        limits.append(float(quota) / float(period))
    return max(1, int(min(limits)))


def _set_environment() -> None:
    """What Ray reads from the environment, here and in its workers."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    # Ray would let its workers yield to every other process, which makes the speeds that runs report meaningless.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - the name that Ray reads


def _last_line(error: BaseException) -> str:
    """What an error says in the end, without the module of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix(f"{RunError.__module__}.{RunError.__name__}: ") if lines else type(error).__name__


Carry = Callable[[Cluster, Sequence[Order]], dict[str, str]]
"""Lets a cluster do orders; the reason of each that did not end well, by directory."""
