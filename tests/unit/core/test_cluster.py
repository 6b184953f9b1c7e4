"""A job on a cluster: its start, what its cluster does to pods, changes of its spec, requests, its deadlines."""

from dataclasses import replace

import pytest

from rljob_api.names import Role
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import AcceptedStatus, ConditionType, Phase
from rljob_api.wire.epochs import UNSEEN_POD, PodOrder, PodPhase
from rljob_operator.core import (
    CreatePod,
    Decision,
    DeleteJob,
    KillPod,
    PodEnding,
    PodState,
    RaiseEpoch,
    Reason,
    RefusedSpec,
    SetDesired,
    Stop,
    UserRequest,
    decide,
)
from rljob_operator.core.conditions import find, is_true
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import actions_of, make_policy


def test_a_new_job_is_accepted_and_begins_epoch_1() -> None:
    world = Cluster()
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.ACCEPTED, Reason.STARTED]
    assert decision.status.restart.epoch == 1
    assert decision.status.restart.revision == "r1"
    assert decision.status.started_at == world.now
    assert actions_of(decision, RaiseEpoch)
    assert is_true(decision.status, ConditionType.ACCEPTED)
    assert world.settle().status.phase is Phase.RUNNING
    assert {condition.observed_generation for condition in world.status.conditions} == {1}


def test_a_request_that_a_job_is_created_with_restarts_nothing() -> None:
    request = UserRequest(revision="r1", generation=1, restart_request=RestartRequestSpec(id="a"))
    assert make_cluster(request=request).status.restart.epoch == 1


@pytest.mark.parametrize(
    ("ending", "reason", "sentence"),
    [
        pytest.param(PodEnding.EVICTED, Reason.POD_EVICTED, "was evicted: low on memory", id="an eviction"),
        pytest.param(PodEnding.PREEMPTED, Reason.POD_PREEMPTED, "was preempted by a pod of", id="a preemption"),
        pytest.param(PodEnding.NODE_LOST, Reason.NODE_LOST, "the node of pod actor-0 was lost", id="a lost node"),
        pytest.param(PodEnding.DELETED, Reason.POD_DELETED, "pod actor-0 was deleted", id="a deleted pod"),
        pytest.param(PodEnding.OUTDATED, Reason.POD_OUTDATED, "its template was changed", id="an update"),
    ],
)
def test_what_the_cluster_takes_away_is_named_and_restarts_and_does_not_count(
    ending: PodEnding, reason: Reason, sentence: str
) -> None:
    world = make_cluster(policy=make_policy(maxGlobalRestarts=0))
    world.pod(Role.ACTOR).last_message = "low on memory"
    world.end(world.pod(Role.ACTOR), ending)
    decision = world.turn()
    (event,) = [event for event in decision.events if event.scope]
    assert event.reason is reason
    assert sentence in event.message
    assert "(not counted)" in event.message
    assert decision.status.restart.epoch == 2
    assert decision.status.restart.counted_towards_max == 0
    assert world.settle().status.phase is Phase.RUNNING


def test_pods_that_are_lost_with_a_node_are_one_cause_whenever_each_is_noticed() -> None:
    world = make_cluster(policy=make_policy(heartbeatTimeoutSeconds=10, coordinatorAbsenceSeconds=10))
    for role, silent in ((Role.ACTOR, 12.5), (Role.REFERENCE, 11.9)):  # the limit is 12
        world.pod(role).silent, world.pod(role).deaf = silent, True
    assert [event.reason for event in world.turn().events if event.scope] == [Reason.LAUNCHER_LOST]
    world.turn(0.1)
    assert world.status.restart.opened == 2

    world.pod(Role.REFERENCE).silent = 12.1
    assert not [event for event in world.turn(0.1).events if event.scope]
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.global_restarts) == (2, 1)


def test_pods_whose_node_is_called_lost_one_after_another_are_one_cause() -> None:
    world = make_cluster()
    for role in (Role.ACTOR, Role.REFERENCE):
        world.pod(role).silent, world.pod(role).deaf = 50.0, True
    world.end(world.pod(Role.ACTOR), PodEnding.NODE_LOST)
    assert [event.reason for event in world.turn().events if event.scope] == [Reason.NODE_LOST]
    world.turn()
    assert world.status.restart.opened == 2

    world.end(world.pod(Role.REFERENCE), PodEnding.NODE_LOST)
    reported = [event for event in world.turn().events if event.reason is Reason.NODE_LOST]
    assert [event.scope for event in reported] == [None]
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.global_restarts) == (2, 1)


@pytest.mark.parametrize("role", [Role.ACTOR, Role.REFERENCE])
def test_probes_that_are_not_answered_restart_and_are_not_counted(role: Role) -> None:
    """However often a client keeps the kubelet from its answers, the job does not run out of restarts."""
    world = make_cluster(policy=make_policy(maxGlobalRestarts=1))
    for _ in range(4):
        world.pod(role).asked_to_end = True
        world.restart(world.pod(role))
        restarts = [event for event in world.turn().events if event.scope]
        assert [event.reason for event in restarts] == [Reason.PROBES_UNANSWERED]
        assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.counted_towards_max == 0
    assert all(not entry.failure_times for entry in world.status.roles)


def test_a_launcher_that_did_not_turn_when_its_kubelet_ended_it_is_counted() -> None:
    world = make_cluster()
    world.restart(world.pod(Role.ACTOR))
    assert [event.reason for event in world.turn().events if event.scope] == [Reason.LAUNCHER_LOST]
    assert world.status.restart.counted_towards_max == 1


def test_a_pod_that_is_taken_away_before_the_epoch_is_open_restarts_nothing_more() -> None:
    world = make_cluster(policy=make_policy(backoff={"initialSeconds": 5}))
    world.end(world.pod(Role.ACTOR), PodEnding.NODE_LOST)
    world.turn()
    world.turn()
    placed = world.pod(Role.ACTOR)
    world.end(placed, PodEnding.DELETED)

    assert not [event for event in world.turn().events if event.scope]
    world.turn(5.0)
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.global_restarts) == (2, 1)


def test_a_rank_is_not_reported_to_hang_while_its_launcher_is_silent_too() -> None:
    world = make_cluster(policy=make_policy(heartbeatTimeoutSeconds=10, coordinatorAbsenceSeconds=10))
    world.pod(Role.ACTOR).silent = 10.5  # a rank may be silent for 10 s, a launcher for 12
    assert not [event for event in world.turn().events if event.scope]
    world.pod(Role.ACTOR).silent = 12.5
    assert [event.reason for event in world.turn().events if event.scope] == [Reason.LAUNCHER_LOST]


def test_a_pod_that_is_taken_away_before_it_ran_is_reported_and_replaced_and_restarts_nothing() -> None:
    """A lost node is given pods, as long as its cluster has not noticed."""
    world = make_cluster()
    world.starts, world.pod(Role.ACTOR).silent = PodState.PENDING, 1000.0
    assert [event.reason for event in world.turn().events if event.scope] == [Reason.LAUNCHER_LOST]
    world.settle()
    placed = world.pod(Role.ACTOR)
    placed.has_run, world.starts = False, PodState.RUNNING

    world.end(placed, PodEnding.NODE_LOST)
    decision = world.turn()

    (event,) = decision.events
    assert (event.reason, event.scope) == (Reason.NODE_LOST, None)
    assert event.message == "the node of pod actor-0 was lost; it had not run yet, and another one takes its place"
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.global_restarts) == (2, 1)
    assert world.pod(Role.ACTOR).uid != placed.uid


def test_evictions_in_place_never_reach_the_threshold() -> None:
    world = make_cluster()
    for _ in range(5):
        world.end(world.pod(Role.REFERENCE), PodEnding.EVICTED)
        world.turn()
        world.settle()
    assert world.status.restart.epoch == 1
    assert next(role for role in world.status.roles if role.name is Role.REFERENCE).failures == 0


@pytest.mark.parametrize(
    ("rule", "fields", "counted", "phase"),
    [
        pytest.param(
            {"podReasons": ["Evicted"], "action": "Count"},
            {"ending": PodEnding.EVICTED},
            1,
            None,
            id="it counts",
        ),
        pytest.param(
            {"podReasons": ["OOMKilled"], "action": "Ignore"},
            {"reason": "OOMKilled"},
            0,
            None,
            id="by its word",
        ),
        pytest.param({"exitCodes": [-9], "action": "Ignore"}, {"exit_code": 137}, 0, None, id="a signal"),
        pytest.param({"exitCodes": [137], "action": "Ignore"}, {"exit_code": -9}, 0, None, id="a signal of a process"),
        pytest.param(
            {"exitCodes": [3], "action": "FailJob"}, {"exit_code": 3}, 0, Phase.FAILED, id="an exit code fails the job"
        ),
        pytest.param(
            {"exitCodes": [3], "role": "rollout", "action": "FailJob"}, {"exit_code": 3}, 1, None, id="of another role"
        ),
    ],
)
def test_failure_rules(rule: dict[str, object], fields: dict[str, object], counted: int, phase: Phase | None) -> None:
    world = make_cluster(policy=make_policy(failureRules=[{"name": "mine", **rule}]))
    pod = world.pod(Role.ACTOR)
    pod.state = PodState.EXITED
    for name, value in fields.items():
        setattr(pod, name, value)
    decision = world.turn()
    assert decision.status.restart.counted_towards_max == counted
    if phase is not None:
        assert decision.status.phase is phase
        assert decision.events[-1].reason is Reason.FAILURE_RULE
        assert decision.events[-1].message.endswith("restartPolicy.failureRules: mine fails the job")


def test_a_restarted_container_gets_its_next_order_in_the_same_turn() -> None:
    world = make_cluster()
    world.pod(Role.REFERENCE).restarts = 1
    decision = world.turn()
    (order,) = actions_of(decision, SetDesired)
    (reported,) = [pod for pod in order.desired.pods if pod.pod.role is Role.REFERENCE]
    assert reported.generation == 1
    assert not actions_of(decision, CreatePod)
    assert world.replica(Role.REFERENCE).incarnation.endswith("/1")


def ordered(decision: Decision, role: Role) -> PodOrder:
    """The order of the role's first replica in the orders that a turn gives."""
    orders: list[SetDesired] = actions_of(decision, SetDesired)
    assert len(orders) == 1
    return next(order for order in orders[0].desired.pods if order.pod.role is role)


def test_a_replacement_begins_the_order_that_no_other_pod_may_begin() -> None:
    world = make_cluster()
    world.end(world.pod(Role.REFERENCE), PodEnding.DELETED)
    assert decide(world.observe(), world.now + 1).next_turn_at < world.now + 1.1
    first = ordered(world.turn(), Role.REFERENCE)
    assert (first.pod_uid, first.generation) == (UNSEEN_POD, 1)
    second = ordered(world.turn(), Role.REFERENCE)
    assert (second.pod_uid, second.generation) == (world.pods[-1].uid, 1)


def test_a_container_that_is_back_before_its_platform_states_it_begins_once_in_the_new_epoch() -> None:
    world = make_cluster()
    actor = world.pod(Role.ACTOR)
    # What the platform reports; the next launcher has come already.
    actor.state, actor.exit_code, actor.returns = PodState.EXITED, -9, True
    lost = ordered(world.turn(), Role.ACTOR)
    assert (lost.epoch, lost.pod_uid) == (2, UNSEEN_POD)
    actor.state, actor.restarts = PodState.RUNNING, 1
    assert ordered(world.turn(), Role.ACTOR) == lost.model_copy(update={"pod_uid": actor.uid})
    assert world.settle().replica(Role.ACTOR).ready
    assert world.status.restart.epoch == 2


def test_a_changed_spec_is_a_new_epoch_that_does_not_count() -> None:
    world = make_cluster(policy=make_policy(maxGlobalRestarts=0, backoff={"initialSeconds": 60}))
    world.ask(revision="r2")
    decision = world.turn()
    assert decision.status.restart.epoch == 2
    assert decision.status.restart.revision == "r2"
    assert decision.status.restart.counted_towards_max == 0
    assert actions_of(decision, RaiseEpoch)[0].revision == "r2"
    assert decision.events[-1].message == "the spec was changed (generation 2); the job restarts in epoch 2"
    assert world.settle().status.restart.epoch == 2


def test_the_new_epoch_waits_for_pods_of_an_older_template_which_go_without_counting() -> None:
    world = make_cluster(starts=PodState.PENDING)
    assert world.status.phase is Phase.STARTING
    world = make_cluster()
    world.ask(revision="r2", outdated=True)
    assert not actions_of(world.turn(), RaiseEpoch)
    world.end(world.pod(Role.ACTOR), PodEnding.OUTDATED)
    assert not actions_of(world.turn(), RaiseEpoch)
    assert "pods of an older template are still there" in world.message(ConditionType.READY)
    world.settle()
    world.ask(outdated=False)
    assert actions_of(world.turn(), RaiseEpoch)
    world.settle()
    assert world.status.restart.epoch == 2
    assert world.status.restart.counted_towards_max == 0
    assert world.status.phase is Phase.RUNNING


def test_replicas_of_other_roles_come_and_go_with_the_epoch() -> None:
    world = make_cluster(replicas={Role.ROLLOUT: 1, Role.ACTOR: 2})
    world.replicas = {Role.ROLLOUT: 1, Role.ACTOR: 1}
    world.turn()
    assert world.membership(Role.ACTOR) == ["actor-0", "actor-1"]
    world.ask(revision="r2")
    assert not actions_of(world.turn(), RaiseEpoch), "the pod that is too many goes first"
    assert world.membership(Role.ACTOR) == ["actor-0"]
    world.settle()
    assert world.status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2


@pytest.mark.parametrize("role", [None, Role.ACTOR], ids=["of the job", "of the actor"])
def test_a_requested_restart_is_global_and_carried_out_once(role: Role | None) -> None:
    world = make_cluster()
    world.ask(restart_request=RestartRequestSpec(id="a", role=role, reason="new weather"))
    decision = world.turn()
    assert decision.events[-1].message == "a restart was requested (a): new weather; the job restarts in epoch 2"
    world.settle()
    assert world.status.restart.epoch == 2
    assert world.status.restart.counted_towards_max == 0
    world.ask(restart_request=RestartRequestSpec(id="b", role=role))
    assert world.turn().status.restart.epoch == 3


def test_a_requested_restart_of_a_role_restarts_all_its_replicas_in_place() -> None:
    world = make_cluster()
    world.ask(restart_request=RestartRequestSpec(id="a", role=Role.ROLLOUT))
    world.turn()
    assert [world.replica(Role.ROLLOUT, n).generation for n in (0, 1)] == [1, 1]
    world.settle()
    assert [world.replica(Role.ROLLOUT, n).generation for n in (0, 1)] == [1, 1]
    assert world.status.restart.epoch == 1
    assert world.status.restart.handled_request == "a"


def test_a_suspended_job_saves_first_and_goes_on_in_a_new_epoch() -> None:
    world = make_cluster()
    began = world.status.started_at
    assert began is not None
    world.ask(suspend=True)
    decision = world.turn()
    assert decision.status.phase is Phase.DRAINING
    (order,) = actions_of(decision, SetDesired)
    assert {pod.pod.role for pod in order.desired.pods if pod.phase is PodPhase.DRAIN} == {Role.ACTOR, Role.CRITIC}
    assert decision.events[-1].message == "suspended: actor and critic save, then everything stops"
    decision = world.turn()
    assert decision.status.phase is Phase.SUSPENDED
    assert decision.status.active_seconds == pytest.approx(world.now - began)
    assert decision.actions == ()
    assert not world.pods
    assert world.turn(100).status == decision.status
    world.ask(suspend=False)
    decision = world.turn()
    assert decision.events[-1].reason is Reason.RESUMED
    assert decision.status.restart.epoch == 2
    assert decision.status.started_at == world.now
    assert world.settle().status.phase is Phase.RUNNING


def test_a_job_whose_secret_is_lost_states_it_once_and_is_cured_by_a_suspension() -> None:
    world = make_cluster()
    world.secret_is_lost = True
    decision = world.turn()
    (event,) = decision.events
    assert event.reason is Reason.SECRET_LOST
    assert "Set spec.suspend to true" in event.message
    taken = find(decision.status, ConditionType.ACCEPTED)
    assert taken is not None
    assert (taken.status, taken.reason) == ("False", "SecretLost")
    assert (decision.status.phase, decision.status.reason) == (Phase.RUNNING, "SecretLost")
    assert world.turn(10_000).events == (), "nothing is restarted for what nobody can be told"

    world.ask(suspend=True)
    assert world.turn().status.phase is Phase.DRAINING
    assert world.turn(61).status.phase is Phase.SUSPENDED
    assert not world.pods
    world.secret_is_lost = False
    world.ask(suspend=False)
    status = world.settle().status
    taken = find(status, ConditionType.ACCEPTED)
    assert taken is not None
    assert taken.status == "True"
    assert (status.phase, status.restart.epoch) == (Phase.RUNNING, 2)


def test_a_suspension_taken_back_while_the_actor_saves_is_finished_first() -> None:
    world = make_cluster()
    world.ask(suspend=True)
    world.turn()
    world.ask(suspend=False)
    decision = world.turn()
    assert [event.reason for event in decision.events] == [Reason.SUSPENDED, Reason.RESUMED]
    assert world.settle().status.phase is Phase.RUNNING


def test_a_suspended_job_counts_on_no_container_that_returns() -> None:
    world = make_cluster()
    world.ask(suspend=True)
    world.turn()
    world.restart(world.pod(Role.REFERENCE))
    observed = world.observe()
    decision = decide(observed, world.now + 1)
    assert decision.status.phase is Phase.SUSPENDED
    assert decide(replace(observed, status=decision.status), world.now + 1).status == decision.status


def test_a_second_suspension_gets_its_whole_time() -> None:
    world = make_cluster()
    for _ in range(2):
        world.ask(suspend=True)
        assert world.turn(200).status.phase is Phase.DRAINING
        assert world.turn().status.phase is Phase.SUSPENDED
        world.ask(suspend=False)
        world.turn(200)
        world.settle()


def test_a_coordinator_that_does_not_answer_does_not_cost_what_the_actor_would_save() -> None:
    world = make_cluster()
    world.ask(suspend=True)
    decision = decide(replace(world.observe(), coordinator=None), world.now + 1)
    assert decision.status.phase is Phase.DRAINING


def test_a_job_created_suspended_starts_nothing() -> None:
    world = Cluster(request=UserRequest(revision="r1", generation=1, suspend=True))
    decision = world.turn()
    assert decision.status.phase is Phase.SUSPENDED
    assert decision.actions == ()
    assert not world.settle().pods
    world.ask(suspend=False)
    assert world.turn().events[-1].reason is Reason.STARTED
    assert world.settle().status.phase is Phase.RUNNING


def test_the_deadline_counts_run_time_only() -> None:
    world = make_cluster(request=UserRequest(revision="r1", generation=1, active_deadline_seconds=100))
    world.turn(40)
    world.ask(suspend=True)
    world.turn()
    world.turn()
    world.turn(1000)
    world.ask(suspend=False)
    assert world.turn().status.phase is not Phase.FAILED
    world.settle()
    assert world.turn(40).status.phase is Phase.RUNNING
    decision = world.turn(30)
    assert decision.status.phase is Phase.FAILED
    assert decision.events[-1].reason is Reason.DEADLINE_EXCEEDED
    assert decision.events[-1].message.startswith("the job has run for activeDeadlineSeconds (100 s)")


def test_an_ended_job_stops_once_nothing_runs_in_its_pods_and_is_deleted_after_its_ttl() -> None:
    world = make_cluster(request=UserRequest(revision="r1", generation=1, ttl_seconds_after_finished=30))
    world.recorded, world.step = 100, 99
    decision = world.turn()
    ended = world.now
    assert decision.status.ended_at == ended
    assert not actions_of(decision, Stop)
    assert is_true(decision.status, ConditionType.PROGRESSING)
    decision = world.turn()
    assert actions_of(decision, Stop)
    assert not is_true(decision.status, ConditionType.PROGRESSING)
    assert {role.ready for role in decision.status.roles} == {0}
    assert all(role.replicas == len(role.pods) > 0 for role in decision.status.roles), "pods that are there are listed"
    assert decision.next_turn_at == pytest.approx(ended + 30)
    world.pods.clear()
    gone = world.turn(1).status
    assert [(role.replicas, role.ready, role.pods) for role in gone.roles] == [(0, 0, [])] * len(gone.roles)
    assert gone.training.checkpoint == 100
    assert actions_of(world.turn(29), DeleteJob)


def test_mechanism_recreate_replaces_every_pod() -> None:
    world = make_cluster(policy=make_policy(mechanism="Recreate"))
    before = {pod.uid for pod in world.pods}
    world.ask(restart_request=RestartRequestSpec(id="a"))
    assert len(actions_of(world.turn(), KillPod)) == len(before)
    world.settle()
    assert not before.intersection(pod.uid for pod in world.pods)
    assert world.status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2


def test_a_pod_that_does_not_begin_its_order_is_started_again_and_the_second_time_replaced() -> None:
    world = make_cluster()
    pod = world.pod(Role.REFERENCE)
    pod.deaf = True
    world.ask(restart_request=RestartRequestSpec(id="a", role=Role.REFERENCE))
    world.turn()
    decision = world.turn(125)
    assert "reference-0 has not started a rank in 1" in decision.events[-1].message
    assert not actions_of(decision, KillPod)
    assert not world.turn(60).events
    decision = world.turn(65)
    assert "for the second time: the pod is replaced" in decision.events[-1].message
    assert actions_of(decision, KillPod)
    assert world.settle().status.phase is Phase.RUNNING


def test_ready_names_pending_pods_with_the_reason_of_their_platform() -> None:
    world = Cluster(starts=PodState.PENDING)
    world.turn()
    for pod in world.pods:
        pod.last_message = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu." if pod.role is Role.ACTOR else ""
    world.turn()
    assert "actor-0 (0/1 nodes are available: 1 Insufficient nvidia.com/gpu.)" in world.message(ConditionType.READY)


def test_the_reason_is_the_platforms_then_none_then_that_of_the_last_restart() -> None:
    world = Cluster(starts=PodState.PENDING)
    world.turn()
    assert world.status.reason == ""
    for pod in world.pods:
        pod.reason = "Unschedulable"
    world.turn()
    assert (world.status.phase, world.status.reason) == (Phase.STARTING, "Unschedulable")
    for pod in world.pods:
        pod.state, pod.created, pod.reason = PodState.RUNNING, world.now, ""
    assert (world.settle().status.phase, world.status.reason) == (Phase.RUNNING, "")
    world.starts = PodState.RUNNING
    world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
    world.turn()
    assert (world.status.phase, world.status.reason) == (Phase.RESTARTING, "PodEvicted")
    assert (world.settle().status.phase, world.status.reason) == (Phase.RUNNING, "PodEvicted")


def test_a_job_that_waits_for_its_pods_is_not_stalled() -> None:
    world = Cluster(policy=make_policy(stallTimeoutSeconds=60), starts=PodState.PENDING)
    world.turn()
    world.turn(600)
    assert world.status.restart.epoch == 1
    for pod in world.pods:
        pod.state, pod.created = PodState.RUNNING, world.now
    assert world.settle().status.phase is Phase.RUNNING


def test_a_quiet_job_is_looked_at_when_something_can_be_overdue() -> None:
    world = make_cluster()
    decision = world.turn()
    assert decision.next_turn_at == pytest.approx(world.now + 29.9)


@pytest.mark.parametrize(
    ("waited", "looks_after"),
    [
        pytest.param(0.1, 1, id="at first once a second"),
        pytest.param(8, 8, id="then after as long again as it has waited"),
        pytest.param(500, 30, id="at last as seldom as where all is well"),
    ],
)
def test_a_job_that_waits_for_its_pods_is_looked_at_less_and_less_often(waited: float, looks_after: float) -> None:
    world = Cluster()
    world.turn()
    later = world.now + waited
    observed = replace(world.observe(), coordinator=None)
    assert decide(observed, later).next_turn_at == pytest.approx(later + looks_after)


def test_a_spec_that_is_refused_leaves_the_job_to_the_one_before_and_only_accepted_states_it() -> None:
    world = make_cluster()
    good = AcceptedStatus(generation=1, digest="d1")
    world.request = replace(world.request, accepted=good, refusal=RefusedSpec(2, "spec.x: is wrong. Mend it."))

    (event,) = world.turn().events
    assert event.reason is Reason.INVALID_SPEC
    goes_on = "The job goes on by the spec of generation 1, which was accepted last"
    assert event.message == f"spec.x: is wrong. Mend it. {goes_on}"
    judged = {str(c.type): c.observed_generation for c in world.status.conditions}
    assert judged.pop("Accepted") == world.status.observed_generation == 2
    assert set(judged.values()) == {1}
    assert world.status.accepted == good
    assert (world.status.phase, world.status.reason) == (Phase.RUNNING, "InvalidSpec")
    assert not world.turn().events, "it is said once"

    world.pod(Role.ACTOR).state, world.pod(Role.ACTOR).exit_code = PodState.EXITED, 1
    world.settle()
    assert (world.status.restart.epoch, world.status.reason) == (2, "InvalidSpec")

    world.request = replace(world.request, generation=3, refusal=None)
    assert [event.reason for event in world.turn().events] == [Reason.ACCEPTED]
    assert {c.observed_generation for c in world.status.conditions} == {3}
