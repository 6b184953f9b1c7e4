"""Ends of a job: success, failure, interruption; and what is no end: lost control state, dead infrastructure."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.names import Role, Scope, WeightVersion
from rljob_api.status import Phase
from rljob_api.wire.epochs import PodPhase
from rljob_api.wire.failures import FailureKind
from rljob_api.wire.launchers import EngineProcess, EngineState
from rljob_api.wire.observation import ServerState
from rljob_api.wire.ranks import Busy
from rljob_api.wire.turns import StopReached
from rljob_operator.core import (
    Observed,
    PodState,
    ProcessFact,
    RaiseEpoch,
    Reason,
    RestartInfrastructure,
    SetDesired,
    Stop,
    UserRequest,
    begin,
    decide,
)
from rljob_operator.core.decision import CreatePod
from rljob_operator.core.drain import DRAIN_LIMIT_SECONDS
from rljob_operator.core.ends import DONE_LIMIT_SECONDS
from rljob_operator.core.infrastructure import MAX_ENDS, WINDOW_SECONDS
from tests.unit.core.worlds import (
    REPLICAS,
    START,
    actions_of,
    carried_out,
    fail,
    key,
    make_failure,
    make_policy,
    make_running,
    settle,
    with_coordinator,
    with_failures,
    with_pod,
)

NOW = START + 10


def phases(observed: Observed, now: float) -> set[PodPhase]:
    """The order that all pods receive."""
    (order,) = actions_of(decide(observed, now), SetDesired)
    return {pod.phase for pod in order.desired.pods}


def all_exited(observed: Observed) -> Observed:
    """Every launcher has ended."""
    return replace(observed, pods=tuple(replace(fact, state=PodState.EXITED, exit_code=0) for fact in observed.pods))


def test_a_recorded_last_version_is_success() -> None:
    observed = with_coordinator(make_running(), recorded=100, step=99)
    decision = decide(observed, NOW)
    assert decision.status.phase is Phase.SUCCEEDED
    assert phases(observed, NOW) == {PodPhase.DONE}
    assert not actions_of(decision, Stop)


def test_a_trained_last_step_without_its_record_is_no_success() -> None:
    assert decide(with_coordinator(make_running(), recorded=99, step=99), NOW).status.phase is Phase.RUNNING


def test_a_last_version_that_is_being_evaluated_is_no_success_yet() -> None:
    recorded = with_coordinator(make_running(), recorded=100, step=99, is_evaluating_last=True)
    assert decide(recorded, NOW).status.phase is Phase.RUNNING
    assert decide(with_coordinator(recorded, is_evaluating_last=False), NOW).status.phase is Phase.SUCCEEDED


def test_a_drain_that_finds_the_last_version_recorded_and_not_evaluated_is_an_interruption() -> None:
    recorded = with_coordinator(make_running(), recorded=100, step=99, is_evaluating_last=True)
    over = decide(replace(all_exited(recorded), interrupted_at=NOW), NOW + DRAIN_LIMIT_SECONDS)
    assert over.status.phase is Phase.INTERRUPTED


STOP = StopReached(version=WeightVersion(40), message="stopWhen holds: reward of step 39 is 1, above 0.9")


def test_a_stop_is_success_once_its_version_is_recorded() -> None:
    trained = with_coordinator(make_running(), recorded=38, step=39, stop=STOP)
    assert decide(trained, NOW).status.phase is Phase.RUNNING
    decision = decide(with_coordinator(trained, recorded=40), NOW)
    assert (decision.status.phase, decision.status.reason) == (Phase.SUCCEEDED, Reason.STOP_CONDITION_MET)
    (event,) = [event for event in decision.events if event.reason is Reason.STOP_CONDITION_MET]
    assert event.message == "stopWhen holds: reward of step 39 is 1, above 0.9; version 40 is recorded"


def test_a_stop_of_an_epoch_that_a_resumed_job_leaves_behind_is_none() -> None:
    observed = with_coordinator(make_running(), recorded=40, step=39, stop=STOP)
    resumed, _ = begin(observed.status, REPLICAS, NOW)
    assert decide(replace(observed, status=resumed), NOW).status.phase is not Phase.SUCCEEDED


def test_success_is_not_undone_by_a_process_that_dies_after_it() -> None:
    observed = with_coordinator(make_running(), recorded=100, step=99)
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW)
    assert decision.status.phase is Phase.SUCCEEDED


def test_an_ended_job_stops_when_its_launchers_have_ended() -> None:
    observed = with_coordinator(make_running(), recorded=100, step=99)
    observed = replace(observed, status=decide(observed, NOW).status)
    assert not actions_of(decide(observed, NOW + 1), Stop)
    assert actions_of(decide(all_exited(observed), NOW + 1), Stop) == [Stop(Phase.SUCCEEDED)]


def test_an_ended_job_does_not_wait_for_ever_for_its_launchers() -> None:
    observed = with_coordinator(make_running(), recorded=100, step=99)
    observed = replace(observed, status=decide(observed, NOW).status)
    assert actions_of(decide(observed, NOW + DONE_LIMIT_SECONDS), Stop) == [Stop(Phase.SUCCEEDED)]


def stopped(observed: Observed, name: str) -> Observed:
    """Where this process is stopped by a signal."""
    if name.startswith("the launcher"):
        facts = tuple(replace(fact, stopped=fact.pod == key(Role.ADVANTAGES)) for fact in observed.pods)
        return replace(observed, pods=facts)
    return replace(observed, infrastructure=(ProcessFact(name, 5, alive=True, stopped=True),))


@pytest.mark.parametrize("name", ["coordinator", "control", "parent"])
def test_an_ended_job_does_not_wait_for_a_server_that_is_stopped(name: str) -> None:
    observed = with_coordinator(make_running(), recorded=100, step=99)
    assert actions_of(decide(stopped(observed, name), NOW), Stop) == [Stop(Phase.SUCCEEDED)]
    assert decide(stopped(make_running(), name), NOW).status.phase is Phase.RUNNING


def test_an_ended_job_waits_for_its_launchers_but_not_for_one_that_is_stopped() -> None:
    observed = stopped(with_coordinator(make_running(), recorded=100, step=99), "the launcher of advantages-0")
    observed = replace(observed, status=decide(observed, NOW).status)
    assert not actions_of(decide(observed, NOW + 1), Stop)
    ended = tuple(fact if fact.stopped else replace(fact, state=PodState.EXITED) for fact in observed.pods)
    assert actions_of(decide(replace(observed, pods=ended), NOW + 1), Stop) == [Stop(Phase.SUCCEEDED)]


def test_exit_code_64_fails_the_job_at_once_with_the_sentence_of_the_rank() -> None:
    observed = make_running()
    text = "Traceback (most recent call last):\n  ...\nspec.model.path: /m has no config.json.\n\n"
    failure = make_failure(observed.status, key(Role.ACTOR), exit_code=64, last_words=text)
    decision = decide(with_failures(observed, failure), NOW)
    assert decision.status.phase is Phase.FAILED
    assert decision.events[-1].reason is Reason.CONFIGURATION_ERROR
    assert decision.events[-1].message == "actor-0: spec.model.path: /m has no config.json."


def test_exit_code_64_of_an_earlier_epoch_fails_nothing() -> None:
    observed = make_running()
    failure = make_failure(observed.status, key(Role.ACTOR), exit_code=64, epoch=0)
    assert decide(with_failures(observed, failure), NOW).status.phase is Phase.RUNNING


def test_a_reported_failure_fails_the_job_with_its_own_sentence() -> None:
    observed = make_running()
    message = "group 3 of train_7 was drawn 8 times (rollout.maxAttempts)"
    failure = make_failure(
        observed.status, key(Role.ROLLOUT), kind=FailureKind.REPORTED, exit_code=None, message=message
    )
    assert decide(with_failures(observed, failure), NOW).events[-1].message == message


HOPELESS: list[Any] = [
    pytest.param("EngineMismatch", FailureKind.REPORTED, EngineState.RUNNING, Reason.ENGINE_MISMATCH, id="mismatch"),
    pytest.param(
        "EngineCannotStart",
        FailureKind.ENGINE_EXITED,
        EngineState.RESTARTING,
        Reason.ENGINE_CANNOT_START,
        id="an engine dies of one cause again and again before any was up",
    ),
    pytest.param(None, FailureKind.ENGINE_EXITED, EngineState.RESTARTING, None, id="it is only started anew"),
    pytest.param("Later", FailureKind.ENGINE_EXITED, EngineState.RESTARTING, None, id="a word of a later version"),
    pytest.param("Later", FailureKind.REPORTED, EngineState.RUNNING, Reason.REPORTED, id="a later version's report"),
]


@pytest.mark.parametrize(("hopeless", "kind", "state", "reason"), HOPELESS)
def test_what_no_restart_helps_fails_the_job_by_its_name(
    hopeless: str | None, kind: FailureKind, state: EngineState, reason: Reason | None
) -> None:
    observed = make_running()
    engine = EngineProcess(pid=5, incarnation="0" * 12, url="http://127.0.0.1:1", state=state)
    observed = with_pod(observed, key(Role.ROLLOUT, 1), engines=[engine])
    message = "The engine of rollout-0 was killed by SIGKILL: KeyError: 'x'"
    failure = make_failure(
        observed.status, key(Role.ROLLOUT), kind=kind, exit_code=None, message=message, hopeless=hopeless
    )
    decision = decide(with_failures(observed, failure), NOW)
    assert decision.status.phase is (Phase.RUNNING if reason is None else Phase.FAILED)
    assert decision.status.restart.counted_towards_max == 0
    assert decision.events[-1].message == message
    if reason is not None:
        assert decision.events[-1].reason is reason


def with_engine(observed: Observed, state: EngineState) -> Observed:
    """The world in which the engine of rollout-1 is as far as that."""
    engine = EngineProcess(pid=5, incarnation="0" * 12, url="http://127.0.0.1:1", state=state)
    return with_pod(observed, key(Role.ROLLOUT, 1), engines=[engine])


def cannot_start(observed: Observed) -> Observed:
    """The engine of rollout-0 has died of one cause in every start."""
    failure = make_failure(
        observed.status,
        key(Role.ROLLOUT),
        kind=FailureKind.ENGINE_EXITED,
        exit_code=None,
        message="The engine of rollout-0 exited with code 1: CUDA error: uncorrectable ECC error",
        hopeless="EngineCannotStart",
    )
    return with_failures(observed, failure)


def was_up(observed: Observed) -> Observed:
    """The same world after an engine was up for a moment."""
    return replace(observed, status=decide(with_engine(observed, EngineState.RUNNING), NOW).status)


UP_BEFORE: list[Any] = [
    pytest.param(lambda observed: with_engine(observed, EngineState.RUNNING), id="another engine is up"),
    pytest.param(lambda observed: with_engine(was_up(observed), EngineState.RESTARTING), id="all restart just now"),
    pytest.param(was_up, id="a new coordinator has not been polled yet"),
    pytest.param(lambda observed: settle(fail(was_up(observed), key(Role.ACTOR), NOW)[0], NOW), id="in a later epoch"),
]


@pytest.mark.parametrize("before", UP_BEFORE)
def test_an_engine_that_cannot_start_in_a_job_where_one_was_up_costs_its_pod(
    before: Callable[[Observed], Observed],
) -> None:
    observed = before(make_running())
    decision = decide(cannot_start(observed), NOW + 1)
    assert decision.status.phase is Phase.RESTARTING
    assert [action.pod for action in actions_of(decision, CreatePod)] == [key(Role.ROLLOUT)]
    counted = decision.status.restart.counted_towards_max - observed.status.restart.counted_towards_max
    (event,) = [event for event in decision.events if event.scope]
    assert (event.reason, event.scope, counted) == (Reason.ENGINE_CANNOT_START, Scope.GLOBAL, 1)


def test_an_engine_that_was_up_under_another_spec_states_nothing_of_this_one() -> None:
    observed = was_up(make_running())
    observed = carried_out(observed, decide(replace(observed, request=UserRequest(revision="r2")), NOW))
    observed = settle(replace(observed, request=UserRequest(revision="r2")), NOW)
    decision = decide(cannot_start(observed), NOW + 1)
    assert decision.events[-1].reason is Reason.ENGINE_CANNOT_START
    assert decision.status.phase is Phase.FAILED


def test_an_engine_of_the_epoch_before_states_nothing_of_a_spec_whose_order_its_pod_has_not_taken() -> None:
    observed = make_running()
    status = decide(replace(observed, request=UserRequest(revision="r2")), NOW).status
    old = with_engine(observed, EngineState.RUNNING).coordinator
    assert old is not None
    observed = replace(observed, status=status, coordinator=old, request=UserRequest(revision="r2"))
    observed = replace(observed, status=decide(with_coordinator(observed, epoch=status.restart.epoch), NOW).status)
    assert observed.status.restart.proven_revision is None


def test_a_run_that_is_started_again_has_shown_nothing_yet() -> None:
    """A local run has no revision: its user may have changed the job between two starts."""
    observed = was_up(make_running())
    assert begin(observed.status, REPLICAS, NOW)[0].restart.proven_revision is None
    request = UserRequest(revision="r1")
    restart = observed.status.restart.model_copy(update={"proven_revision": "r1", "revision": "r1"})
    resumed, _ = begin(observed.status.model_copy(update={"restart": restart}), REPLICAS, NOW, request)
    assert resumed.restart.proven_revision == "r1"


def test_an_interrupted_job_lets_what_trains_save_first_and_restarts_nothing() -> None:
    observed = replace(make_running(), interrupted_at=NOW)
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ROLLOUT))), NOW)
    assert decision.status.phase is Phase.DRAINING
    (order,) = actions_of(decision, SetDesired)
    reported = {pod.pod.role: pod.phase for pod in order.desired.pods}
    assert (reported.pop(Role.ACTOR), reported.pop(Role.CRITIC)) == (PodPhase.DRAIN, PodPhase.DRAIN)
    assert set(reported.values()) == {PodPhase.RUN}
    assert not actions_of(decision, RaiseEpoch)


def test_an_interrupted_job_stops_once_all_that_trains_has_saved() -> None:
    observed = replace(make_running(), interrupted_at=NOW)
    observed = replace(observed, status=decide(observed, NOW).status)
    one = with_pod(observed, key(Role.ACTOR), exit_code=0)
    assert decide(one, NOW + 1).status.phase is Phase.DRAINING
    saved = with_pod(one, key(Role.CRITIC), exit_code=0)
    assert decide(saved, NOW + 1).status.phase is Phase.INTERRUPTED
    assert phases(saved, NOW + 1) == {PodPhase.DONE}


def with_a_new_coordinator(observed: Observed, **fields: Any) -> Observed:
    """It knows the pods from its store, and no launcher has reported to it yet."""
    assert observed.coordinator is not None
    unheard: dict[str, Any] = {"is_heard": False, "carried": None, "processes": [], "engine": None}
    pods = [pod.model_copy(update=unheard) for pod in observed.coordinator.pods]
    return with_coordinator(observed, pods=pods, **fields)


UNSEEN = [
    pytest.param(lambda observed: replace(observed, coordinator=None), id="the coordinator does not answer"),
    pytest.param(with_a_new_coordinator, id="no launcher has reported to it yet"),
    pytest.param(
        lambda observed: with_coordinator(observed, server=ServerState.OPENING, pods=[], epoch=0),
        id="it has not read its state yet",
    ),
]


@pytest.mark.parametrize("unseen", UNSEEN)
def test_an_actor_that_is_unseen_for_a_moment_is_waited_for(unseen: Callable[[Observed], Observed]) -> None:
    observed = unseen(replace(make_running(), interrupted_at=NOW))
    draining = decide(observed, NOW)
    assert draining.status.phase is Phase.DRAINING
    assert decide(replace(observed, status=draining.status), NOW + 1).status.phase is Phase.DRAINING
    assert decide(observed, NOW + DRAIN_LIMIT_SECONDS).status.phase is Phase.INTERRUPTED


@pytest.mark.parametrize("unseen", UNSEEN)
def test_pods_that_are_unseen_for_a_moment_stay_ready(unseen: Callable[[Observed], Observed]) -> None:
    observed = make_running()
    decision = decide(unseen(observed), NOW)
    assert [(role.name, role.ready) for role in decision.status.roles] == [
        (role.name, role.ready) for role in observed.status.roles
    ]
    assert not decision.events


def test_an_actor_that_does_not_save_in_time_is_not_waited_for() -> None:
    observed = replace(make_running(), interrupted_at=NOW)
    decision = decide(observed, NOW + DRAIN_LIMIT_SECONDS)
    assert decision.status.phase is Phase.INTERRUPTED
    assert decision.events[-1].message == "actor and critic had not saved after 60 s"
    for saved, late in ((Role.CRITIC, "actor"), (Role.ACTOR, "critic")):
        decision = decide(with_pod(observed, key(saved), exit_code=0), NOW + DRAIN_LIMIT_SECONDS)
        assert decision.events[-1].message == f"the {late} had not saved after 60 s"


def test_an_actor_that_states_how_long_it_saves_is_waited_for() -> None:
    """It announces what its bytes take; without another pulse that ends, too."""
    observed = replace(make_running(), interrupted_at=NOW)
    late = NOW + DRAIN_LIMIT_SECONDS + 100
    for age, phase in ((5.0, Phase.DRAINING), (401.0, Phase.INTERRUPTED)):
        alone = with_pod(observed, key(Role.CRITIC), exit_code=0)
        saving = with_pod(alone, key(Role.ACTOR), age=age, busy=Busy(what="saving the last version", seconds=400))
        decision = decide(saving, late)
        assert decision.status.phase is phase
    assert decision.events[-1].message == "the actor had not saved after 160 s"


def test_a_job_interrupted_before_its_epoch_is_open_stops_at_once() -> None:
    observed = make_running()
    status, _ = begin(observed.status, REPLICAS, NOW)
    decision = decide(replace(observed, status=status, coordinator=None, interrupted_at=NOW), NOW)
    assert actions_of(decision, Stop) == [Stop(Phase.INTERRUPTED)]


@pytest.mark.parametrize(
    ("server", "epoch", "expected"),
    [
        pytest.param(ServerState.OPEN, 1, None, id="an open server in our epoch is well"),
        pytest.param(ServerState.OPENING, 0, None, id="a server that opens is waited for"),
        pytest.param(ServerState.LOST, 1, Reason.CONTROL_STATE_LOST, id="a lost tail restarts the job"),
        pytest.param(ServerState.LOST, 0, Reason.CONTROL_STATE_LOST, id="a lost epoch restarts the job in another one"),
        pytest.param(ServerState.OPEN, 0, Reason.CONTROL_STATE_LOST, id="an epoch that went back is a lost tail"),
        pytest.param(ServerState.OPEN, 7, Reason.EPOCH_TAKEN, id="an unknown epoch is left behind"),
    ],
)
def test_control_state(server: ServerState, epoch: int, expected: Reason | None) -> None:
    decision = decide(with_coordinator(make_running(), server=server, epoch=epoch), NOW)
    assert [event.reason for event in decision.events if event.scope] == ([expected] if expected else [])
    assert decision.status.restart.epoch == (1 if expected is None else max(epoch, 1) + 1)
    assert decision.status.restart.counted_towards_max == (1 if expected is Reason.CONTROL_STATE_LOST else 0)


def test_a_lost_tail_is_one_restart_while_its_epoch_is_being_raised() -> None:
    observed = with_coordinator(make_running(), server=ServerState.LOST)
    first = decide(observed, NOW)
    again = decide(replace(observed, status=first.status), NOW + 1)
    assert again.status.restart.epoch == first.status.restart.epoch
    assert actions_of(again, RaiseEpoch) == actions_of(first, RaiseEpoch)


def test_nothing_is_asked_of_a_server_that_opens() -> None:
    observed = with_coordinator(make_running(make_policy()), server=ServerState.OPENING, epoch=0)
    failure = make_failure(observed.status, key(Role.ACTOR))
    assert decide(with_failures(observed, failure), NOW).actions == ()


def test_a_dead_infrastructure_process_is_started_again_at_once_and_does_not_count() -> None:
    dead = ProcessFact("storage-0", 5, alive=False, exits=(NOW,), exit_code=-9)
    decision = decide(replace(make_running(), infrastructure=(dead,)), NOW)
    assert actions_of(decision, RestartInfrastructure) == [RestartInfrastructure("storage-0")]
    assert decision.status.restart.counted_towards_max == 0
    assert decision.events[-1].message == "storage-0 was killed by signal 9; it is started again"
    assert decision.events[-1].scope is None


def test_an_infrastructure_process_that_does_not_stay_up_is_spaced_out_and_then_fails_the_job() -> None:
    def dead(num_ends: int) -> Observed:
        exits = tuple(NOW - num_ends + n for n in range(1, num_ends + 1))
        process = ProcessFact("coordinator", 5, alive=False, exits=exits, exit_code=1, last_message="no such file")
        return replace(make_running(), infrastructure=(process,))

    assert actions_of(decide(dead(3), NOW), RestartInfrastructure)
    assert not actions_of(decide(dead(6), NOW), RestartInfrastructure)
    assert actions_of(decide(dead(6), NOW + 4), RestartInfrastructure)
    failed = decide(dead(MAX_ENDS + 1), NOW)
    assert failed.status.phase is Phase.FAILED
    expected = "coordinator ended 11 times within 120 s; the last time it exited with code 1: no such file"
    assert failed.events[-1].message == expected


def test_ends_of_long_ago_state_nothing_about_a_process_that_dies_now() -> None:
    exits = (*[NOW - WINDOW_SECONDS - 1] * MAX_ENDS, NOW)
    dead = ProcessFact("coordinator", 5, alive=False, exits=exits, exit_code=1)
    decision = decide(replace(make_running(), infrastructure=(dead,)), NOW)
    assert decision.status.phase is not Phase.FAILED
    assert actions_of(decision, RestartInfrastructure), "and at once"


def test_every_start_by_the_user_is_a_new_epoch_that_forgets_what_counted() -> None:
    observed = make_running()
    decision = decide(with_failures(observed, make_failure(observed.status, key(Role.ACTOR))), NOW)
    status, event = begin(decision.status, REPLICAS, NOW + 1)
    assert status.restart.epoch == 3
    assert status.restart.counted_towards_max == 0
    assert status.restart.global_restarts == 1
    assert event.reason is Reason.RESUMED
    assert event.scope is None


def test_a_decision_that_was_persisted_but_not_carried_out_is_carried_out_by_the_next_observer() -> None:
    observed = make_running()
    failed = with_failures(observed, make_failure(observed.status, key(Role.ACTOR)))
    first = decide(failed, NOW)
    again = decide(replace(failed, status=first.status), NOW + 5)
    assert again.actions == first.actions
    assert not [event for event in again.events if event.scope is Scope.GLOBAL]
    after = carried_out(replace(failed, status=first.status), again)
    assert after.coordinator is not None
    assert after.coordinator.epoch == 2
