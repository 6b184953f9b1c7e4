"""Scaling of rollouts: they join without a restart, drain before they go, and never take another's place."""

from dataclasses import replace

from rljob_api.names import Role
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import ConditionType, Phase, ScalingStatus
from rljob_api.wire.epochs import PodPhase
from rljob_operator.core import KeepPod, MarkForDeletion, PodEnding, PodState, SetDesired, decide
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.scaling import LEAVE_LIMIT_SECONDS
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import actions_of, key, make_failure, make_policy, make_running


def scale(world: Cluster, count: int) -> None:
    """kubectl scale."""
    world.replicas[Role.ROLLOUT] = count
    world.ask()


def names(count: int) -> list[str]:
    """Of the first rollouts."""
    return [f"rollout-{n}" for n in range(count)]


def test_more_replicas_join_the_running_job() -> None:
    world = make_cluster()
    scale(world, 4)
    decision = world.turn()
    assert world.membership(Role.ROLLOUT) == names(4)
    assert decision.events[-1].message == "rollout scales from 2 to 4 replicas"
    assert decision.status.phase is Phase.RUNNING
    ready = find(decision.status, ConditionType.READY)
    assert ready is not None
    assert (ready.reason, ready.message) == ("Scaling", "waiting for rollout-2, rollout-3")
    world.settle()
    assert is_true(world.status, ConditionType.READY)
    assert world.status.restart.epoch == 1
    assert world.status.scaling == ScalingStatus(replicas=4, desired=4, selector="role=rollout")
    assert [world.replica(Role.ROLLOUT, n).generation for n in range(4)] == [0] * 4


def test_a_replica_joins_once_no_one_has_an_order_for_its_number() -> None:
    world = make_cluster(replicas={Role.ROLLOUT: 2, Role.ACTOR: 1})
    scale(world, 1)
    world.settle()
    before = world.observe().coordinator
    assert before is not None
    assert before.desired is not None
    order = before.desired.pods[0].model_copy(update={"pod": key(Role.ROLLOUT, 1), "generation": 3})
    late = before.desired.model_copy(update={"pods": [*before.desired.pods, order]})
    scale(world, 2)
    deaf = replace(world.observe(), coordinator=before.model_copy(update={"desired": late}))
    decision = decide(deaf, world.now)
    assert [role.replicas for role in decision.status.roles if role.name is Role.ROLLOUT] == [1]
    assert actions_of(decision, SetDesired)
    assert decision.next_turn_at <= world.now + 1
    assert not decide(replace(deaf, coordinator=None), world.now).events
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)


def test_fewer_replicas_are_marked_and_drain_before_their_deployment_shrinks() -> None:
    world = make_cluster(replicas={Role.ROLLOUT: 4, Role.ACTOR: 1})
    scale(world, 2)
    decision = world.turn()
    assert [str(action.pod) for action in actions_of(decision, MarkForDeletion)] == ["rollout-2", "rollout-3"]
    (order,) = actions_of(decision, SetDesired)
    drained = [str(pod.pod) for pod in order.desired.pods if pod.phase is PodPhase.DRAIN]
    assert drained == ["rollout-2", "rollout-3"]
    assert world.membership(Role.ROLLOUT) == names(4)
    assert decision.status.scaling.replicas == 4
    stay = {world.pod(Role.ROLLOUT, n).uid for n in (0, 1)}
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(2)
    assert {pod.uid for pod in world.pods if pod.role is Role.ROLLOUT} == stay
    assert world.status.restart.epoch == 1
    assert is_true(world.status, ConditionType.READY)


def test_a_replica_that_drains_does_not_matter_to_readiness_and_may_die() -> None:
    world = make_cluster()
    world.pod(Role.ROLLOUT, 1).deaf = True
    scale(world, 1)
    world.turn()
    world.failures = [make_failure(make_running().status, key(Role.ROLLOUT, 1), epoch=1)]
    world.pod(Role.ROLLOUT, 1).silent = 99
    decision = world.turn()
    assert is_true(decision.status, ConditionType.READY)
    assert decision.status.restart.epoch == 1
    assert world.membership(Role.ROLLOUT) == names(2)


def test_a_replica_that_does_not_drain_goes_after_the_limit() -> None:
    world = make_cluster()
    world.pod(Role.ROLLOUT, 1).deaf = True
    scale(world, 1)
    world.turn()
    world.turn()
    assert world.membership(Role.ROLLOUT) == names(2)
    world.turn(LEAVE_LIMIT_SECONDS)
    assert world.membership(Role.ROLLOUT) == names(1)


def test_scaling_up_again_revives_a_replica_that_drains() -> None:
    world = make_cluster()
    world.pod(Role.ROLLOUT, 1).deaf = True
    scale(world, 1)
    world.turn()
    scale(world, 2)
    decision = world.turn()
    assert [str(action.pod) for action in actions_of(decision, KeepPod)] == ["rollout-1"]
    assert world.replica(Role.ROLLOUT, 1).generation == 1
    world.pod(Role.ROLLOUT, 1).deaf = False
    world.settle()
    assert is_true(world.status, ConditionType.READY)
    assert not any(pod.marked for pod in world.pods)


def test_during_a_restart_no_one_begins_to_drain_and_its_last_decision_begins_it() -> None:
    world = make_cluster()
    world.pod(Role.ACTOR).deaf = True
    world.ask(restart_request=RestartRequestSpec(id="a"))
    world.turn()
    scale(world, 1)
    assert not world.turn().status.roles[0].pods[1].draining
    world.pod(Role.ACTOR).deaf = False
    while not is_true((decision := world.turn()).status, ConditionType.READY):
        assert not decision.status.roles[0].pods[1].draining
    assert decision.status.roles[0].pods[1].draining
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(1)


def test_a_drain_under_way_ends_with_its_epoch() -> None:
    world = make_cluster()
    world.pod(Role.ROLLOUT, 1).deaf = True
    scale(world, 1)
    world.turn()
    world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
    world.turn()
    assert world.membership(Role.ROLLOUT) == names(1)
    assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2


def test_replicas_that_find_no_place_go_again_although_the_job_never_became_ready() -> None:
    world = Cluster(replicas={Role.ROLLOUT: 3, Role.ACTOR: 1})
    world.turn()
    pending = [pod for pod in world.pods if pod.role is Role.ROLLOUT][1:]
    for pod in pending:
        pod.state = PodState.PENDING
    world.settle()
    assert not is_true(world.status, ConditionType.READY)
    scale(world, 1)
    world.settle()
    assert world.membership(Role.ROLLOUT) == names(1)
    assert is_true(world.status, ConditionType.READY)


def test_an_update_of_the_spec_brings_more_replicas_with_it() -> None:
    world = make_cluster()
    world.replicas[Role.ROLLOUT] = 3
    world.ask(revision="r2")
    world.turn()
    assert world.membership(Role.ROLLOUT) == names(3)
    assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2


def test_a_local_run_does_not_scale() -> None:
    observed = make_running(make_policy())
    decision = decide(replace(observed, replicas={**observed.replicas, Role.ROLLOUT: 5}), 1_000_010.0)
    assert len(decision.status.roles[0].pods) == 2
