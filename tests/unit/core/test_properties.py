"""What holds for every order in which things fail, are seen, and are carried out or not."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.status import RLJobStatus
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.observation import ServerState
from rljob_operator.core import Observed, PodState, decide
from rljob_operator.core.conditions import terminal
from tests.unit.core.worlds import (
    KEYS,
    START,
    carried_out,
    make_failure,
    make_policy,
    make_running,
    with_coordinator,
    with_fact,
    with_failures,
    with_pod,
)

MAXIMUM = 3

PODS = st.sampled_from(KEYS)
HAPPENINGS = st.one_of(
    st.tuples(st.just("dies"), PODS),
    st.tuples(st.just("hangs"), PODS),
    st.tuples(st.just("is lost"), PODS),
    st.tuples(st.just("is told again"), PODS),
    st.tuples(st.just("loses control state"), PODS),
    st.tuples(st.just("trains"), PODS),
    st.tuples(st.just("is misconfigured"), PODS),
)
SCHEDULES = st.lists(st.tuples(HAPPENINGS, st.booleans(), st.floats(0.1, 50)), max_size=25)


def happened(observed: Observed, what: str, pod: object) -> Observed:
    """The world after one thing more."""
    assert observed.coordinator is not None
    key = KEYS[KEYS.index(pod)]
    known = list(observed.coordinator.failures)
    match what:
        case "dies":
            return with_failures(observed, *known, make_failure(observed.status, key))
        case "is misconfigured":
            return with_failures(observed, *known, make_failure(observed.status, key, exit_code=64))
        case "hangs":
            return with_pod(observed, key, age=99)
        case "is lost":
            return with_fact(observed, key, state=PodState.EXITED, exit_code=-9)
        case "is told again":
            old = make_failure(observed.status, key, epoch=max(0, observed.status.restart.epoch - 1), id="old")
            return with_failures(observed, *known, old)
        case "loses control state":
            return with_coordinator(observed, server=ServerState.LOST)
        case _:
            return with_coordinator(observed, step=(observed.coordinator.step or 0) + 1)


def generations(status: RLJobStatus) -> list[int]:
    """Of all pods."""
    return [pod.generation for role in status.roles for pod in role.pods]


@settings(deadline=None, max_examples=100)
@given(SCHEDULES)
def test_epochs_only_rise_counts_stay_bounded_and_ends_stay_ends(
    schedule: list[tuple[tuple[str, object], bool, float]],
) -> None:
    observed, now = make_running(make_policy(maxGlobalRestarts=MAXIMUM)), START + 10
    restarted: set[str] = set()
    for (what, pod), is_carried_out, seconds in schedule:
        observed, now = happened(observed, what, pod), now + seconds
        before = observed.status
        decision = decide(observed, now)
        after = decision.status
        assert before.restart.epoch <= after.restart.epoch <= before.restart.epoch + 1
        assert after.restart.counted_towards_max <= MAXIMUM
        assert decision.next_turn_at > now
        if terminal(before) is not None:
            assert after.conditions == before.conditions
            assert after.restart.epoch == before.restart.epoch
        if after.restart.epoch == before.restart.epoch:
            assert all(new >= old for old, new in zip(generations(before), generations(after), strict=True))
        else:
            assert after.restart.decision_id not in restarted
            restarted.add(after.restart.decision_id)
        observed = carried_out(observed, decision) if is_carried_out else replace(observed, status=after)


@settings(deadline=None, max_examples=60)
@given(SCHEDULES, st.floats(0, 1))
def test_a_decision_seen_again_restarts_nothing_again(
    schedule: list[tuple[tuple[str, object], bool, float]], later: float
) -> None:
    observed, now = make_running(), START + 10
    for (what, pod), is_carried_out, seconds in schedule:
        observed, now = happened(observed, what, pod), now + seconds
        first = decide(observed, now)
        persisted = replace(observed, status=first.status)
        assert decide(persisted, now).actions == first.actions
        # Later other actions may be due, since a backoff or the time to end well is over; but no other restart is.
        again = decide(persisted, now + later)
        assert again.status.restart == first.status.restart
        assert generations(again.status) == generations(first.status)
        assert not [event for event in again.events if event.scope]
        observed = carried_out(observed, first) if is_carried_out else replace(observed, status=first.status)


@settings(deadline=None, max_examples=50)
@given(st.lists(PODS, min_size=1, max_size=12))
def test_one_failure_counts_once_however_often_it_is_reported(dying: list[object]) -> None:
    observed, now = make_running(make_policy(maxGlobalRestarts=1000)), START + 10
    for pod in dying:
        now += 1
        key = KEYS[KEYS.index(pod)]
        failure = make_failure(observed.status, key, kind=FailureKind.RANK_EXITED)
        counted = observed.status.restart.counted_towards_max
        total = counted + sum(role.failures for role in observed.status.roles)
        for _ in range(3):
            decision = decide(with_failures(observed, failure), now)
            observed = carried_out(observed, decision)
        after = observed.status.restart.counted_towards_max
        new_total = after + sum(role.failures for role in observed.status.roles)
        assert (after == counted + 1) != (new_total == total + 1 and after == counted)
