"""Times that follow from others lie where they must."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.restart import (
    RestartPolicySpec,
    absence_seconds,
    collective_seconds,
    loading_seconds,
    parts_seconds,
    transfer_seconds,
)


@pytest.mark.parametrize(
    ("given_seconds", "expected"), [pytest.param(None, 315.0, id="midway"), pytest.param(40, 40.0, id="as it is given")]
)
def test_how_long_a_collective_may_take(given_seconds: int | None, expected: float) -> None:
    policy = RestartPolicySpec(collective_timeout_seconds=given_seconds)
    assert collective_seconds(policy) == expected
    assert parts_seconds(policy) == max(300.0, expected)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param({}, 157.5, id="half of what others wait"),
        pytest.param({"collective_timeout_seconds": 100}, 60.0, id="a minute"),
        pytest.param({"collective_timeout_seconds": 40}, 40.0, id="others do not wait for a minute"),
        pytest.param({"coordinator_absence_seconds": 5}, 5.0, id="as it is given"),
    ],
)
def test_how_long_a_rank_does_without_its_coordinator(policy: dict[str, int], expected: float) -> None:
    assert absence_seconds(RestartPolicySpec.model_validate(policy)) == expected


def test_loading_and_saving_have_longer_for_more_bytes() -> None:
    assert loading_seconds(0) == 300
    assert loading_seconds(140_000_000_000) == 300 + transfer_seconds(140_000_000_000) == 7300  # 70B in bfloat16


@given(st.integers(1, 86400), st.integers(1, 604800 - 86400))
def test_a_silent_rank_is_named_before_those_who_wait_and_those_before_a_stall(heartbeat: int, more: int) -> None:
    policy = RestartPolicySpec(heartbeat_timeout_seconds=heartbeat, stall_timeout_seconds=heartbeat + more)
    assert heartbeat < collective_seconds(policy) < heartbeat + more
