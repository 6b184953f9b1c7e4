"""Coordinator, Redis or storage that do not run: named from the start on, and a job without them is not called well."""

import pytest

from rljob_api.names import Role
from rljob_api.status import ConditionType, Phase
from rljob_operator.core import PodState, Reason
from rljob_operator.core.conditions import find, is_true
from rljob_operator.core.observed import ProcessFact
from tests.unit.core.cluster import Cluster, make_cluster
from tests.unit.core.worlds import make_policy

CRASH = "CrashLoopBackOff: back-off 5m0s restarting failed container"


def away(name: str, since: float, reason: str, text: str) -> ProcessFact:
    return ProcessFact(name, None, alive=True, down_since=since, reason=reason, waits_for=text)


def test_a_job_that_cannot_start_names_the_infrastructure_that_it_waits_for() -> None:
    world = Cluster(starts=PodState.PENDING, answers=False)
    world.infrastructure = [away("control", world.now, "Unschedulable", "Unschedulable: unbound claims")]

    world.settle()

    message = "the epoch is not open yet; waiting for control (Unschedulable: unbound claims)"
    assert world.message(ConditionType.READY) == message
    assert (world.status.phase, world.status.reason) == (Phase.STARTING, "Unschedulable")


@pytest.mark.parametrize("name", ["coordinator", "control", "storage-0"])
def test_a_job_whose_infrastructure_does_not_come_back_is_not_ready_until_it_does(name: str) -> None:
    world = make_cluster()
    world.answers = name != "coordinator"
    world.infrastructure = [away(name, world.now, "CrashLoopBackOff", CRASH)]

    world.turn(29)
    assert is_true(world.status, ConditionType.READY), "a restart takes a moment, and the job goes on after it"
    assert not world.turn(5).events
    ready = find(world.status, ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", Reason.INFRASTRUCTURE_DOWN)
    assert ready.message == f"waiting for {name} ({CRASH})"
    assert (world.status.phase, world.status.reason) == (Phase.RUNNING, "InfrastructureDown")

    world.answers, world.infrastructure = True, [ProcessFact(name, None, alive=True)]
    (event,) = world.turn().events
    assert (event.reason, event.message) == (
        Reason.READY,
        "every role is ready in epoch 1, and the infrastructure runs again",
    )
    assert (world.status.phase, world.status.restart.epoch) == (Phase.RUNNING, 1)


def test_infrastructure_that_comes_and_goes_does_not_put_a_stall_off() -> None:
    world = make_cluster(policy=make_policy(stallTimeoutSeconds=600))
    reported: list[Reason] = []
    for _ in range(4):
        world.infrastructure = [away("storage-0", world.now, "CrashLoopBackOff", CRASH)]
        reported += [event.reason for seconds in (1, 100, 100) for event in world.turn(seconds).events]
        world.infrastructure = [ProcessFact("storage-0", None, alive=True)]
        reported += [event.reason for event in world.turn().events]
        if Reason.STALLED in reported:
            break

    assert reported.count(Reason.STALLED) == 1
    assert reported.count(Reason.READY) >= 2


def test_rollouts_that_are_wanted_join_while_infrastructure_is_down() -> None:
    world = make_cluster()
    world.infrastructure = [away("storage-0", world.now, "CrashLoopBackOff", CRASH)]
    world.turn(60)
    world.replicas[Role.ROLLOUT] += 1

    events = [event.reason for _ in range(3) for event in world.turn().events]

    assert events == [Reason.SCALED_UP]
    assert len(world.membership(Role.ROLLOUT)) == world.replicas[Role.ROLLOUT]
