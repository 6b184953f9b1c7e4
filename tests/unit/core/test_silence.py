"""Hangs and stalls: silence that gets a name."""

from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import Epoch, Role, Scope
from rljob_api.status import ConditionType, Phase
from rljob_api.wire.epochs import PodOrder
from rljob_api.wire.ranks import Busy
from rljob_operator.core import KillPod, PodState, RaiseEpoch, Reason, SetDesired, decide
from rljob_operator.core.conditions import is_true
from rljob_operator.core.decision import CreatePod
from tests.unit.core.worlds import (
    START,
    actions_of,
    carried_out,
    fail,
    key,
    make_fact,
    make_policy,
    make_running,
    with_coordinator,
    with_fact,
    with_pod,
)

NOW = START + 10
REFERENCE = key(Role.REFERENCE)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"age": 29}, None, id="a beat within the timeout is life"),
        pytest.param({"age": 31}, "it was at work and had not announced anything long", id="silence is a hang"),
        pytest.param({"age": 31, "waiting": "train_3"}, "it was waiting for train_3", id="it names the wait"),
        pytest.param({"age": 31, "busy": Busy(what="loading", seconds=60)}, None, id="announced work is left alone"),
        pytest.param(
            {"age": 61, "busy": Busy(what="loading", seconds=60)},
            "it was busy with loading, which it had announced for 60 s",
            id="announced work ends with its deadline",
        ),
        pytest.param(
            {"age": 10, "busy": Busy(what="a step", seconds=5)},
            None,
            id="a short deadline does not shorten the timeout",
        ),
        pytest.param({"age": 99, "exit_code": -9}, None, id="a dead rank does not hang"),
        pytest.param({"age": 31, "poll_age": 16}, None, id="one whose launcher is silent, too, is not judged"),
        pytest.param({"registered": False}, None, id="a rank that has just been ordered may still register"),
    ],
)
def test_a_rank_hangs_when_it_is_silent_without_notice(fields: dict[str, Any], expected: str | None) -> None:
    decision = decide(with_pod(make_running(), REFERENCE, **fields), NOW)
    hangs = [event for event in decision.events if event.reason is Reason.HANG]
    assert bool(hangs) == (expected is not None)
    if expected is not None:
        assert hangs[0].scope is Scope.IN_PLACE
        assert hangs[0].message.startswith(f"reference-0.0 has not beaten in {fields['age']} s; {expected}; ")


@pytest.mark.parametrize(
    ("age", "hangs"),
    [
        pytest.param(9, False, id="ranks still beat as the time-out of their epoch asked"),
        pytest.param(11, True, id="two beats that did not come are silence"),
    ],
)
def test_a_timeout_that_was_made_shorter_since_calls_no_rank_silent_between_its_beats(age: float, hangs: bool) -> None:
    world = with_coordinator(make_running(make_policy(heartbeatTimeoutSeconds=2)), beat_interval_seconds=5.0)
    decision = decide(with_pod(world, REFERENCE, age=age), NOW)
    assert any(event.reason is Reason.HANG for event in decision.events) == hangs


def test_a_rank_that_never_registers_is_a_hang() -> None:
    decision = decide(with_pod(make_running(), REFERENCE, registered=False), START + 131)
    assert "reference-0.0 has not registered with the coordinator in 130 s" in decision.events[-1].message


def test_a_silent_launcher_is_killed_and_replaced() -> None:
    decision = decide(with_pod(make_running(), REFERENCE, poll_age=33), NOW)
    assert [action.pod for action in actions_of(decision, KillPod)] == [REFERENCE]
    assert [action.pod for action in actions_of(decision, CreatePod)] == [REFERENCE]
    assert decision.events[-1].reason is Reason.LAUNCHER_LOST


@pytest.mark.parametrize(
    ("stopped", "age", "lost"),
    [
        pytest.param(False, 31, False, id="a poll that is held open for a second is no silence"),
        pytest.param(True, 31, True, id="one that is stopped holds none open"),
        pytest.param(True, 29, False, id="and may be continued until the time-out"),
    ],
)
def test_how_long_a_launcher_that_is_stopped_may_be_silent(stopped: bool, age: float, lost: bool) -> None:
    observed = with_fact(make_running(), REFERENCE, stopped=stopped)
    decision = decide(with_pod(observed, REFERENCE, poll_age=age), NOW)
    assert [action.pod for action in actions_of(decision, KillPod)] == ([REFERENCE] if lost else [])


def test_a_launcher_that_is_stopped_before_it_registers_has_no_more_time_than_others() -> None:
    observed = with_fact(make_running(), REFERENCE, stopped=True)
    assert observed.coordinator is not None
    others = [pod for pod in observed.coordinator.pods if pod.pod != REFERENCE]
    decision = decide(with_coordinator(observed, pods=others), START + 35)
    assert [action.pod for action in actions_of(decision, KillPod)] == [REFERENCE]


def test_an_epoch_does_not_wait_for_a_launcher_that_is_stopped() -> None:
    """It is replaced at once and named; what it costs is the restart that was decided before."""
    observed, first = fail(make_running(), key(Role.ACTOR), NOW)
    assert observed.coordinator is not None
    behind = [
        pod.model_copy(update={"carried": PodOrder(pod=REFERENCE, epoch=Epoch(1)), "poll_age_seconds": 3.0})
        if pod.pod == REFERENCE
        else pod
        for pod in observed.coordinator.pods
    ]
    late = with_coordinator(observed, pods=behind)
    assert not actions_of(decide(late, NOW + 1), KillPod), "it may be on its way"
    decision = decide(with_fact(late, REFERENCE, stopped=True), NOW + 1)
    assert [action.pod for action in actions_of(decision, KillPod)] == [REFERENCE]
    assert decision.status.restart == first.status.restart.model_copy(
        update={"opened": Epoch(2), "opened_at": decision.status.restart.opened_at}
    )
    reported = [event for event in decision.events if event.reason is Reason.LAUNCHER_LOST]
    assert [event.message for event in reported] == [
        "the launcher of reference-0 is stopped (SIGSTOP) and does not take the order of epoch 2; it is replaced, and "
        "does not count: its job was restarted already"
    ]
    assert [event.scope for event in reported] == [None]


def test_a_launcher_that_never_registers_is_replaced() -> None:
    observed = make_running()
    assert observed.coordinator is not None
    others = [pod for pod in observed.coordinator.pods if pod.pod != REFERENCE]
    decision = decide(with_coordinator(observed, pods=others), START + 125)
    assert "the launcher of reference-0 has not registered with the coordinator" in decision.events[-1].message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"state": PodState.EXITED, "exit_code": -9}, "the launcher of reference-0 was killed by signal 9", id="died"
        ),
        pytest.param(
            {"incarnation": "uid-reference-0/1"}, "the container of reference-0 restarted", id="container restarted"
        ),
    ],
)
def test_a_lost_launcher_is_a_failure_of_its_role(fields: dict[str, Any], expected: str) -> None:
    decision = decide(with_fact(make_running(), REFERENCE, **fields), NOW)
    assert expected in decision.events[-1].message
    assert decision.events[-1].scope is Scope.IN_PLACE
    assert next(role for role in decision.status.roles if role.name == Role.REFERENCE).failures == 1
    created = [action.pod for action in actions_of(decision, CreatePod)]
    assert created == ([REFERENCE] if fields.get("state") else [])


def test_launchers_that_die_with_an_epoch_being_left_do_not_count_again() -> None:
    observed = make_running(make_policy(backoff={"initialSeconds": 5}))
    observed = with_fact(observed, key(Role.ACTOR), state=PodState.EXITED, exit_code=-9)
    decision = decide(observed, NOW)
    gone = tuple(make_fact(fact.pod, state=PodState.EXITED) for fact in observed.pods)
    again = decide(replace(observed, status=decision.status, pods=gone), NOW + 1)
    assert again.status.restart.epoch == decision.status.restart.epoch == 2
    assert len(actions_of(again, CreatePod)) == len(gone)


def test_a_step_that_stands_still_restarts_the_job_and_names_who_waits() -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    observed = with_pod(observed, key(Role.ACTOR), waiting="16 rows of train_3")
    assert not decide(observed, START + 60).events
    decision = decide(observed, START + 70)
    assert decision.status.phase is Phase.STALLED
    assert is_true(decision.status, ConditionType.STALLED)
    assert actions_of(decision, RaiseEpoch)
    assert "actor-0.0 waits for 16 rows of train_3" in decision.events[-1].message
    assert "rollout-0.0 is at work" in decision.events[-1].message


def test_a_launcher_that_does_not_register_is_replaced_in_its_time_and_no_stall_comes_before() -> None:
    """As one that was stopped when it had just been forked: a restart of the job would not cure it."""
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    observed = carried_out(observed, decide(with_fact(observed, REFERENCE, state=PodState.EXITED, exit_code=-9), NOW))
    observed = replace(observed, status=decide(observed, NOW).status)
    assert observed.coordinator is not None
    others = [seen for seen in observed.coordinator.pods if seen.pod != REFERENCE]
    observed = with_coordinator(observed, pods=others, desired=observed.coordinator.desired)
    restarts = []
    for seconds in range(1, 125, 4):
        decision = decide(observed, NOW + seconds)
        restarts += [(event.reason, event.scope) for event in decision.events if event.scope is not None]
        observed = replace(observed, status=decision.status)
    assert restarts == [(Reason.LAUNCHER_LOST, Scope.IN_PLACE)]


def test_a_job_whose_launchers_still_import_is_neither_stalled_nor_lost() -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    failed = decide(with_fact(observed, REFERENCE, state=PodState.EXITED, exit_code=-9), NOW)
    observed = carried_out(observed, failed)
    for fact in observed.pods:
        observed = with_fact(observed, fact.pod, state=PodState.PENDING)
    late = decide(with_coordinator(observed, pods=[]), NOW + 500)
    assert not late.events


def test_the_limit_of_registration_begins_when_a_launcher_is_past_its_imports() -> None:
    observed = with_coordinator(make_running(make_policy(stallTimeoutSeconds=9000)), pods=[])
    up = {"up_at": START + 500}
    for fact in observed.pods:
        observed = with_fact(observed, fact.pod, **up)
    assert not decide(observed, START + 600).events
    assert "has not registered with the coordinator in 130 s" in decide(observed, START + 630).events[-1].message


def test_a_step_ends_the_stall() -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    decision = decide(observed, START + 70)
    after = decide(with_coordinator(carried_out(observed, decision), step=3), START + 71)
    assert not is_true(after.status, ConditionType.STALLED)


def test_a_restore_that_takes_the_step_back_does_not_end_the_stall() -> None:
    observed = make_running(make_policy(stallTimeoutSeconds=60))
    decision = decide(observed, START + 70)
    for step in (1, None):
        after = decide(with_coordinator(carried_out(observed, decision), step=step), START + 71)
        assert is_true(after.status, ConditionType.STALLED)
        assert after.status.training.last_report_time == decision.status.training.last_report_time


def test_a_lost_pod_gets_an_order_that_it_cannot_have_taken_before_it_is_replaced() -> None:
    observed = with_fact(make_running(), REFERENCE, state=PodState.EXITED, exit_code=-9)
    decision = decide(observed, NOW)
    (order,) = actions_of(decision, SetDesired)
    assert [pod.generation for pod in order.desired.pods if pod.pod == REFERENCE] == [1]
    assert [type(action) for action in decision.actions] == [SetDesired, CreatePod]
    (order,) = actions_of(decide(carried_out(observed, decision), NOW), SetDesired)
    (named,) = [pod for pod in order.desired.pods if pod.pod == REFERENCE]
    assert (named.generation, named.pod_uid) == (1, "uid-reference-0+")


def test_a_pod_lost_while_its_next_epoch_waits_gets_an_order_of_its_own_in_that_epoch() -> None:
    observed = with_fact(make_running(), key(Role.ACTOR), state=PodState.EXITED, exit_code=-9)
    status = decide(observed, NOW).status
    gone = with_fact(replace(observed, status=status), REFERENCE, state=PodState.EXITED, exit_code=-9)
    (order,) = actions_of(decide(gone, NOW), SetDesired)
    assert [pod.generation for pod in order.desired.pods if pod.pod == REFERENCE] == [1]
    assert order.desired.epoch == status.restart.epoch
