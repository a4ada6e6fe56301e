"""Commands that behave as SLURM's do, well or ill, for what a real SLURM does not do when asked to."""

from __future__ import annotations

import os
import time
from pathlib import Path

SBATCH = r"""
mode=$(cat "$STUB/sbatch"); script="${!#}"
echo "$* ${SBATCH_ACCOUNT-} ${SBATCH_JOB_NAME-}" >> "$STUB/sbatch.calls"
case $mode in
refuse) echo "sbatch: error: Batch job submission failed: Invalid account specified" >&2; exit 1 ;;
lost) echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
esac
job=$((100 + $(wc -l < "$STUB/jobs")))
get() { sed -n "s/^#SBATCH --$1=//p" "$script"; }
echo "$job $(get array | sed 's/%.*//') $(get comment) $(get job-name)" >> "$STUB/jobs"
case $mode in
hang) while kill -0 $PPID 2> "$STUB/hang"; do sleep 0.1; done; exit 1 ;;  # its caller's output is held no longer
garbage) echo "Submitted, have fun"; exit 0 ;;
once) echo refuse > "$STUB/sbatch" ;;
esac
echo "$job;tests"
"""
SQUEUE = r"""
echo "$* ${SQUEUE_FORMAT-}" >> "$STUB/squeue.calls"
[[ $* = *--user=* && -e "$STUB/foreign" ]] && exit 0
[ -e "$STUB/squeue.down" ] && { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
while read -r job array comment name; do
    case $array in 0-*) last=${array#0-} ;; *) last=-1 ;; esac
    state=$(cat "$STUB/state.$job" 2>/dev/null || echo PENDING)
    [ "$state" = forgotten ] && continue
    [ "$last" = -1 ] && echo "$job|N/A|$state|None|$array|$comment $name"
    for index in $(seq 0 "$last"); do
        own=$(cat "$STUB/state.$job.$index" 2>/dev/null || echo "$state")
        echo "$job|$index|$own|Priority|$comment|$name"
    done
done < "$STUB/jobs"
"""
SACCT = r"""
echo "$*" >> "$STUB/sacct.calls"
[ -e "$STUB/sacct" ] || { echo "Slurm accounting storage is disabled" >&2; exit 1; }
cat "$STUB/sacct"
"""
SCONTROL = r"""
echo "$*" >> "$STUB/scontrol.calls"
case "$*" in
*config*) cat "$STUB/config" 2>/dev/null || echo "MaxArraySize = 1001" ;;
*"show job"*) echo "JobId=1 JobState=$(cat "$STUB/own") Reason=$(cat "$STUB/reason" 2>/dev/null || echo None) X=1" ;;
requeue*) [ -e "$STUB/norequeue" ] && { echo "Requested operation is presently disabled" >&2; exit 1; } ;;
esac
exit 0
"""
SCANCEL = r"""
echo "$*" >> "$STUB/scancel.calls"
[ -e "$STUB/foreign" ] && { echo "scancel: error: Kill job error on job id $1: Access/permission denied" >&2; exit 1; }
for job; do echo CANCELLED > "$STUB/state.$job"; done
"""


class Stubs:
    """A folder of commands, what they were asked, and the jobs that they took."""

    def __init__(self, place: Path) -> None:
        self._place = place
        (place / "bin").mkdir()
        commands = {"sbatch": SBATCH, "squeue": SQUEUE, "sacct": SACCT, "scontrol": SCONTROL, "scancel": SCANCEL}
        for name, text in commands.items():
            path = place / "bin" / name
            path.write_text(f"#!/bin/bash\n{text}")
            path.chmod(0o755)
        (place / "jobs").touch()
        self.say("sbatch", "take")
        self.environment = {"STUB": str(place), "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    def say(self, name: str, text: str) -> None:
        """Tell a command how to behave."""
        (self._place / name).write_text(text)

    def unsay(self, name: str) -> None:
        """Let it behave as before."""
        (self._place / name).unlink()

    def remove(self, command: str) -> None:
        """Take a command away."""
        (self._place / "bin" / command).unlink()

    def take(self, job: str) -> None:
        """One more job in the queue: number, array, comment, name."""
        with (self._place / "jobs").open("a") as jobs:
            jobs.write(f"{job}\n")

    def calls(self, command: str) -> list[str]:
        """What a command was asked, in order."""
        path = self._place / f"{command}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def jobs(self) -> list[str]:
        """The tickets of the jobs that sbatch took, accepted or not."""
        return [line.split()[2 if line.split()[1].startswith("0-") else 1] for line in self._lines()]

    def tasks(self) -> dict[str, int]:
        """How many tasks each job has, by its number."""
        words = [line.split() for line in self._lines()]
        return {job: int(array[2:]) + 1 if array.startswith("0-") else 1 for job, array, *_ in words}

    def state(self, job: str) -> str:
        """The state of a job, where it was told or cancelled."""
        path = self._place / f"state.{job}"
        return path.read_text().strip() if path.exists() else "PENDING"

    def _lines(self) -> list[str]:
        return (self._place / "jobs").read_text().splitlines()


def waited_for(path: Path, seconds: float = 60.0) -> str:
    """The content of `path`, once there is one."""
    ends = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < ends, f"{path} never came"
        time.sleep(0.05)
    return path.read_text()
