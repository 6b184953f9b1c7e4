"""The restart table: which failures restart what, and how they are counted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import EXIT_CUT_OFF, EXIT_GROUP_BROKEN, Role, Scope
from rljob_api.spec.restart import RestartPolicySpec
from rljob_api.status import Phase
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.identity import PodKey
from rljob_operator.core import (
    AcknowledgeFailures,
    Observed,
    PodEnding,
    PodState,
    RaiseEpoch,
    Reason,
    SetDesired,
    decide,
)
from rljob_operator.core.outcome import LIVED_SECONDS
from tests.unit.core.worlds import (
    START,
    actions_of,
    carried_out,
    fail,
    key,
    make_failure,
    make_policy,
    make_running,
    settle,
    with_fact,
    with_failures,
    with_pod,
)

NOW = START + 10
IN_PLACE_ROLLOUT = make_policy(table={"rollout": "InPlace"})
GLOBAL_REFERENCE = make_policy(table={"reference": "Global"})


@pytest.mark.parametrize(
    ("policy", "role", "earlier", "expected"),
    [
        pytest.param(make_policy(), Role.ROLLOUT, 0, Scope.GLOBAL, id="a rollout failure restarts the job"),
        pytest.param(make_policy(), Role.ACTOR, 0, Scope.GLOBAL, id="an actor failure restarts the job"),
        pytest.param(make_policy(), Role.CRITIC, 0, Scope.GLOBAL, id="a critic failure restarts the job"),
        pytest.param(make_policy(), Role.ACTOR_FWD, 0, Scope.GLOBAL, id="an actor_fwd failure restarts the job"),
        pytest.param(make_policy(), Role.REFERENCE, 0, Scope.IN_PLACE, id="a reference failure stays in place"),
        pytest.param(make_policy(), Role.ADVANTAGES, 0, Scope.IN_PLACE, id="an advantages failure stays in place"),
        pytest.param(make_policy(), Role.REFERENCE, 1, Scope.IN_PLACE, id="a second reference failure stays in place"),
        pytest.param(make_policy(), Role.REFERENCE, 2, Scope.GLOBAL, id="the third reference failure escalates"),
        pytest.param(make_policy(threshold=1), Role.REFERENCE, 0, Scope.GLOBAL, id="threshold 1 escalates the first"),
        pytest.param(IN_PLACE_ROLLOUT, Role.ROLLOUT, 0, Scope.IN_PLACE, id="an override keeps rollout in place"),
        pytest.param(IN_PLACE_ROLLOUT, Role.ROLLOUT, 2, Scope.GLOBAL, id="an overridden row escalates as well"),
        pytest.param(GLOBAL_REFERENCE, Role.REFERENCE, 0, Scope.GLOBAL, id="an override makes reference global"),
    ],
)
def test_the_table(policy: RestartPolicySpec, role: Role, earlier: int, expected: Scope) -> None:
    observed = make_running(policy)
    for n in range(earlier):
        observed, _ = fail(observed, key(role), NOW + n)
    _, decision = fail(observed, key(role), NOW + earlier)
    assert [event.scope for event in decision.events if event.scope] == [expected]
    assert bool(actions_of(decision, RaiseEpoch)) == (expected is Scope.GLOBAL)


def rank_ended(observed: Observed, pod: PodKey) -> Observed:
    return with_failures(observed, make_failure(observed.status, pod))


def container_ended(observed: Observed, pod: PodKey) -> Observed:
    return with_fact(observed, pod, state=PodState.EXITED, exit_code=-9)


def rank_silent(observed: Observed, pod: PodKey) -> Observed:
    return with_pod(observed, pod, age=999)


def launcher_silent(observed: Observed, pod: PodKey) -> Observed:
    return with_pod(observed, pod, poll_age=999)


def pod_deleted(observed: Observed, pod: PodKey) -> Observed:
    return with_fact(observed, pod, state=PodState.EXITED, exit_code=None, ending=PodEnding.DELETED)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("happens", "reason", "counts"),
    [
        pytest.param(rank_ended, Reason.RANK_EXITED, True, id="a rank ended"),
        pytest.param(container_ended, Reason.LAUNCHER_LOST, True, id="a first process ended"),
        pytest.param(rank_silent, Reason.HANG, True, id="a rank is silent"),
        pytest.param(launcher_silent, Reason.LAUNCHER_LOST, True, id="a launcher is silent"),
        pytest.param(pod_deleted, Reason.POD_DELETED, False, id="a pod was deleted"),
    ],
)
def test_every_cause_has_the_scope_of_its_role(
    happens: Callable[[Observed, PodKey], Observed], reason: Reason, counts: bool, role: Role
) -> None:
    in_place = role in (Role.REFERENCE, Role.ADVANTAGES)
    decision = decide(happens(make_running(), key(role)), NOW)
    scope = Scope.IN_PLACE if in_place else Scope.GLOBAL
    assert [(event.reason, event.scope) for event in decision.events if event.scope] == [(reason, scope)]
    restart = decision.status.restart
    assert (restart.epoch, restart.counted_towards_max) == ((1, 0) if in_place else (2, int(counts)))
    failures = {row.name: row.failures for row in decision.status.roles if row.failures}
    assert failures == ({role: 1} if in_place and counts else {})


@pytest.mark.parametrize(
    ("signs", "failures"),
    [
        pytest.param((rank_ended, container_ended), 1, id="its rank ended and its first process"),
        pytest.param((rank_ended, launcher_silent), 1, id="its rank ended and its launcher is silent"),
        pytest.param((rank_ended, pod_deleted), 0, id="it was deleted, and so its rank ended"),
    ],
)
def test_all_signs_of_one_pods_death_are_one_failure(
    signs: tuple[Callable[[Observed, PodKey], Observed], ...], failures: int
) -> None:
    observed = make_running()
    for sign in signs:
        observed = sign(observed, key(Role.REFERENCE))
    decision = decide(observed, NOW)
    assert len([event for event in decision.events if event.scope]) == 1, decision.events
    assert [row.failures for row in decision.status.roles if row.name is Role.REFERENCE] == [failures]


def test_an_in_place_restart_starts_one_pod_again_and_leaves_the_others_alone() -> None:
    observed = make_running(IN_PLACE_ROLLOUT)
    _, decision = fail(observed, key(Role.ROLLOUT, 1), NOW)
    (order,) = actions_of(decision, SetDesired)
    generations = {str(pod.pod): pod.generation for pod in order.desired.pods}
    assert generations.pop("rollout-1") == 1
    assert set(generations.values()) == {0}
    assert decision.status.restart.epoch == observed.status.restart.epoch


def test_a_global_restart_forgets_earlier_failures() -> None:
    observed = make_running()
    observed, _ = fail(observed, key(Role.REFERENCE), NOW)
    observed, _ = fail(observed, key(Role.REFERENCE), NOW + 1)
    observed, _ = fail(observed, key(Role.ROLLOUT), NOW + 2)
    _, decision = fail(observed, key(Role.REFERENCE), NOW + 3)
    assert [event.scope for event in decision.events if event.scope] == [Scope.IN_PLACE]


def test_failures_older_than_the_window_are_forgotten() -> None:
    observed = make_running(make_policy(windowSeconds=100))
    observed, _ = fail(observed, key(Role.REFERENCE), NOW)
    observed, _ = fail(observed, key(Role.REFERENCE), NOW + 1)
    _, decision = fail(observed, key(Role.REFERENCE), NOW + 102)
    assert [event.scope for event in decision.events if event.scope] == [Scope.IN_PLACE]


def test_failures_within_the_window_escalate() -> None:
    observed = make_running(make_policy(windowSeconds=100))
    observed, _ = fail(observed, key(Role.REFERENCE), NOW)
    observed, _ = fail(observed, key(Role.REFERENCE), NOW + 1)
    _, decision = fail(observed, key(Role.REFERENCE), NOW + 99)
    assert "failure 3 of reference since the last global restart (threshold 3)" in decision.events[-1].message


def test_failures_seen_together_are_one_restart() -> None:
    observed = make_running()
    failures = [make_failure(observed.status, pod) for pod in (key(Role.ROLLOUT), key(Role.ACTOR), key(Role.REFERENCE))]
    decision = decide(with_failures(observed, *failures), NOW)
    assert decision.status.restart.epoch == 2
    assert decision.status.restart.counted_towards_max == 1
    assert len([event for event in decision.events if event.scope]) == 1
    assert actions_of(decision, AcknowledgeFailures)[0].ids == tuple(failure.id for failure in failures)


def test_failures_of_an_earlier_epoch_are_acknowledged_and_do_not_count() -> None:
    observed = make_running()
    late = make_failure(observed.status, key(Role.ACTOR))
    observed, _ = fail(observed, key(Role.ROLLOUT), NOW)
    decision = decide(with_failures(observed, late), NOW + 1)
    assert decision.status.restart.epoch == 2
    assert actions_of(decision, AcknowledgeFailures)[0].ids == (late.id,)
    assert [event.reason for event in decision.events] == [Reason.EARLIER_INCARNATION]


def test_failures_of_an_earlier_generation_are_acknowledged_and_do_not_count() -> None:
    observed = make_running()
    failure = make_failure(observed.status, key(Role.REFERENCE))
    observed, _ = fail(observed, key(Role.REFERENCE), NOW)
    twice = failure.model_copy(update={"id": "the same death by another name"})
    decision = decide(with_failures(observed, failure, twice), NOW + 1)
    assert not [event for event in decision.events if event.scope]
    assert len(actions_of(decision, AcknowledgeFailures)[0].ids) == 2


def test_a_failure_while_the_new_epoch_starts_counts() -> None:
    observed = make_running()
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW)
    starting = carried_out(observed, decision)
    decision = decide(with_failures(starting, make_failure(starting.status, key(Role.ACTOR))), NOW + 1)
    assert decision.status.restart.epoch == 3
    assert decision.status.restart.counted_towards_max == 2


def test_lost_rows_of_training_restart_the_job_whatever_the_table_states() -> None:
    observed = make_running(make_policy(table={"rollout": "InPlace"}))
    failure = make_failure(observed.status, key(Role.ROLLOUT), kind=FailureKind.ROWS_LOST, exit_code=None, generation=7)
    decision = decide(with_failures(observed, failure), NOW)
    assert [(event.reason, event.scope) for event in decision.events] == [(Reason.ROWS_LOST, Scope.GLOBAL)]


def test_a_damaged_checkpoint_restarts_the_job_uncounted_and_explains_the_ranks_that_left_for_it() -> None:
    observed = make_running(make_policy(maxGlobalRestarts=0))
    where = {"id": "damaged/4-e1-aaaaaaaaaaaa/1", "rank": None, "exit_code": None, "generation": 0}
    damaged = make_failure(
        observed.status, key(Role.ACTOR), kind=FailureKind.CHECKPOINT_DAMAGED, message="model is cut", **where
    )
    left = make_failure(observed.status, key(Role.ACTOR), exit_code=EXIT_GROUP_BROKEN)
    for failures in ([damaged], [left, damaged]):
        decision = decide(with_failures(observed, *failures), NOW)
        (event,) = decision.events
        assert (event.reason, event.scope) == (Reason.CHECKPOINT_DAMAGED, Scope.GLOBAL)
        assert event.message.startswith("model is cut (not counted); the job restarts in epoch 2")
        assert decision.status.restart.counted_towards_max == 0


CUT_OFF: dict[str, Any] = {"exit_code": EXIT_CUT_OFF, "cut_off": True}
ALONE: dict[str, Any] = {"exit_code": EXIT_CUT_OFF}
DIED: dict[str, Any] = {"exit_code": -9}


@pytest.mark.parametrize(
    ("codes", "counted"),
    [
        pytest.param({Role.ACTOR: CUT_OFF, Role.ROLLOUT: CUT_OFF}, 0, id="nobody died"),
        pytest.param({Role.ACTOR: CUT_OFF, Role.ROLLOUT: DIED}, 1, id="one died meanwhile"),
        pytest.param({Role.ACTOR: DIED, Role.ROLLOUT: DIED}, 1, id="two died meanwhile"),
        pytest.param({Role.ACTOR: ALONE}, 1, id="its launcher reached the coordinator"),
    ],
)
def test_ranks_that_were_cut_off_with_their_launchers_are_not_counted(
    codes: dict[Role, dict[str, Any]], counted: int
) -> None:
    observed = make_running(make_policy())
    failures = [make_failure(observed.status, key(role), **fields) for role, fields in codes.items()]
    decision = decide(with_failures(observed, *failures), NOW)
    (event,) = decision.events
    assert (event.reason, event.scope) == (Reason.RANK_EXITED, Scope.GLOBAL)
    assert ("(not counted)" in event.message) == (counted == 0)
    assert decision.status.restart.counted_towards_max == counted


def test_an_engine_that_dies_restarts_nothing_and_is_reported() -> None:
    observed = make_running()
    failure = make_failure(
        observed.status, key(Role.ROLLOUT), kind=FailureKind.ENGINE_EXITED, message="the engine died"
    )
    decision = decide(with_failures(observed, failure), NOW)
    assert decision.status.restart.epoch == 1
    assert [event.reason for event in decision.events] == [Reason.ENGINE_EXITED]
    assert actions_of(decision, AcknowledgeFailures)


def test_a_rank_that_ends_well_is_no_failure() -> None:
    observed = make_running()
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ROLLOUT), exit_code=0)), NOW)
    assert decision.status.restart.epoch == 1


def test_one_restart_more_than_the_maximum_fails_the_job_with_the_reason() -> None:
    observed = make_running(make_policy(maxGlobalRestarts=1))
    observed, _ = fail(observed, key(Role.ACTOR), NOW)
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW + 1)
    assert decision.status.phase is Phase.FAILED
    assert decision.status.restart.epoch == 2
    assert decision.events[-1].reason is Reason.MAX_GLOBAL_RESTARTS
    assert decision.events[-1].message == (
        "actor-0.0 was killed by signal 9. That needs global restart 2, but restartPolicy.maxGlobalRestarts is 1. "
        "Cure the cause, or raise the limit."
    )


def test_backoff_delays_the_epoch_and_grows_until_a_checkpoint_is_recorded() -> None:
    backoff = {"initialSeconds": 2, "factor": 3, "maxSeconds": 10}
    observed = make_running(make_policy(backoff=backoff))
    observed = settle(observed, NOW)
    delays = []
    for n in range(3):
        decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW + 100 * n)
        assert not actions_of(decision, RaiseEpoch)
        until = decision.status.restart.backoff_until
        assert until is not None
        delays.append(until - (NOW + 100 * n))
        observed = carried_out(observed, decision)
        observed = settle(observed, until)
        assert observed.coordinator is not None
        assert observed.coordinator.epoch == decision.status.restart.epoch
    # The first restart follows a recorded checkpoint; none is recorded after it.
    assert delays == [2, 6, 10]
    assert observed.coordinator is not None
    recorded = replace(observed, coordinator=observed.coordinator.model_copy(update={"recorded": 9}))
    decision = decide(
        with_failures(settle(recorded, NOW + 400), make_failure(observed.status, key(Role.ACTOR))), NOW + 500
    )
    assert decision.status.restart.backoff_until == NOW + 502


def delays_of(policy: RestartPolicySpec, count: int, *, ran_for: float = 0.0, counts: bool = True) -> list[float]:
    """Before each of so many restarts in a row of a job that is Ready for `lives` seconds in each epoch."""
    observed, now, delays = settle(make_running(policy), NOW), NOW, []
    # The first restart would follow the checkpoint that the job begins with.
    assert observed.coordinator is not None
    for _ in range(count):
        now += ran_for + 1
        pod = key(Role.ACTOR)
        if counts:
            failed = with_failures(observed, make_failure(observed.status, pod))
        else:
            failed = with_fact(observed, pod, state=PodState.EXITED, ending=PodEnding.EVICTED)
        decision = decide(failed, now)
        until = decision.status.restart.backoff_until
        delays.append(0.0 if until is None else until - now)
        now = until or now
        observed = settle(carried_out(observed, decision), now)
    return delays


def test_a_job_that_dies_again_and_again_backs_off_from_the_third_time_on_by_itself() -> None:
    assert delays_of(make_policy(), 10) == [0, 0, 5, 10, 20, 40, 60, 60, 60, 60]


def test_a_job_whose_epochs_live_is_restarted_at_once_however_often() -> None:
    assert delays_of(make_policy(), 10, ran_for=LIVED_SECONDS) == [0] * 10
    assert delays_of(make_policy(backoff={"initialSeconds": 2}), 3, ran_for=LIVED_SECONDS) == [2, 2, 2]


def test_none_that_is_not_counted_is_delayed() -> None:
    assert delays_of(make_policy(), 6, counts=False) == [0] * 6


def test_zero_is_no_delay_at_all() -> None:
    assert delays_of(make_policy(backoff={"initialSeconds": 0}), 6) == [0] * 6


def test_a_launcher_that_was_out_of_memory_is_reported_with_whose_limit_it_was() -> None:
    observed = settle(make_running(), NOW)
    note = "its memory limit of 64Mi is not the job's"
    ended = {"state": PodState.EXITED, "exit_code": -9, "reason": "OOMKilled", "memory_note": note}
    decision = decide(with_fact(observed, key(Role.ACTOR), **ended), NOW + 1)

    assert decision.status.restart.message is not None
    assert decision.status.restart.message.startswith(
        f"the launcher of actor-0 was killed by signal 9 (OOMKilled): {note}"
    )


@pytest.mark.parametrize("backoff", [{"initialSeconds": 60}, {}], ids=["given", "by itself"])
def test_a_pod_that_dies_while_the_next_epoch_is_held_back_is_replaced_and_counts_no_further(
    backoff: dict[str, Any],
) -> None:
    observed = settle(make_running(make_policy(backoff=backoff)), NOW)
    in_a_row = observed.status.restart.model_copy(update={"consecutive": 5, "checkpoint": 10**6})
    observed = replace(observed, status=observed.status.model_copy(update={"restart": in_a_row}))
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW + 1)
    held_back = replace(observed, status=decision.status)
    for n in range(5):
        now = NOW + 10 + n
        died = {"incarnation": f"new-{n}/0", "state": PodState.EXITED, "exit_code": -9, "started_at": now - 1}
        decision = decide(with_fact(held_back, key(Role.ACTOR), **died), now)
        held_back = replace(held_back, status=decision.status)

    assert decision.status.restart.epoch == 2
    assert decision.status.restart.counted_towards_max == 1
