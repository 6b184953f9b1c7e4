"""What is emitted once although what follows from it is refused for a while, or comes a second time."""

from rljob_api.names import Role
from rljob_api.spec.restart import RestartRequestSpec
from rljob_api.status import Phase
from rljob_operator.core import Reason
from tests.unit.core.cluster import make_cluster
from tests.unit.core.worlds import REPLICAS, START, key, make_failure


def test_the_cause_of_a_restart_is_reported_once_while_the_coordinator_refuses_what_follows() -> None:
    world = make_cluster()
    world.failures = [make_failure(world.status, key(Role.REFERENCE), incarnation=None)]
    world.refuses = True

    reported = [event.reason for _ in range(5) for event in world.turn(0.2).events]
    assert reported == [Reason.RANK_EXITED]
    world.refuses = False
    assert world.settle().status.phase is Phase.RUNNING
    assert [row.failures for row in world.status.roles if row.name is Role.REFERENCE] == [1]


def test_a_pod_that_takes_the_place_of_one_that_did_not_begin_its_orders_is_given_two_tries_as_well() -> None:
    world = make_cluster(replicas={**REPLICAS, Role.ROLLOUT: 1})
    world.ask(restart_request=RestartRequestSpec(id="a"))
    tries: list[str] = []

    while len(tries) < 4:
        for pod in world.pods:
            pod.deaf = pod.role is Role.ROLLOUT
        tries += [event.message for event in world.turn(5).events if "has not started a rank" in event.message]
        assert world.now < START + 3600

    assert ["the pod is replaced" in message for message in tries] == [False, True, False, True]
