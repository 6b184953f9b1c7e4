"""Times in a status: what a user of `kubectl` reads, and what comes back of it."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.generate.crd import crd
from rljob_api.names import Role
from rljob_api.status import ProcessStatus, RestartStatus, RLJobStatus, RoleStatus
from rljob_api.times import seconds, timestamp

STATUS = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]


def test_times_are_written_as_rfc_3339_and_read_back() -> None:
    status = RLJobStatus(
        started_at=1795262400.25,
        restart=RestartStatus(backoff_until=1795262401.0),
        roles=[RoleStatus(name=Role.ACTOR, replicas=1, ready=1, failures=1, failure_times=[1795262399.5])],
    )
    written = orjson.loads(status.model_dump_json())

    assert written["startedAt"] == "2026-11-21T12:00:00.250000Z"
    assert written["restart"]["backoffUntil"] == "2026-11-21T12:00:01.000000Z"
    assert written["roles"][0]["failureTimes"] == ["2026-11-21T11:59:59.500000Z"]
    assert RLJobStatus.model_validate_json(status.model_dump_json()) == status


def test_a_time_that_never_came_is_absent() -> None:
    assert "decidedAt" not in RLJobStatus().model_dump(mode="json", exclude_none=True)["restart"]


def test_a_process_of_a_pod_has_no_number() -> None:
    assert ProcessStatus(name="control").model_dump(mode="json", exclude_none=True) == {
        "name": "control",
        "restarts": 0,
        "restartsInVain": 0,
    }


def test_a_status_of_a_run_that_wrote_unix_seconds_is_read() -> None:
    assert RLJobStatus.model_validate_json('{"startedAt": 1795262400.25}').started_at == 1795262400.25


@pytest.mark.parametrize(
    "field", [STATUS["startedAt"], STATUS["restart"]["properties"]["decidedAt"]], ids=["startedAt", "decidedAt"]
)
def test_the_definition_states_it(field: dict[str, str]) -> None:
    assert (field["type"], field["format"]) == ("string", "date-time")


@given(st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)))
def test_to_the_microsecond(moment: datetime) -> None:
    at = moment.replace(tzinfo=UTC).timestamp()
    assert abs(seconds(timestamp(at)) - at) < 1e-6
    assert timestamp(seconds(timestamp(at))) == timestamp(at)
