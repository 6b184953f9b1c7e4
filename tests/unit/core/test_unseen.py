"""What a lost pod may have done unseen: on a node that is cut off, or while the coordinator does not answer."""

import pytest

from rljob_api.names import Role
from rljob_api.status import Phase
from rljob_api.wire.epochs import PodOrder
from rljob_operator.core import PodEnding, PodState, Reason
from tests.unit.core.cluster import Cluster, Pod, make_cluster
from tests.unit.core.worlds import key


def placed_on_a_lost_node(world: Cluster, role: Role) -> Pod:
    """A pod of this role is lost; the one in its place is scheduled, and its cluster knows of no start."""
    world.starts, world.pod(role).silent = PodState.PENDING, 1000.0
    world.settle()
    placed = world.pod(role)
    placed.has_run, world.starts = False, PodState.RUNNING
    return placed


@pytest.mark.parametrize(
    ("registered", "answers", "restarts"),
    [
        pytest.param(False, True, False, id="no launcher has registered from it"),
        pytest.param(True, True, True, id="its launcher works, on a node that is cut off from its cluster only"),
        pytest.param(False, False, True, id="nobody can say whether one has"),
    ],
)
def test_what_is_lost_before_it_ran_restarts_nothing_if_the_coordinator_has_not_seen_it_either(
    registered: bool, answers: bool, restarts: bool
) -> None:
    world = make_cluster()
    placed = placed_on_a_lost_node(world, Role.ACTOR)
    if registered:
        epoch, generation = world.status.restart.epoch, world.replica(Role.ACTOR).generation
        placed.order = PodOrder(pod=key(Role.ACTOR), epoch=epoch, generation=generation, pod_uid=placed.uid)
    world.answers = answers

    world.end(placed, PodEnding.NODE_LOST)
    events = world.turn().events

    assert [(event.reason, event.scope is not None) for event in events] == [(Reason.NODE_LOST, restarts)]
    world.answers = True
    assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.epoch == (3 if restarts else 2)
    assert world.status.restart.counted_towards_max == 0


def test_the_replacement_of_a_pod_that_had_not_run_is_reported_once() -> None:
    world = make_cluster(stops=False)
    world.end(placed_on_a_lost_node(world, Role.REFERENCE), PodEnding.NODE_LOST)

    reported = [event for _ in range(4) for event in world.turn().events if event.reason is Reason.NODE_LOST]

    assert [event.message.partition("; ")[2] for event in reported] == [
        "it had not run yet, and another one takes its place"
    ]


def test_while_a_job_drains_nothing_is_replaced_and_nothing_is_reported_of_it() -> None:
    world = make_cluster()
    placed = placed_on_a_lost_node(world, Role.REFERENCE)
    world.pod(Role.ACTOR).deaf = True  # it has not saved yet
    world.ask(suspend=True)
    world.turn()
    world.stops = False
    world.end(placed, PodEnding.NODE_LOST)

    for _ in range(4):
        assert not [event for event in world.turn().events if event.reason is Reason.NODE_LOST]
    assert world.status.phase is Phase.DRAINING


def opened_unseen() -> Cluster:
    """Epoch 2 is open and its orders are taken; the coordinator does not answer since."""
    world = make_cluster()
    world.end(world.pod(Role.ROLLOUT), PodEnding.DELETED)
    world.turn()  # the actor saves
    world.turn()
    world.answers = False
    assert (world.epoch, world.status.restart.opened) == (2, 1)
    return world


@pytest.mark.parametrize("times", [1, 2])
def test_an_actor_that_was_lost_after_its_epoch_was_opened_unseen_restarts_the_job_when_that_is_seen(
    times: int,
) -> None:
    world = opened_unseen()
    for _ in range(times):
        world.end(world.pod(Role.ACTOR), PodEnding.EVICTED)
        assert not [event for event in world.settle().turn().events if event.scope]
    assert (world.status.restart.epoch, world.status.restart.opened) == (2, 1)

    world.answers = True
    (event,) = [event for event in world.turn().events if event.scope]

    assert event.message.startswith("actor-0 was lost in epoch 2 while the coordinator did not answer (not counted); ")
    assert world.settle().status.phase is Phase.RUNNING
    assert (world.status.restart.epoch, world.status.restart.counted_towards_max) == (3, 0)


def test_an_epoch_that_was_opened_unseen_and_lost_no_one_goes_on() -> None:
    world = opened_unseen()
    world.settle()

    world.answers = True
    assert not [event for event in world.turn().events if event.scope]
    assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2


def test_what_the_table_restarts_in_place_does_so_too_when_its_loss_was_unseen() -> None:
    world = opened_unseen()
    world.end(world.pod(Role.REFERENCE), PodEnding.EVICTED)
    world.settle()

    world.answers = True
    (event,) = [event for event in world.turn().events if event.scope]

    assert "reference-0 restarts in place (not counted)" in event.message
    assert world.settle().status.phase is Phase.RUNNING
    assert world.status.restart.epoch == 2
