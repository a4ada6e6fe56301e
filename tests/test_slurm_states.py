"""Every word that SLURM has for a job's state means something here, and an unknown one stops nothing."""

from __future__ import annotations

import pytest

from slurm.states import COMPACT, STATES, lives, meaning

# From `man squeue` and `man sacct`, JOB STATE CODES, 22.05 to 25.11.
MANUAL = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
    "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING", "PR": "PREEMPTED",
    "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED",
    "RS": "RESIZING", "RV": "REVOKED", "SI": "SIGNALING", "SE": "SPECIAL_EXIT", "SO": "STAGE_OUT", "ST": "STOPPED",
    "S": "SUSPENDED", "TO": "TIMEOUT",
}  # fmt: skip
WITHOUT_CODE = ["LAUNCH_FAILED", "RECONFIG_FAIL", "POWER_UP_NODE", "UPDATE_DB", "EXPEDITING"]


@pytest.mark.parametrize("code", MANUAL)
def test_each_state_of_the_manual_is_known_by_its_word_and_its_code(code: str) -> None:
    assert meaning(MANUAL[code]) == meaning(code) == meaning(MANUAL[code].lower()) != "unknown"


@pytest.mark.parametrize("word", WITHOUT_CODE)
def test_so_is_each_that_has_no_code(word: str) -> None:
    assert meaning(word) != "unknown"


def test_codes_stand_for_known_states() -> None:
    assert set(COMPACT.values()) <= set(STATES)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("CANCELLED by 1000", "failed"),
        ("CANCELLED+", "failed"),
        ("NODE_FA+", "failed"),
        ("OUT_OF_ME+", "failed"),
        ("TIMEOUT,COMPLETING", "running"),
        ("PENDING|REQUEUED", "again"),
        ("COMPLETED+", "ended"),
        (" pending ", "waiting"),
        ("REQUEUE_HOLD", "again"),
        ("REVOKED", "gone"),
        ("", "unknown"),
        ("CANCELLED by FAILED", "failed"),
        ("WARPING", "unknown"),
        ("X", "unknown"),
    ],
)
def test_what_a_state_means(state: str, expected: str) -> None:
    assert meaning(state) == expected


def test_only_what_waits_or_runs_goes_on_by_itself() -> None:
    assert {word for word in STATES if lives(meaning(word))} == {
        "PENDING", "CONFIGURING", "POWER_UP_NODE", "RESV_DEL_HOLD", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED",
        "RESIZING", "SIGNALING", "STAGE_OUT", "UPDATE_DB", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT",
        "EXPEDITING",
    }  # fmt: skip
