"""A gang that has no room for one of its pods, and cannot train without it, gives the others back after a while."""

import pytest

from rljob_api.names import Role
from rljob_api.wire.epochs import PodPhase
from rljob_operator.core import KillPod, PodEnding, Reason
from tests.unit.core.cluster import Cluster, make_cluster

PATIENCE = 60.0
REPLICAS = {Role.ROLLOUT: 2, Role.ACTOR: 2, Role.ADVANTAGES: 1}


def make_gang(**fields: object) -> Cluster:
    return make_cluster(**{"release_after_seconds": PATIENCE, "replicas": dict(REPLICAS), **fields})


def lose(cluster: Cluster, *members: tuple[Role, int]) -> None:
    """Pods go at once, and the cluster has no room for others."""
    cluster.has_room = False
    for role, replica in members:
        cluster.end(cluster.pod(role, replica), PodEnding.PREEMPTED)
    cluster.settle()


def pods_with_a_node(cluster: Cluster) -> int:
    return sum(pod.placed and not pod.going for pod in cluster.pods)


def test_after_its_patience_a_gang_holds_nothing_and_begins_again_as_a_whole() -> None:
    cluster = make_gang()
    lose(cluster, (Role.ACTOR, 1))
    before = cluster.status.restart
    cluster.turn(PATIENCE - 5)
    assert pods_with_a_node(cluster) == 4
    cluster.turn(5)
    cluster.settle()
    assert pods_with_a_node(cluster) == 0
    assert cluster.status.restart.reason == Reason.GANG_RELEASED
    assert (cluster.status.restart.epoch, cluster.status.restart.counted_towards_max) == (before.epoch + 1, 0)
    assert "no room for pod actor-1" in (cluster.status.restart.message or "")
    cluster.turn(10 * PATIENCE)
    assert cluster.status.restart.epoch == before.epoch + 1, "there is nothing left to give back"
    cluster.has_room = True
    for pod in list(cluster.pods):
        cluster.end(pod, PodEnding.DELETED)  # the scheduler of the tests places new pods only
    cluster.settle()
    assert cluster.desired is not None
    assert {order.phase for order in cluster.desired.pods} == {PodPhase.RUN}


@pytest.mark.parametrize(
    ("members", "trains"),
    [
        pytest.param([(Role.ROLLOUT, 0)], True, id="one rollout of two"),
        pytest.param([(Role.ROLLOUT, 0), (Role.ROLLOUT, 1)], False, id="all rollouts"),
        pytest.param([(Role.ACTOR, 0)], False, id="one of the actor's pods"),
        pytest.param([(Role.ADVANTAGES, 0)], False, id="the only pod of a role that restarts in place"),
    ],
)
def test_a_gang_that_can_train_keeps_its_pods(members: list[tuple[Role, int]], trains: bool) -> None:
    cluster = make_gang()
    lose(cluster, *members)
    cluster.turn(PATIENCE + 1)
    cluster.settle()
    assert bool(pods_with_a_node(cluster)) is trains


def test_no_pod_is_made_before_all_that_are_given_back_have_gone() -> None:
    cluster = make_gang()
    lose(cluster, (Role.ACTOR, 1))
    slow = cluster.pod(Role.ROLLOUT, 0)
    cluster.stops = False
    cluster.turn(PATIENCE + 1)
    cluster.pods = [slow]
    cluster.end(slow, PodEnding.DELETED)
    cluster.settle()
    assert cluster.status.restart.releasing
    assert cluster.pods == [slow], "with it a new one would be one of a whole gang"
    cluster.pods = []
    cluster.settle()
    assert not cluster.status.restart.releasing
    assert len(cluster.pods) == sum(REPLICAS.values())


def test_without_a_gang_nothing_is_given_back() -> None:
    cluster = make_gang(release_after_seconds=None)
    lose(cluster, (Role.ACTOR, 1))
    decision = cluster.turn(100 * PATIENCE)
    assert not any(isinstance(action, KillPod) for action in decision.actions)
    assert pods_with_a_node(cluster) == 4


def test_rollouts_beyond_the_least_begin_when_the_job_runs_and_leave_when_it_gives_back() -> None:
    cluster = Cluster(
        release_after_seconds=PATIENCE, replicas={**REPLICAS, Role.ROLLOUT: 4}, required={Role.ROLLOUT: 2}
    )
    cluster.turn()
    assert cluster.membership(Role.ROLLOUT) == ["rollout-0", "rollout-1"]
    cluster.settle()
    assert len(cluster.membership(Role.ROLLOUT)) == 4
    lose(cluster, (Role.ACTOR, 0))
    assert len(cluster.membership(Role.ROLLOUT)) == 4, "those that run go on running"
    cluster.turn(PATIENCE + 1)
    cluster.settle()
    assert cluster.membership(Role.ROLLOUT) == ["rollout-0", "rollout-1"]


def test_a_restart_waits_for_no_rollout_that_has_joined_and_has_no_place() -> None:
    cluster = make_gang(replicas={**REPLICAS, Role.ROLLOUT: 3}, required={Role.ROLLOUT: 2})
    assert len(cluster.membership(Role.ROLLOUT)) == 3
    lose(cluster, (Role.ROLLOUT, 2))
    cluster.has_room = True
    cluster.end(cluster.pod(Role.ACTOR, 0), PodEnding.PREEMPTED)
    cluster.turn()
    assert cluster.membership(Role.ROLLOUT) == ["rollout-0", "rollout-1"]
