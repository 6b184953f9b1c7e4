"""How tools that know no RLJob read its status: the generic rules of kstatus, written down here once more."""

from typing import Any

import pytest

from tests.unit.core.job_states import STATES, State


def kstatus(job: dict[str, Any]) -> str:
    """The rules for objects of which kstatus knows no more than metadata and status."""
    status = job["status"]
    conditions = {each["type"]: each["status"] for each in status.get("conditions", [])}
    if status.get("observedGeneration", job["metadata"]["generation"]) != job["metadata"]["generation"]:
        return "InProgress"
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


@pytest.mark.parametrize("state", [pytest.param(state, id=name) for name, state in STATES.items()])
def test_kstatus_reads_a_job_as_its_user_does(state: State) -> None:
    assert kstatus(state.job()) == state.kstatus


def test_the_phase_of_a_failed_job_is_failed_although_it_is_stalled_for_tools() -> None:
    status = STATES["a job that failed"].job()["status"]
    assert status["phase"] == "Failed"
    assert {each["type"] for each in status["conditions"] if each["status"] == "True"} >= {"Failed", "Stalled"}
