"""The nodes of a Ray cluster: which live, whether each is fit for the sweep, and what became of a process on one."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from repro import SEMANTICS_VERSION, __version__
from repro.errors import CheckError, UserError
from repro.files import digest_of_file
from repro.runs.processes import Process

ANSWER_SECONDS = 5.0
_TASK_SECONDS = 180.0
"""For a task on a node to begin, a new worker process and the unpacking of what a job brought included."""
_GOES_ON = "run the same command again: it goes on from the last checkpoints"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """What every process of a sweep must find as the driver has it, wherever it runs."""

    folder: str
    """A directory in the study, to be written as well; or the URL of a store, where there is no shared disk."""
    files: dict[str, str]
    """SHA-256 (hex) of files, by path."""
    versions: dict[str, str]

    @staticmethod
    def here(folder: Path, files: Sequence[Path]) -> Shared:
        """As this process sees it. Raises CheckError when a file cannot be read."""
        digests = {}
        for path in files:
            try:
                digests[str(path.absolute())] = digest_of_file(path)
            except OSError as error:
                raise CheckError(f"cannot be read ({error.strerror})", where=str(path)) from error
        return Shared(folder=str(folder.absolute()), files=digests, versions=_versions())

    @staticmethod
    def stored(url: str) -> Shared:
        """As this process is, with all else in the store at `url`."""
        return Shared(folder=url, files={}, versions=_versions())

    def fault(self) -> str:
        """What this process finds otherwise, in words; empty: nothing."""
        there = _versions()
        for name, wanted in self.versions.items():
            if there[name] != wanted:
                return f"has {name} {there[name] or 'not installed'}, here it is {wanted}"
        for path, digest in self.files.items():
            try:
                if digest_of_file(Path(path)) != digest:
                    return f"sees another file than here at {path}"
            except OSError as error:
                return f"cannot read {path} ({error.strerror})"
        if "://" in self.folder:
            return _cannot_store(self.folder)
        try:
            with tempfile.TemporaryFile(dir=self.folder):
                return ""
        except OSError as error:
            return f"cannot write to {self.folder} ({error.strerror})"


def _cannot_store(url: str) -> str:
    """Why this process cannot use the store at `url`; empty: it can."""
    from ablations.storage.objects import Objects

    name, content = f"probe/{uuid.uuid4().hex}", b"a node can write and read"
    try:
        objects = Objects(url)
        objects.write(name, content)
        lost = objects.read(name) != content
        objects.remove(name)
    except UserError as error:
        return f"cannot use {error}"
    return f"does not read at {url} what it wrote there" if lost else ""


def _versions() -> dict[str, str]:
    """What must be the same everywhere, for a run to be the same run."""
    try:
        torch = metadata.version("torch").partition("+")[0]  # what follows names the build: CPU, CUDA
    except metadata.PackageNotFoundError:
        torch = ""
    return {"attention-ablations": __version__, "code semantics": str(SEMANTICS_VERSION), "torch": torch}


def living() -> list[dict[str, Any]]:
    """Ray's nodes that live, as Ray tells."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def check_nodes(shared: Shared) -> None:
    """Raise CheckError, naming the first node that is unfit for the sweep and why."""
    asked = [(node, _on(node["NodeID"]).remote(_fault, asdict(shared))) for node in living()]
    for node, answer in asked:
        fault = _told(node, answer)
        if fault:
            stored = "://" in shared.folder
            place = "let every node use the storage" if stored else "share the study and the data among the nodes"
            fix = f"{place}, and install the same versions on all"
            raise CheckError(fault, where=f"node {_name(node)}", fix=fix)


def _told(node: Mapping[str, Any], answer: Any) -> str:
    """What the node finds otherwise than it is here; empty: nothing, or the node is dead."""
    import ray

    try:
        return str(ray.get(answer, timeout=_TASK_SECONDS))
    except ray.exceptions.RayTaskError as error:
        return f"cannot run this program ({_last(error)})"
    except ray.exceptions.RayError:
        ends = time.monotonic() + _TASK_SECONDS  # Ray needs up to 15 s to hold a node dead
        while time.monotonic() < ends:
            if all(found["NodeID"] != node["NodeID"] for found in living()):
                return ""
            time.sleep(1.0)
        return "does not answer"


def is_lost(process: Process, node: str) -> bool:
    """Whether Ray knows that `process`, a worker on its node `node`, is dead: the node is, or the node says so."""
    import ray

    if all(found["NodeID"] != node for found in living()):
        return True
    try:
        alive = ray.get(_on(node).remote(_alive, process.document()), timeout=ANSWER_SECONDS)
    except ray.exceptions.RayError:  # it died just now, or is too busy to answer: asked again
        return False
    return alive is False


def this_node() -> str:
    """The id of the node that this worker is on; empty outside of Ray."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def heeded(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises; CheckError as soon as the cluster's head is gone.

    It is called in a thread of its own: without its head Ray does not come back from some calls, and after a minute
    ends the process without a word.
    """
    import ray

    head = ray.get_runtime_context().gcs_address
    done: Future[Any] = Future()
    threading.Thread(target=_carry_over, args=(call, done), name="tune", daemon=True).start()
    unanswered = 0
    while not wait({done}, timeout=ANSWER_SECONDS).done:
        unanswered = 0 if answers(head) else unanswered + 1
        if unanswered > 1:
            raise CheckError("Ray died (its head does not answer)", where=head, fix=_GOES_ON)
    return done.result()


def _carry_over(call: Callable[[], Any], done: Future[Any]) -> None:
    try:
        done.set_result(call())
    except BaseException as error:
        done.set_exception(error)


def watch(share: Mapping[str, float], say: Callable[[str], None]) -> Any:
    """A callback of Tune that tells of nodes that die, and raises CheckError once none that lives has room for a run.

    Tune would wait for ever.
    """
    from ray import tune

    class NodeWatch(tune.Callback):  # type: ignore[misc]
        known: dict[str, str] | None = None
        looked = time.monotonic()

        def __reduce__(self) -> tuple[Any, ...]:
            return tune.Callback, ()  # Tune writes down its callbacks; nobody reads this one

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if time.monotonic() - self.looked < ANSWER_SECONDS:
                return
            self.looked = time.monotonic()
            nodes = living()
            if not nodes:
                raise CheckError("Ray died (its raylet was killed, perhaps for want of memory)", fix=_GOES_ON)
            now = {node["NodeID"]: _name(node) for node in nodes}
            for name in [name for id, name in (self.known or now).items() if id not in now]:
                say(f"node {name} died: its runs are taken over by the others")
            self.known = now
            if not any(has_room(node["Resources"], share) for node in nodes):
                raise CheckError("the nodes that are left have no room for a run", where="Ray", fix=_GOES_ON)

    return NodeWatch()


def has_room(found: Mapping[str, float], share: Mapping[str, float]) -> bool:
    """Whether a run's `share` ("cpu", "gpu") fits into all that a node has ("CPU", "GPU")."""
    return all(found.get(name.upper(), 0) >= wanted for name, wanted in share.items())


def answers(address: str) -> bool:
    """Whether somebody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS):
            return True
    except OSError:
        return False


def _on(node: str) -> Any:
    """A remote function that calls what it is given on the node `node`, beside the runs there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(_call).options(num_cpus=0, max_retries=0, scheduling_strategy=there)


def _call(function: Callable[[Any], Any], argument: Any) -> Any:
    return function(argument)


def _fault(shared: dict[str, Any]) -> str:
    return Shared(**shared).fault()


def _alive(process: dict[str, Any]) -> bool | None:
    return Process.read(process).alive()


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _last(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
