"""A pod that is taken away with a word before: what trains saves in the old epoch, then the next one is opened."""

import pytest

from rljob_api.names import Role, Scope
from rljob_api.spec.restart import RestartTableSpec
from rljob_api.status import ConditionType
from rljob_api.wire.epochs import PodPhase
from rljob_operator.core import PodEnding, PodState
from rljob_operator.core.drain import DRAIN_LIMIT_SECONDS, STUCK_SECONDS
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import REPLICAS, WITHOUT_CRITIC, make_policy

GRACE = 90.0
ANNOUNCED = [PodEnding.EVICTED, PodEnding.PREEMPTED, PodEnding.DELETED]


def phase_of(cluster: Cluster, role: Role) -> PodPhase:
    assert cluster.desired is not None
    return next(order.phase for order in cluster.desired.pods if order.pod.role is role)


@pytest.mark.parametrize("ending", ANNOUNCED)
@pytest.mark.parametrize("role", [Role.ROLLOUT, Role.ACTOR, Role.CRITIC])
@pytest.mark.parametrize(
    ("replicas", "sentence"),
    [
        pytest.param(WITHOUT_CRITIC, "the actor saves first", id="an actor alone"),
        pytest.param(REPLICAS, "actor and critic save first", id="actor and critic"),
    ],
)
def test_what_trains_saves_before_the_next_epoch_is_opened(
    role: Role, ending: PodEnding, replicas: dict[Role, int], sentence: str
) -> None:
    if role not in replicas:
        return
    cluster = make_cluster(replicas=dict(replicas))
    cluster.pod(Role.ACTOR).deaf = role is not Role.ACTOR  # it saves for a while
    cluster.end(cluster.pod(role), ending, grace=GRACE)
    decided = cluster.turn()
    assert cluster.status.restart.epoch == 2
    drained = {role for role in replicas if phase_of(cluster, role) is PodPhase.DRAIN}
    assert (cluster.epoch, drained) == (1, {Role.ACTOR, Role.CRITIC} & set(replicas))
    assert sentence in cluster.message(ConditionType.READY)
    assert [event.reason.value for event in decided.events if event.scope is Scope.GLOBAL] != []
    assert cluster.status.restart.counted_towards_max == 0
    for pod in cluster.pods:
        pod.deaf = False
        if pod.terminates_by is not None:  # its launcher was ended by a signal, and has left
            pod.order = None
    cluster.settle()
    assert cluster.epoch == 2
    assert phase_of(cluster, Role.ACTOR) is PodPhase.RUN


def test_a_critic_that_trains_still_is_waited_for_and_one_that_waits_as_the_actor_does_is_not() -> None:
    cluster = make_cluster()
    actor, critic = cluster.pod(Role.ACTOR), cluster.pod(Role.CRITIC)
    actor.deaf, actor.waiting, critic.deaf = True, "the turn of train_7", True
    cluster.end(cluster.pod(Role.ROLLOUT), PodEnding.EVICTED, grace=GRACE)
    cluster.turn()
    cluster.turn(STUCK_SECONDS)
    assert cluster.epoch == 1
    critic.waiting = "rows of train_7"
    cluster.turn()
    assert cluster.epoch == 2


def test_an_actor_that_waits_for_rows_that_no_rollout_makes_is_not_waited_for() -> None:
    cluster = make_cluster(replicas=dict(WITHOUT_CRITIC))
    actor = cluster.pod(Role.ACTOR)
    actor.deaf, actor.waiting = True, "rows of train_7"
    cluster.end(cluster.pod(Role.ROLLOUT), PodEnding.EVICTED, grace=GRACE)
    cluster.turn()
    cluster.turn(STUCK_SECONDS - 0.1)
    assert cluster.epoch == 1
    cluster.turn(0.2)
    assert cluster.epoch == 2


def test_no_actor_is_waited_for_longer_than_before_a_suspension() -> None:
    cluster = make_cluster()
    cluster.pod(Role.ACTOR).deaf = True
    cluster.end(cluster.pod(Role.ROLLOUT), PodEnding.EVICTED, grace=10 * GRACE)
    cluster.turn()
    cluster.turn(DRAIN_LIMIT_SECONDS - 0.1)
    assert cluster.epoch == 1
    cluster.turn(0.2)
    assert cluster.epoch == 2


def test_an_actor_that_states_how_long_it_saves_is_waited_for() -> None:
    cluster = make_cluster(replicas=dict(WITHOUT_CRITIC))
    actor = cluster.pod(Role.ACTOR)
    actor.deaf, actor.busy_seconds, actor.waiting = True, 300.0, "the checkpoint in flight"
    cluster.end(cluster.pod(Role.ROLLOUT), PodEnding.EVICTED, grace=1000.0)
    cluster.turn()
    cluster.turn()
    cluster.turn(DRAIN_LIMIT_SECONDS + 1)
    assert cluster.epoch == 1
    actor.busy_seconds = None
    cluster.turn()
    assert cluster.epoch == 2


def test_an_actor_that_is_gone_with_its_node_is_not_waited_for() -> None:
    cluster = make_cluster(replicas=dict(WITHOUT_CRITIC))
    actor = cluster.pod(Role.ACTOR)
    actor.deaf, actor.silent = True, 20.0
    cluster.end(actor, PodEnding.DELETED, grace=GRACE)
    cluster.turn()
    assert cluster.epoch == 2


def test_after_a_death_no_actor_saves() -> None:
    cluster = make_cluster()
    dead = cluster.pod(Role.ROLLOUT)
    dead.state, dead.exit_code, dead.order = PodState.EXITED, -9, None
    cluster.turn()
    assert cluster.epoch == 2


def test_a_rollout_that_restarts_in_place_hands_back_what_it_has_and_the_others_go_on() -> None:
    cluster = make_cluster(policy=make_policy(table=RestartTableSpec(rollout=Scope.IN_PLACE)))
    spot = cluster.pod(Role.ROLLOUT)
    cluster.end(spot, PodEnding.PREEMPTED, grace=GRACE)
    assert cluster.turn().events == ()
    assert cluster.pod(Role.ROLLOUT) is spot
    spot.terminates_by = None  # it has ended
    (event,) = (event for event in cluster.turn().events if event.scope is not None)
    assert event.scope is Scope.IN_PLACE
    cluster.settle()
    assert cluster.pod(Role.ROLLOUT) is not spot
    assert (cluster.epoch, phase_of(cluster, Role.ACTOR)) == (1, PodPhase.RUN)
    role = next(role for role in cluster.status.roles if role.name is Role.ROLLOUT)
    assert role.failures == 0


def test_such_a_rollout_is_replaced_when_its_time_is_over() -> None:
    cluster = make_cluster(policy=make_policy(table=RestartTableSpec(rollout=Scope.IN_PLACE)))
    spot = cluster.pod(Role.ROLLOUT)
    cluster.end(spot, PodEnding.PREEMPTED, grace=5.0)
    cluster.turn(4.0)
    assert cluster.replica(Role.ROLLOUT).generation == 0
    cluster.turn(2.0)
    assert cluster.replica(Role.ROLLOUT).generation == 1
