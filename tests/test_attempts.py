from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from small_disk import small_disk

from repro.config import RunConfig
from repro.runs import attempts
from repro.runs.attempts import Attempt, claim, claims, newest
from repro.runs.directory import RunDirectory
from repro.runs.processes import Process, end_descendants

RIVALS, ROUNDS = 8, 50
PATIENCE = 30.0

OWNER = """
import sys, time
from pathlib import Path
from repro.runs.attempts import claim
from repro.runs.directory import RunDirectory
attempt = claim(RunDirectory(Path(sys.argv[1])))
print(None if attempt is None else attempt.number, flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, RunConfig(), tmp_path)


@contextmanager
def owner(run: RunDirectory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A living process that tried to claim `run`, and the attempt's number as it said it ("None": refused)."""
    command = [sys.executable, "-c", OWNER, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def edit(path: Path, **changes: Any) -> None:
    """Change the claim file as another machine might have written it; its time of change stays."""
    times = path.stat().st_atime, path.stat().st_mtime
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    os.utime(path, times)


def make_foreign(path: Path, *, silent_for: float) -> None:
    """Turn the claim into one of another machine whose last sign of life was so many seconds ago."""
    edit(path, owner=replace(Process.current(), host="elsewhere").document())
    moment = time.time() - silent_for
    os.utime(path, (moment, moment))


def race(root: str, barrier: Barrier, wins: Any, name: int) -> None:
    """Claim every run under `root`, each at the same moment as all rivals; then live on until killed."""
    held = []
    for number in range(ROUNDS):
        run = RunDirectory(Path(root) / str(number))
        barrier.wait(PATIENCE)
        attempt = claim(run)
        if attempt is not None:
            held.append(attempt)
            wins.put((number, attempt.number, name))
    wins.put(None)
    time.sleep(600)


def race_of_processes(root: Path) -> list[tuple[int, int, int]]:
    """(round, attempt, winner) of a race of real processes, all killed at its end."""
    context = multiprocessing.get_context("fork")
    barrier, wins = context.Barrier(RIVALS), context.Queue()
    rivals = [
        context.Process(target=race, args=(str(root), barrier, wins, name), daemon=True) for name in range(RIVALS)
    ]
    for rival in rivals:
        rival.start()
    won, finished = [], 0
    try:
        while finished < RIVALS:
            message = wins.get(timeout=PATIENCE)
            if message is None:
                finished += 1
            else:
                won.append(message)
    finally:
        for rival in rivals:
            rival.kill()
            rival.join()
    return won


def test_of_eight_processes_that_race_for_a_run_exactly_one_wins_also_when_its_owner_was_killed(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        (tmp_path / str(number)).mkdir()
    for attempt in (1, 2):  # the second race is for runs whose owners were all killed
        won = race_of_processes(tmp_path)
        assert sorted((number, found) for number, found, _ in won) == [(number, attempt) for number in range(ROUNDS)]
    assert len(claims(RunDirectory(tmp_path / "0"))) == 2


def test_a_run_with_a_living_owner_is_refused_and_taken_over_at_once_when_the_owner_is_killed(
    run: RunDirectory,
) -> None:
    with owner(run) as (process, number):
        assert number == "1"
        assert claim(run) is None
        latest = newest(run)
        assert latest is not None
        assert latest.working()
        assert latest.whose() == f"attempt 1, host {Process.current().host}, pid {process.pid}"
        process.send_signal(signal.SIGKILL)
        # Not waited for: the dead owner is a zombie, as under a sweep whose driver is busy.
        while (state := _state(process.pid)) not in ("Z", ""):
            assert state
        second = claim(run)
        assert second is not None
        assert second.number == 2
        second.end("done")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def test_a_stopped_process_still_owns_its_run_on_the_same_machine_however_long_it_is_silent(run: RunDirectory) -> None:
    with owner(run) as (process, _):
        process.send_signal(signal.SIGSTOP)
        latest = newest(run)
        assert latest is not None
        os.utime(latest.path, (1.0, 1.0))
        assert claim(run) is None
        process.send_signal(signal.SIGCONT)


def test_the_same_process_cannot_claim_a_run_twice(run: RunDirectory) -> None:
    first = claim(run)
    assert first is not None
    assert claim(run) is None
    first.end("stopped", "asked to")
    second = claim(run)
    assert second is not None
    assert second.number == 2
    second.end("done")
    assert [(found.number, found.ended, found.reason) for found in claims(run)] == [
        (1, "stopped", "asked to"),
        (2, "done", ""),
    ]


def test_a_process_id_that_was_given_to_another_process_is_no_owner(run: RunDirectory) -> None:
    first = claim(run)
    assert first is not None
    edit(first.path, owner=replace(Process.current(), start="1").document())
    assert Process.current().alive() is True
    second = claim(run)
    assert second is not None
    assert not first.still_mine()
    second.end("done")


def test_an_owner_on_another_machine_keeps_its_run_while_its_file_is_touched_and_loses_it_after(
    run: RunDirectory,
) -> None:
    first = claim(run)
    assert first is not None
    make_foreign(first.path, silent_for=attempts.TTL_SECONDS - 20)
    assert claim(run) is None
    make_foreign(first.path, silent_for=attempts.TTL_SECONDS + 20)
    second = claim(run)
    assert second is not None
    assert second.number == 2
    second.end("done")


@pytest.mark.parametrize("part", ["host", "boot_id", "namespace"])
def test_a_process_id_means_nothing_on_another_host_boot_or_container(part: str, run: RunDirectory) -> None:
    first = claim(run)
    assert first is not None
    changes: dict[str, Any] = {part: "another", "pid": 2**22 + 1}
    edit(first.path, owner=replace(Process.current(), **changes).document())
    assert claim(run) is None  # no such process here, yet it may live there
    moment = time.time() - 1000
    os.utime(first.path, (moment, moment))
    second = claim(run)
    assert second is not None
    second.end("done")


def test_a_wrong_clock_on_either_machine_changes_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    first = claim(run)
    assert first is not None
    make_foreign(first.path, silent_for=0)
    right = time.time
    for shift in (-1e6, 1e6):
        edit(first.path, started=right() + shift)
        monkeypatch.setattr(time, "time", lambda shift=shift: right() + shift)
        assert claim(run) is None


def test_an_owner_wrongly_held_dead_notices_and_its_end_changes_nothing_for_the_new_one(run: RunDirectory) -> None:
    old = claim(run)
    assert old is not None
    assert old.still_mine()
    make_foreign(old.path, silent_for=1000)
    new = claim(run)
    assert new is not None
    assert not old.still_mine()
    old.end("failed", "too late")
    assert new.still_mine()
    latest = newest(run)
    assert latest is not None
    assert (latest.number, latest.ended) == (2, None)
    new.end("done")
    assert not new.still_mine()


@pytest.mark.parametrize("changes", [{"started": 1e300}, {"ttl": -1.0}, {"ttl": 10**400}, {"owner": None}])
def test_of_a_claim_with_impossible_values_only_the_age_counts(run: RunDirectory, changes: dict[str, Any]) -> None:
    first = claim(run)
    assert first is not None
    edit(first.path, **changes)
    assert claim(run) is None
    os.utime(first.path, (1.0, 1.0))
    second = claim(run)
    assert second is not None
    second.end("done")


def test_only_processes_below_this_one_with_the_word_are_ended() -> None:
    code = "import time; print(flush=True); time.sleep(600)"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}, 'a-' 'word-b'])"
    tagged, parent, other = (
        subprocess.Popen([sys.executable, "-c", *line], stdout=subprocess.PIPE)
        for line in ([code, "/tmp/a-word-b/x"], [nested], [code, "another"])
    )
    try:
        for process in (tagged, parent, other):
            assert process.stdout is not None
            process.stdout.readline()
        end_descendants("no-such-word")
        assert [process.poll() for process in (tagged, parent, other)] == [None] * 3
        end_descendants("a-word-b")
        assert tagged.wait(PATIENCE) == -signal.SIGKILL
        assert parent.wait(PATIENCE) != -signal.SIGKILL, "the one below it was ended, so it came to its own end"
        assert other.poll() is None
    finally:
        for process in (tagged, parent, other):
            process.kill()
            process.wait()


def test_a_buried_claim_can_be_taken_over_at_once_and_its_owner_notices(run: RunDirectory) -> None:
    old = claim(run, by={"node": "n1"})
    assert old is not None
    latest = newest(run)
    assert latest is not None
    assert latest.by == {"node": "n1"}
    attempts.bury(latest, "its node died")
    assert run.status().state == "stopped"
    new = claim(run)
    assert new is not None
    assert not old.still_mine()
    new.end("done")
    assert [(found.ended, found.reason, found.buried) for found in claims(run)] == [
        ("stopped", "its node died", True),
        ("done", "", False),
    ]


def test_an_end_that_its_owner_wrote_is_not_buried(run: RunDirectory) -> None:
    attempt = _claimed(run)
    seen = newest(run)
    assert seen is not None
    attempt.end("failed", "no room", may_pass=True)
    attempts.bury(seen, "its node died")
    assert [(found.ended, found.reason, found.may_pass, found.died) for found in claims(run)] == [
        ("failed", "no room", True, False)
    ]


def test_the_heartbeat_touches_the_file_until_the_end(run: RunDirectory) -> None:
    attempt = claim(run, ttl=0.3)
    assert attempt is not None
    os.utime(attempt.path, (1.0, 1.0))
    deadline = time.monotonic() + PATIENCE
    while attempt.path.stat().st_mtime == 1.0:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    attempt.end("done")
    os.utime(attempt.path, (1.0, 1.0))
    time.sleep(0.2)
    assert attempt.path.stat().st_mtime == 1.0


def test_leaving_without_an_end_writes_what_happened(run: RunDirectory) -> None:
    with pytest.raises(RuntimeError, match="out of luck"), _claimed(run):
        raise RuntimeError("out of luck")
    with pytest.raises(KeyboardInterrupt), _claimed(run):
        raise KeyboardInterrupt
    with _claimed(run):
        pass
    with _claimed(run) as attempt:
        attempt.end("diverged", "loss is nan")
    assert [(found.ended, found.reason) for found in claims(run)] == [
        ("failed", "RuntimeError: out of luck"),
        ("stopped", "KeyboardInterrupt"),
        ("stopped", "left before its end"),
        ("diverged", "loss is nan"),
    ]


def _claimed(run: RunDirectory) -> Attempt:
    attempt = claim(run)
    assert attempt is not None
    return attempt


def test_only_the_first_end_counts(run: RunDirectory) -> None:
    attempt = _claimed(run)
    attempt.end("failed", "first")
    attempt.end("done", "second")
    assert [(found.ended, found.reason) for found in claims(run)] == [("failed", "first")]


def test_a_claim_ends_on_a_full_disk_and_none_begins_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(tmp_path / "disk", monkeypatch) as disk:
        run = RunDirectory.create(disk.path, RunConfig(), tmp_path)
        attempt = _claimed(run)
        disk.fill()
        attempt.end("failed", "the disk is full " * 200)
        disk.free()
        latest = newest(run)
        assert latest is not None
        assert latest.ended == "failed"
        assert latest.reason.startswith("the disk is full")
        assert [path.name for path in latest.path.parent.iterdir()] == ["0001.json"]


def test_a_claim_that_is_just_being_written_is_respected_until_it_is_old(run: RunDirectory) -> None:
    folder = run.path / "attempts"
    folder.mkdir()
    (folder / "0001.json").write_text('{"schema": 1, "num')
    assert claim(run) is None
    moment = time.time() - 1000
    os.utime(folder / "0001.json", (moment, moment))
    second = claim(run)
    assert second is not None
    assert second.number == 2
    second.end("done")


def test_claims_count_beyond_four_digits_and_ignore_other_files(run: RunDirectory) -> None:
    folder = run.path / "attempts"
    _claimed(run).end("done")
    text = (folder / "0001.json").read_text()
    for name in ("9999.json", "10000.json", ".0003.json.x7f", "0002.log", "notes.json"):
        (folder / name).write_text(text)
    attempt = _claimed(run)
    assert attempt.path.name == "10001.json"
    attempt.end("done")


def test_ending_a_run_that_was_moved_away_makes_no_directory(run: RunDirectory, tmp_path: Path) -> None:
    attempt = _claimed(run)
    run.path.rename(tmp_path / "moved")
    assert not attempt.still_mine()
    attempt.end("done")
    assert not run.path.exists()
    moved = newest(RunDirectory(tmp_path / "moved"))
    assert moved is not None
    assert moved.working()  # by this very process


def test_a_system_without_process_files_goes_by_the_process_id_and_the_heartbeat(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repro.runs.processes._PROC", tmp_path / "no-proc")
    me = Process.current()
    assert (me.boot_id, me.namespace, me.start, me.pid) == ("", "", "", os.getpid())
    assert me.alive() is None
    assert replace(me, pid=2**22 + 1).alive() is False
    attempt = _claimed(run)
    assert claim(run) is None
    attempt.end("done")


def test_processes_hidden_from_this_user_go_by_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", hidden)
    assert replace(Process.current(), pid=2**22 + 1).alive() is None


def test_a_process_name_with_blanks_and_brackets_is_read_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Process.current()
    monkeypatch.setattr("repro.runs.processes._PROC", tmp_path)
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(me.boot_id + "\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").symlink_to(me.namespace)
    (tmp_path / "77").mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "77/stat").write_text(f"77 (a) Z (b c) S {fields}\n")
    assert replace(me, pid=77, start="22").alive() is True
    assert replace(me, pid=77, start="21").alive() is False
    (tmp_path / "77/stat").write_text(f"77 (a) S (b c) Z {fields}\n")
    assert replace(me, pid=77, start="22").alive() is False
