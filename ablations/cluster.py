"""Ray, held at arm's length: a private one for this sweep or a given cluster, and Tune to run runs on it.

Ray is told runs, resources and retries and nothing else. What remains to be done is planned from disk, what came of it
is read from disk, and everything Ray writes is thrown away.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ablations.worker import Order, RunError, work
from repro.errors import CheckError, UsageError
from repro.runs.processes import Process

RETRIES = 2
"""Further tries of a run whose process failed or died."""

PRIVATE_ROOT = Path("/tmp")
"""Where a private Ray keeps its files: not TMPDIR, which batch systems make too long for the paths of sockets."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_PREFIX = "ablate-"
_ANSWER_SECONDS = 5.0
_NODE_SECONDS = 5.0
"""Between two looks at whether the cluster has a node that lives."""
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
    """None: one where the scale wants a GPU and there is one, else none."""


class Cluster:
    """A Ray to run runs on, from `with` to its end."""

    def __init__(self, resources: Resources, *, wants_gpu: bool, scratch: Path) -> None:
        self._resources, self._wants_gpu = resources, wants_gpu
        self._scratch = scratch.absolute()
        self._private: Path | None = None

    def __enter__(self) -> Self:
        _set_environment()
        if self._resources.address is None:
            self._start()
        else:
            self._join(self._resources.address)
        import ray

        try:
            check_room(ray.cluster_resources(), self._share())
        except UsageError:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, orders: Iterable[Order]) -> dict[str, str]:
        """Do the runs, as many at a time as there is room for; the reason of each that did not end well, by directory.

        Returns when none is left: the failure of one never ends the others. Raises CheckError when Ray itself died,
        for which Tune would wait for ever.
        """
        from ray import tune

        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # why a run failed stands in its directory
        storage = Path(tempfile.mkdtemp(prefix=".ray-", dir=self._private or self._scratch))
        try:
            results = tune.Tuner(
                tune.with_resources(_trainable, self._share()),
                param_space={"order": tune.grid_search([dataclasses.asdict(order) for order in orders])},
                tune_config=tune.TuneConfig(reuse_actors=True),
                run_config=tune.RunConfig(
                    name="sweep",
                    storage_path=str(storage),
                    failure_config=tune.FailureConfig(max_failures=RETRIES),
                    callbacks=[_node_watch()],
                    verbose=0,
                ),
            ).fit()
            return {
                result.config["order"]["run"]: _last_line(result.error)
                for result in results
                if result.error is not None
            }
        finally:
            shutil.rmtree(storage, ignore_errors=True)

    def _start(self) -> None:
        import ray

        self._private = private_directory()
        try:
            ray.init(
                address="local",
                num_cpus=self._resources.cpus or available_cpus(),
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(self._private),
            )
        except Exception as error:  # Ray raises plain ones, too, when a part of it does not come up in time
            ray.shutdown()
            shutil.rmtree(self._private, ignore_errors=True)
            fix = "free memory, /dev/shm and /tmp and run the same command again"
            raise CheckError(f"Ray does not start: {_last_line(error)}", fix=fix) from error

    def _end(self) -> None:
        import ray

        ray.shutdown()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)

    def _join(self, address: str) -> None:
        import ray

        _check_answers(address)
        try:
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

    def _share(self) -> dict[str, float]:
        return {"cpu": self._resources.cpus_per_run, "gpu": self.gpus_per_run}


def check_room(found: Mapping[str, float], share: Mapping[str, float]) -> None:
    """Raise UsageError when a run's `share` ("cpu", "gpu") is more than all that Ray `found` ("CPU", "GPU")."""
    for name, wanted in share.items():
        there = found.get(name.upper(), 0)
        if wanted > there:
            what = f"a run wants {wanted:g} {name.upper()}s, there are {there:g}"
            raise UsageError(what, where=f"--{name}s-per-run", fix="ask for fewer")


def _check_answers(address: str) -> None:
    """Raise CheckError when nobody listens at HOST:PORT, for which Ray would wait for minutes. Other forms pass."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        what = f"nobody answers ({error.strerror if isinstance(error, OSError) and error.strerror else error})"
        fix = "start Ray there or leave --address out"
        raise CheckError(what, where=f"--address {address}", fix=fix) from error


def _node_watch() -> Any:
    """A callback of Tune that raises CheckError once no node of the cluster lives."""
    import ray
    from ray import tune

    class NodeWatch(tune.Callback):  # type: ignore[misc]
        looked = time.monotonic()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if time.monotonic() - self.looked < _NODE_SECONDS:
                return
            self.looked = time.monotonic()
            if not any(node["Alive"] for node in ray.nodes()):
                fix = "run the same command again: it goes on from the last checkpoints"
                raise CheckError("Ray died (its raylet was killed, perhaps for want of memory)", fix=fix)

    return NodeWatch()


def _trainable(config: dict[str, Any]) -> dict[str, Any]:
    return work(Order(**config["order"]))


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


def private_directory() -> Path:
    """A new directory with a short path for a private Ray, whose sockets' paths may have 107 bytes.

    Those of sweeps that were killed are cleared away.
    """
    for old in PRIVATE_ROOT.glob(f"{_PREFIX}*/owner.json"):
        with suppress(OSError, ValueError, KeyError):
            if Process.read(json.loads(old.read_text())).alive() is False:
                shutil.rmtree(old.parent, ignore_errors=True)
    new = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=PRIVATE_ROOT))
    (new / "owner.json").write_text(json.dumps(Process.current().document()))
    return new


def _last_line(error: BaseException) -> str:
    """What an error says in the end, without the module of its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].removeprefix(f"{RunError.__module__}.{RunError.__name__}: ") if lines else type(error).__name__
