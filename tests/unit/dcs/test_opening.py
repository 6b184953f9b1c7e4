from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_workers.dcs.coordinator.launchers import SeqReport
from rljob_workers.dcs.coordinator.server_gate import (
    ACROSS_MACHINES,
    ON_ONE_MACHINE,
    Closed,
    OpeningPatience,
    launchers_awaited,
)

SINCE = 100.0
OLD = Closed(since=SINCE, coordinator_is_new=False)
NEW = Closed(since=SINCE, coordinator_is_new=True)
BOTH = frozenset({"a", "b"})


@pytest.mark.parametrize(
    ("closed", "registered", "received_at", "waited", "expected"),
    [
        pytest.param(OLD, BOTH, {"a": 99, "b": 99.5}, 0.1, ["a", "b"], id="who spoke lately is waited for"),
        pytest.param(OLD, BOTH, {"a": 100.05, "b": 99.5}, 0.1, ["b"], id="who has spoken since is not"),
        pytest.param(OLD, BOTH, {"a": 100.05, "b": 90}, 0.1, [], id="who was silent long before is not"),
        pytest.param(OLD, frozenset("a"), {"a": 100.05, "b": 99.9}, 0.1, [], id="who is not registered is not"),
        pytest.param(OLD, BOTH, {"a": 99, "b": 99}, 3.1, [], id="nobody is waited for longer than the patience"),
        pytest.param(NEW, BOTH, {}, 0.5, ["a", "b"], id="a new coordinator waits for all that are registered"),
        pytest.param(NEW, BOTH, {}, 1.1, [], id="a new coordinator gives up where nobody speaks: a resumed run"),
        pytest.param(NEW, BOTH, {"a": 100.2}, 1.1, ["b"], id="where one lives, the others are waited for"),
        pytest.param(NEW, frozenset(), {}, 0.0, [], id="a new job has nobody to wait for"),
    ],
)
def test_launchers_awaited(
    closed: Closed, registered: frozenset[str], received_at: dict[str, float], waited: float, expected: list[str]
) -> None:
    reports = {launcher: SeqReport(at, 0) for launcher, at in received_at.items()}
    assert launchers_awaited(closed, registered, reports, waited, ON_ONE_MACHINE) == expected


@given(
    received=st.dictionaries(st.sampled_from("abcd"), st.floats(90, 110)),
    is_new=st.booleans(),
    waited=st.floats(0, 20),
    patience=st.sampled_from([ON_ONE_MACHINE, ACROSS_MACHINES]),
)
def test_waiting_ends_and_only_for_registered_launchers(
    received: dict[str, float], is_new: bool, waited: float, patience: OpeningPatience
) -> None:
    closed, registered = Closed(SINCE, is_new), frozenset("abc")
    reports = {launcher: SeqReport(at, 0) for launcher, at in received.items()}
    awaited = launchers_awaited(closed, registered, reports, waited, patience)
    assert set(awaited) <= registered
    assert not any(received.get(launcher, 0) >= SINCE for launcher in awaited)
    assert waited < patience.silent_one_seconds or awaited == []


def test_across_machines_all_are_waited_for_while_a_way_to_a_new_pod_may_be_long() -> None:
    assert launchers_awaited(NEW, BOTH, {}, 10.0, ACROSS_MACHINES) == ["a", "b"]
    assert launchers_awaited(NEW, BOTH, {"a": SeqReport(SINCE + 9, 0)}, 10.0, ACROSS_MACHINES) == ["b"]
