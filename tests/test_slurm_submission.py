"""A submission becomes each job once, whatever sbatch says or leaves unsaid; only its own is ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from slurm_stubs import Stubs

from repro.errors import CheckError
from slurm.queue import look
from slurm.record import Note, records
from slurm.site import Site
from slurm.submission import Request, Submission, cancel, submit, unsubmitted

SITE = Site(answer_seconds=3)


@pytest.fixture
def stubs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubs]:
    place = tmp_path / "stubs"
    place.mkdir()
    found = Stubs(place)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request(
        folder=tmp_path / "jobs",
        name="50% of 'it' | हिन्दी",
        command=("true",),
        tasks=3,
        mode="array",
        code=tmp_path,
        environment={},
    )


def _submit(request: Request, site: Site = SITE, token: str = "k7") -> Submission:
    return submit(request, site, token, lambda _: None)


def test_a_second_call_finds_what_the_first_has_submitted(stubs: Stubs, request_: Request) -> None:
    assert _submit(request_) == Submission(token="k7", jobs=("100",))
    assert _submit(request_) == Submission(token="k7", jobs=("100",), adopted=("100",))
    assert _submit(request_, token="k8").jobs == ("101",)
    assert stubs.jobs() == ["k7-0", "k8-0"]


@pytest.mark.parametrize("mode", ["hang", "garbage"])
def test_a_job_taken_without_a_word_is_adopted(stubs: Stubs, request_: Request, mode: str) -> None:
    stubs.say("sbatch", mode)
    assert _submit(request_).jobs == ("100",)
    assert [record.job for record in records(request_.folder)] == ["100"]
    assert _submit(request_).jobs == ("100",)
    assert len(stubs.calls("sbatch")) == 1


def test_a_refused_job_is_told_of_in_the_words_of_sbatch_and_forgotten(stubs: Stubs, request_: Request) -> None:
    stubs.say("sbatch", "refuse")
    with pytest.raises(CheckError, match="Invalid account specified") as refused:
        _submit(request_)
    assert "\n" not in str(refused.value)
    assert look(request_.folder).tasks == []
    stubs.say("sbatch", "take")
    assert _submit(request_).jobs == ("100",)


def test_without_slurm_there_is_one_clear_line(
    stubs: Stubs, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(request_.folder))
    with pytest.raises(CheckError, match="sbatch: there is no such command here"):
        _submit(request_)
    assert unsubmitted(request_.folder) == []


def test_what_never_got_through_is_submitted_again_under_its_token(stubs: Stubs, request_: Request) -> None:
    stubs.say("sbatch", "lost")
    with pytest.raises(CheckError, match="Unable to contact"):
        _submit(request_)
    assert unsubmitted(request_.folder) == ["k7"]
    assert {task.meaning for task in look(request_.folder).tasks} == {"gone"}
    stubs.say("squeue.down", "")
    stubs.say("sbatch", "take")
    with pytest.raises(CheckError, match="cannot be asked"):
        _submit(request_)
    assert stubs.jobs() == []
    stubs.unsay("squeue.down")
    assert _submit(request_) == Submission(token="k7", jobs=("100",))
    assert unsubmitted(request_.folder) == []


def test_a_job_that_came_and_went_unheard_is_found_in_the_accounts(stubs: Stubs, request_: Request) -> None:
    stubs.say("sbatch", "lost")
    with pytest.raises(CheckError):
        _submit(request_)
    stubs.say("sacct", "77_0|COMPLETED||a | b-k7-0\n78|FAILED||other-k7-01\n77_[1-2%1]|PENDING||a | b-k7-0\n")
    assert _submit(request_).adopted == ("77",)
    assert stubs.jobs() == []
    assert [(task.task, task.meaning) for task in look(request_.folder).tasks] == [
        (0, "ended"),
        (1, "waiting"),
        (2, "waiting"),
    ]


def test_a_job_that_nobody_remembers_is_known_by_what_its_tasks_noted(stubs: Stubs, request_: Request) -> None:
    stubs.say("sbatch", "lost")
    with pytest.raises(CheckError):
        _submit(request_)
    [record] = records(request_.folder)
    Note(job="77", state="ended", code=0).save(record.note(1))
    assert _submit(request_).adopted == ("77",)
    assert stubs.jobs() == []


def test_two_submissions_at_once_make_one_job(stubs: Stubs, request_: Request) -> None:
    heard: list[Submission] = []
    threads = [threading.Thread(target=lambda: heard.append(_submit(request_))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [submission.jobs for submission in heard] == [("100",)] * 4
    assert stubs.jobs() == ["k7-0"]


def test_arrays_keep_to_the_limits_of_slurm_and_together_to_that_of_the_site(stubs: Stubs, request_: Request) -> None:
    stubs.say("config", "MaxArraySize            = 6\nSchedulerParameters = bf_max=1,max_array_tasks=5\n")
    assert _submit(replace(request_, tasks=12), SITE.model_copy(update={"at_once": 2})).jobs == ("100", "101", "102")
    assert [(record.first, record.tasks) for record in records(request_.folder)] == [(0, 5), (5, 5), (10, 2)]
    assert [call.split()[1] for call in stubs.calls("sbatch")[1:]] == [
        "--dependency=afterany:100",
        "--dependency=afterany:101",
    ]
    assert [task.task for task in look(request_.folder).tasks] == list(range(12))


def test_a_refusal_in_the_middle_leaves_what_was_taken_and_the_rest_comes_later(
    stubs: Stubs, request_: Request
) -> None:
    site = SITE.model_copy(update={"array_size": 2})
    stubs.say("sbatch", "once")
    with pytest.raises(CheckError, match="refused"):
        _submit(request_, site)
    assert [task.task for task in look(request_.folder).tasks] == [0, 1]
    stubs.say("sbatch", "take")
    assert _submit(request_, site) == Submission(token="k7", jobs=("100", "101"), adopted=("100",))


def test_variables_change_nothing_that_the_site_file_says(
    stubs: Stubs, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SBATCH_ACCOUNT": "mine", "SBATCH_JOB_NAME": "x", "SQUEUE_FORMAT": "%i"}.items():
        monkeypatch.setenv(name, value)
    _submit(request_)
    _submit(request_, SITE.model_copy(update={"account": "theirs"}), "k8")
    assert [call.split()[2:] for call in stubs.calls("sbatch")] == [["mine"], []]
    assert not any("%i" in call for call in stubs.calls("squeue"))


def test_a_folder_without_jobs_asks_nobody(stubs: Stubs, tmp_path: Path) -> None:
    found = look(tmp_path / "nothing")
    assert (found.tasks, found.warnings) == ([], [])
    assert stubs.calls("squeue") == []


def test_other_jobs_may_have_any_name(stubs: Stubs, request_: Request) -> None:
    stubs.say("sbatch", "hang")
    stubs.say("jobs", "7 N/A my two\u2028lines\x0bor three | more\n8 N/A - a\nsecond line\n")
    assert _submit(request_).jobs == ("103",)  # The stub counts lines.


def test_the_queue_is_read_in_one_call(stubs: Stubs, request_: Request) -> None:
    _submit(request_)
    _submit(request_, token="k8")
    stubs.say("state.100", "CANCELLED by 1000")
    stubs.say("state.101", "WARPING")
    before = len(stubs.calls("squeue"))
    found = look(request_.folder)
    assert [(task.token, task.job, task.task, task.state, task.meaning) for task in found.tasks] == [
        *(("k7", "100", number, "CANCELLED by 1000", "failed") for number in range(3)),
        *(("k8", "101", number, "WARPING", "unknown") for number in range(3)),
    ]
    assert [warning for warning in found.warnings if "WARPING" in warning] == found.warnings
    assert len(found.warnings) == 1
    assert len(stubs.calls("squeue")) == before + 1


def test_without_slurm_the_tasks_own_notes_are_what_is_known(stubs: Stubs, request_: Request) -> None:
    _submit(request_)
    [record] = records(request_.folder)
    Note(job="100", state="ended", code=0).save(record.note(0))
    Note(job="100", state="running").save(record.note(1))
    stubs.say("squeue.down", "")
    found = look(request_.folder)
    assert [task.meaning for task in found.tasks] == ["ended", "unknown", "unknown"]
    assert any("squeue" in warning for warning in found.warnings)
    assert any("accounting storage is disabled" in warning for warning in found.warnings)
    stubs.unsay("squeue.down")
    stubs.say("state.100", "forgotten")
    assert [task.meaning for task in look(request_.folder).tasks] == ["ended", "gone", "gone"]


def test_a_job_of_the_same_number_that_is_not_ours_is_left_alone(stubs: Stubs, request_: Request) -> None:
    _submit(request_)
    stubs.say("jobs", "100 0-2 k9-0 another-k9-0\n")
    assert {task.meaning for task in look(request_.folder).tasks} == {"gone"}
    assert cancel(request_.folder, lambda _: None) == []
    assert stubs.calls("scancel") == []


def test_only_living_jobs_of_the_folder_are_ended(stubs: Stubs, request_: Request, tmp_path: Path) -> None:
    _submit(request_)
    _submit(replace(request_, folder=tmp_path / "other"))
    _submit(request_, token="k9")
    stubs.say("sbatch", "lost")
    with pytest.raises(CheckError):
        _submit(request_, token="k10")
    stubs.say("state.100", "COMPLETED")
    assert cancel(request_.folder, lambda _: None) == ["102"]
    assert stubs.calls("scancel") == ["102"]
    assert all(record.cancelled for record in records(request_.folder))


def test_jobs_of_another_user_are_seen_and_not_said_to_be_ended(stubs: Stubs, request_: Request) -> None:
    _submit(request_)
    stubs.say("foreign", "")
    with pytest.raises(CheckError, match="Access/permission denied"):
        cancel(request_.folder, lambda _: None)


def test_a_damaged_record_hides_no_other(stubs: Stubs, request_: Request) -> None:
    _submit(request_)
    _submit(request_, token="k8")
    (request_.folder / "k7-0.job.json").write_text("{}")
    found = look(request_.folder)
    assert {task.token for task in found.tasks} == {"k8"}
    assert ["k7-0.job.json" in warning for warning in found.warnings] == [True]
