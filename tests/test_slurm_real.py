"""On a real SLURM: jobs that are warned, requeued, resubmitted, cancelled, that lose a node, that become a Ray."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from slurm_nodes import Slurm, wait_until

from slurm.queue import Queue, look
from slurm.raycluster import place
from slurm.record import records
from slurm.site import Site
from slurm.submission import Request, cancel, submit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SITE = Site(answer_seconds=60)
CODE = Path(__file__).parent.parent

WAITS = """
echo "start $SLURM_RESTART_COUNT" >> told
[ -n "$SLURM_RESTART_COUNT" ] && exit 0
trap 'echo USR1 >> told; exit 75' USR1
trap 'echo TERM >> told; exit 75' TERM
while :; do sleep 0.2; done
"""
"""Waits until it is told to save, once; started again it has nothing left to do."""

WAITS_FOR_TERM = WAITS.replace("trap 'echo USR1 >> told; exit 75' USR1", "trap '' USR1")
WAITS_ONCE = WAITS.replace('[ -n "$SLURM_RESTART_COUNT" ]', "[ -e again ]").replace(
    "echo USR1", "touch again; echo USR1"
)
"""Knows by a file that it ran before, for jobs that are not requeued."""
RANKS = """
import json, os, pathlib, signal, sys, time
if os.environ.get("SLURM_RESTART_COUNT"):
    sys.exit(0)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
told = {name: os.environ[name] for name in names} | {"SAVED": False}
place = pathlib.Path(f"rank{told['RANK']}.json")
def save(number, frame):
    time.sleep(int(told["RANK"]))  # Those that end first must not end the others.
    place.write_text(json.dumps(told | {"SAVED": True}))
    sys.exit(75)
signal.signal(signal.SIGUSR1, save)
place.write_text(json.dumps(told))
time.sleep(600)
"""
RAY = """
import json, pathlib, sys, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
here, other, address = pathlib.Path("ray.json"), pathlib.Path(sys.argv[1]) / "ray.json", sys.argv[2]
ray.init(address=address, log_to_driver=False)
nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
ask = ray.remote(num_cpus=1)(lambda: ray.get_runtime_context().get_node_id())
on = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
there = ray.get([ask.options(scheduling_strategy=where).remote() for where in on])
told = {"address": address, "nodes": len(nodes), "answered": len(set(there)), "cpus": ray.cluster_resources()["CPU"]}
pathlib.Path("ray.part").write_text(json.dumps(told))
pathlib.Path("ray.part").rename(here)
while not other.exists():  # Both clusters live at this moment.
    time.sleep(0.2)
time.sleep(float(sys.argv[3]))
"""


@dataclass(frozen=True)
class Study:
    """One folder of jobs on the cluster."""

    slurm: Slurm
    request: Request

    @property
    def folder(self) -> Path:
        return self.request.folder

    def submit(self, site: Site = SITE, token: str = "k7") -> str:
        """The number of its one job."""
        [job] = submit(self.request, site, token, lambda _: None).jobs
        return job

    def look(self) -> Queue:
        found = look(self.folder)
        assert not [warning for warning in found.warnings if "sacct" not in warning], self.told()
        return found

    def meanings(self) -> set[str]:
        return {task.meaning for task in self.look().tasks}

    def wait_for(self, *words: str) -> None:
        """Until the command has written just these words, a line each."""
        wait_until(lambda: self.words() == list(words), self.told)

    def wait_until_ended(self) -> None:
        wait_until(lambda: self.meanings() == {"ended"}, self.told)

    def words(self) -> list[str]:
        """What the command wrote, a line each; TERM once: SLURM sends it, too, and a shell that ends can take both."""
        path = self.folder / "told"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for before, line in zip(["", *lines], lines, strict=False) if (before, line) != ("TERM", "TERM")]

    def told(self) -> str:
        """All that is known, for when a test fails."""
        logs = "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self.folder.glob("*.log")))
        queue = self.slurm.ask("squeue", "--states=all", "--array")
        return f"{self.words()}\n{look(self.folder)}\n{logs}\n{queue}\n{self.slurm.told()}"


class Studies:
    """Studies on one cluster, in folders whose names ask for trouble."""

    def __init__(self, slurm: Slurm, place: Path) -> None:
        self.slurm, self._place = slurm, place

    def new(self, name: str, command: tuple[str, ...]) -> Study:
        folder = self._place / f'{name} 50%j "it\'s" हिन्दी' / "jobs"
        request = Request(
            folder=folder, name=f"{name} | 50% 'x'", command=command, tasks=1, mode="array", code=CODE, environment={}
        )
        return Study(self.slurm, request)

    def shell(self, name: str, text: str) -> Study:
        return self.new(name, ("bash", "-c", text))


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm(nodes=3, cpus=8) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(scope="module")
def studies(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(slurm, tmp_path_factory.mktemp("studies"))


@pytest.fixture(scope="module")
def timed(studies: Studies) -> dict[str, Study]:
    """Jobs of a minute, which wait for their time to be over while other tests run."""
    site = SITE.model_copy(update={"time": "00:01:00", "warning_seconds": 50, "extra": ["--nodelist=n1"]})
    found = {
        "warned": studies.shell("warned", WAITS),
        "overdue": studies.shell("overdue", WAITS_FOR_TERM),
        "resubmitted": studies.shell("resubmitted", WAITS_ONCE),
        "ranks": studies.new("ranks", (sys.executable, "-c", RANKS)),
    }
    found["ranks"] = replace(found["ranks"], request=replace(found["ranks"].request, nodes=2, processes=2))
    sites = {
        "resubmitted": site.model_copy(update={"requeue": False}),
        "ranks": site.model_copy(update={"extra": ["--nodelist=n[1-2]"]}),
    }
    for name, study in found.items():
        study.submit(sites.get(name, site))
    return found


def test_each_number_is_done_once_and_never_more_at_once_than_asked(timed: dict[str, Study], studies: Studies) -> None:
    study = studies.shell("array", 'echo "+ {task}" >> "$OUT"; sleep 0.3; echo "- {task}" >> "$OUT"')
    environment = {"OUT": str(study.folder / "told")}
    study = replace(study, request=replace(study.request, tasks=12, environment=environment))
    site = SITE.model_copy(update={"array_size": 5, "at_once": 3})
    assert len(submit(study.request, site, "k7", lambda _: None).jobs) == 3
    study.wait_until_ended()
    running, most, begun = 0, 0, []
    for sign, number in (line.split() for line in study.words()):
        running += 1 if sign == "+" else -1
        most = max(most, running)
        begun += [int(number)] if sign == "+" else []
    assert sorted(begun) == list(range(12))
    assert most <= 3


def test_a_job_requeued_by_another_hand_saves_and_goes_on(studies: Studies, slurm: Slurm) -> None:
    study = studies.shell("requeued", WAITS)
    job = study.submit()
    study.wait_for("start ")
    slurm.ask("scontrol", "requeue", f"{job}_0")
    study.wait_until_ended()
    assert study.words() == ["start ", "TERM", "start 1"]


def test_a_displaced_job_saves_and_goes_on(studies: Studies, slurm: Slurm) -> None:
    study = studies.shell("displaced", WAITS)
    study.submit(SITE.model_copy(update={"extra": ["--nodelist=n3"]}))
    study.wait_for("start ")
    everything = ["--partition=urgent", "--nodelist=n3", "--cpus-per-task=8", "--output=/dev/null"]
    slurm.ask("sbatch", *everything, "--wrap=true")
    study.wait_until_ended()
    assert study.words() == ["start ", "TERM", "start 1"]


def test_a_job_whose_node_is_lost_goes_on_elsewhere(studies: Studies, slurm: Slurm) -> None:
    study = studies.shell("lost", WAITS)
    study.submit(SITE.model_copy(update={"extra": ["--nodelist=n3"]}))
    study.wait_for("start ")
    slurm.ask("scontrol", "update", "nodename=n3", "state=down", "reason=test")
    wait_until(lambda: study.meanings() == {"waiting"}, study.told)
    slurm.ask("scontrol", "update", "nodename=n3", "state=resume")
    study.wait_until_ended()
    assert study.words()[0] == "start "
    assert study.words()[-1] == "start 1"


def test_a_cancelled_job_does_not_come_back_and_others_live_on(studies: Studies, slurm: Slurm) -> None:
    by_hand, by_us, other = (studies.shell(name, WAITS) for name in ("by hand", "by us", "other"))
    jobs = [study.submit() for study in (by_hand, by_us, other)]
    for study in (by_hand, by_us, other):
        study.wait_for("start ")
    slurm.ask("scancel", jobs[0])
    assert cancel(by_us.folder, lambda _: None) == [jobs[1]]
    for study in (by_hand, by_us):
        wait_until(lambda study=study: study.meanings() == {"failed"}, study.told)  # type: ignore[misc]
        assert study.words() == ["start ", "TERM"]
        assert [task.state for task in study.look().tasks] == ["CANCELLED"]
    assert other.meanings() == {"running"}
    assert by_us.submit() == jobs[1]
    assert cancel(by_us.folder, lambda _: None) == []
    assert cancel(other.folder, lambda _: None) == [jobs[2]]


def test_two_jobs_become_two_rays_at_once_and_end_with_all_they_started(studies: Studies, slurm: Slurm) -> None:
    first, second = (studies.new(name, ()) for name in ("ray one", "ray two"))
    places = []
    for study, other, seconds in ((first, second, "0"), (second, first, "600")):
        command = (sys.executable, "-c", RAY, str(other.folder), "{address}", seconds)
        request = replace(study.request, mode="ray", command=command, nodes=2, cpus=1)
        job = replace(study, request=request).submit()
        places.append(place(records(study.folder)[0], job))
    first.wait_until_ended()
    told = [json.loads((study.folder / "ray.json").read_text()) for study in (first, second)]
    assert all((one["nodes"], one["answered"], one["cpus"]) == (2, 2, 2) for one in told)
    assert told[0]["address"] != told[1]["address"]
    assert second.meanings() == {"running"}
    assert _processes_in(places[1])
    assert not places[0].exists()
    assert len(cancel(second.folder, lambda _: None)) == 1
    wait_until(lambda: not any(_processes_in(one) for one in places), second.told)


def test_a_warned_job_saves_and_goes_on(timed: dict[str, Study]) -> None:
    timed["warned"].wait_until_ended()
    assert timed["warned"].words() == ["start ", "USR1", "start 1"]


def test_a_job_that_may_not_be_requeued_goes_on_in_another(timed: dict[str, Study]) -> None:
    study = timed["resubmitted"]
    study.wait_until_ended()
    assert study.words() == ["start ", "USR1", "start "]
    assert [record.resubmissions for record in records(study.folder)] == [0, 1]
    assert {task.task for task in study.look().tasks} == {0}


def test_all_processes_of_a_run_over_two_nodes_are_warned_and_have_time_to_save(timed: dict[str, Study]) -> None:
    study = timed["ranks"]
    study.wait_until_ended()
    ranks = [json.loads((study.folder / f"rank{rank}.json").read_text()) for rank in range(4)]
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in ranks] == [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")]
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["SAVED"]) for one in ranks} == {("4", "2", True)}
    assert len({(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks}) == 1


def test_a_job_that_saves_only_when_its_time_is_over_goes_on(timed: dict[str, Study]) -> None:
    timed["overdue"].wait_until_ended()
    assert timed["overdue"].words() == ["start ", "TERM", "start 1"]


def _processes_in(place: Path) -> list[str]:
    """Command lines of processes that belong to the Ray in `place`."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [line] if str(place) in line else []
    return found
