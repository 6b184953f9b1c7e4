"""A network that is parted between the coordinator, which the operator reaches, and the pods of workers."""

import pytest

from rljob_api.names import Role
from rljob_api.spec.restart import absence_seconds
from rljob_api.status import Phase
from rljob_operator.core import Decision, PodState, Reason
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import REPLICAS, key, make_failure, make_policy

POLICY = make_policy(coordinatorAbsenceSeconds=100)
LIMIT, HEARTBEAT = absence_seconds(POLICY), POLICY.heartbeat_timeout_seconds
ROLES = [
    pytest.param(list(REPLICAS), id="all"),
    pytest.param([Role.ACTOR, Role.REFERENCE], id="a part"),
    pytest.param([Role.ACTOR], id="one"),
]


def part(world: Cluster, roles: list[Role], seconds: float) -> None:
    """Nothing of these pods has reached the coordinator for so long."""
    for pod in world.pods:
        if pod.role in roles:
            pod.silent = seconds


def losses(decision: Decision) -> list[str]:
    return [event.message for event in decision.events if event.reason is Reason.LAUNCHER_LOST]


@pytest.mark.parametrize("roles", ROLES)
def test_pods_that_run_and_are_cut_off_are_given_up_after_the_absence_and_not_counted(roles: list[Role]) -> None:
    world = make_cluster(policy=POLICY)
    for seconds in (HEARTBEAT + 3, LIMIT / 2, LIMIT - 1):
        part(world, roles, seconds)
        assert losses(world.turn()) == []
    part(world, roles, LIMIT + 3)
    (message,) = losses(world.turn())
    assert "has not asked the coordinator for orders in 103 s, nor has a rank of it beaten" in message
    assert "(not counted)" in message
    assert (world.status.restart.epoch, world.status.restart.counted_towards_max) == (2, 0)
    assert world.settle().status.phase is Phase.RUNNING


def test_a_network_that_heals_in_time_costs_nothing_and_who_died_meanwhile_counts_once() -> None:
    world = make_cluster(policy=POLICY)
    part(world, list(REPLICAS), LIMIT - 1)
    world.turn()
    part(world, list(REPLICAS), 0.1)
    assert world.turn().events == ()
    world.failures = [make_failure(world.status, key(Role.ACTOR))]
    world.turn()
    assert world.settle().status.restart.counted_towards_max == 1
    assert world.status.restart.epoch == 2


def test_a_launcher_that_hangs_is_found_by_its_ranks_which_still_beat() -> None:
    world = make_cluster(policy=POLICY)
    actor = world.pod(Role.ACTOR)
    actor.silent, actor.beats = HEARTBEAT + 3, 0.1
    (message,) = losses(world.turn())
    assert "not counted" not in message
    assert world.status.restart.counted_towards_max == 1


def test_what_its_platform_ends_is_not_waited_for() -> None:
    world = make_cluster(policy=POLICY)
    part(world, [Role.ACTOR], HEARTBEAT + 3)
    world.pod(Role.ACTOR).state, world.pod(Role.ACTOR).exit_code = PodState.EXITED, 1
    assert len(losses(world.turn())) == 1
    assert world.status.restart.counted_towards_max == 1


def test_it_is_looked_again_when_the_first_is_given_up() -> None:
    world = make_cluster(policy=POLICY)
    part(world, [Role.ACTOR], LIMIT - 20)
    assert world.turn().next_turn_at == pytest.approx(world.now + 22)


def test_a_pod_that_does_not_learn_of_a_new_epoch_is_not_called_late() -> None:
    """Its order is there, and it cannot ask for it: that is known by its silence already."""
    world = make_cluster(policy=make_policy(coordinatorAbsenceSeconds=250))
    part(world, [Role.REFERENCE], 20.0)
    world.pod(Role.REFERENCE).deaf = True
    world.failures = [make_failure(world.status, key(Role.ACTOR))]
    world.turn()
    world.turn()
    assert world.status.restart.opened == 2
    part(world, [Role.REFERENCE], 200.0)
    assert [event for event in world.turn(180.0).events if event.scope] == []
    part(world, [Role.REFERENCE], 253.0)
    world.turn()
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.counted_towards_max) == (2, 1)
