"""Launchers: registration, orders by long poll, fencing, and the word that opens a restarted control Redis."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import UNSEEN_POD, DesiredState, PodOrder, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherPoll
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.errors import IncarnationOver
from rljob_workers.launcher.coordinator_calls import LauncherClient
from tests.integration.dcs.world import World


@pytest.fixture
def client(world: World) -> Iterator[LauncherClient]:
    client = world.launcher_client()
    yield client
    client.close()


@pytest.fixture
def other(world: World) -> Iterator[LauncherClient]:
    client = world.launcher_client()
    yield client
    client.close()


def collected(client: LauncherClient) -> LauncherAnswer | None:
    """What a launcher's loop does: wait with a time-out, collect."""
    deadline = time.monotonic() + 240
    answer = client.collect()
    while answer is None and client.is_polling:
        assert time.monotonic() < deadline
        poller = select.poll()
        client.watch(poller)
        poller.poll(100)
        answer = client.collect()
    return answer


def test_a_poll_is_answered_at_once_where_nothing_is_carried_yet(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ROLLOUT, 1))
    answer = world.poll(client, None, 20)
    assert answer.order is not None
    assert (answer.order.epoch, answer.world_size, answer.first_rank) == (1, 2, 1)


def test_a_waiting_poll_is_woken_by_a_new_order(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ACTOR))
    first = world.poll(client, None)
    client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    assert client.collect() is None
    assert client.is_polling
    world.raise_epoch(2)
    assert client.collect() is None
    assert client.is_polling
    world.order(2)
    answer = collected(client)
    assert answer is not None
    assert answer.order is not None
    assert answer.order.epoch == 2


def test_a_poll_that_receives_nothing_new_repeats_the_order(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ACTOR))
    first = world.poll(client, None)
    assert world.poll(client, first.order, 0.05) == first


def test_a_poll_outlives_a_kill_of_the_coordinator(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ACTOR))
    first = world.poll(client, None)
    client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    world.restart()
    assert collected(client) is None
    assert world.poll(client, first.order, 0.05) == first


def test_a_later_launcher_of_the_pod_fences_the_earlier_and_its_ranks(world: World, client: LauncherClient) -> None:
    world.begin()
    earlier = world.register(Role.ADVANTAGES)
    rank = world.rank(Role.ADVANTAGES)
    client.register(earlier)
    first = world.poll(client, None)
    client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    later = world.register(Role.ADVANTAGES)
    with pytest.raises(IncarnationOver, match="was replaced by a later one"):
        collected(client)
    with pytest.raises(IncarnationOver, match="was replaced by a later one"):
        client.register(earlier)
    with pytest.raises(IncarnationOver, match="is over"):
        rank.ready()
    assert world.status().pods[0].launcher == later.launcher
    assert len(world.reported(EventKind.POD_CHANGED)) == 2


def test_a_launcher_that_came_back_by_itself_waits_for_a_decision(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ADVANTAGES))
    first = world.poll(client, None)
    world.poll(client, first.order, 0.05)
    client.register(world.hello(Role.ADVANTAGES))
    answer = world.poll(client, None)
    assert answer.order is None
    world.order(1, {"advantages-0": 1})
    answer = world.poll(client, None, 20)
    assert answer.order is not None
    assert answer.order.generation == 1


def test_another_pod_carries_a_number_that_was_free_for_a_while(world: World, client: LauncherClient) -> None:
    """A replica that drained has left its number, and the next one begins where it began."""
    key = PodKey(role=Role.ROLLOUT, replica=2)

    def order(*uids: str) -> None:
        pods = [PodOrder(pod=key, epoch=Epoch(1), generation=0, phase=PodPhase.RUN, pod_uid=uid) for uid in uids]
        world.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(1), pods=pods, replicas={}))

    hello = world.hello(Role.ROLLOUT, 2)
    world.raise_epoch(1)
    order(hello.pod_uid)
    client.register(hello)
    first = world.poll(client, None)
    assert first.order is not None
    world.poll(client, first.order, 0.05)
    order()
    world.poll(client, first.order, 0.05)  # it goes on asking until it is gone
    order("another")
    client.register(world.hello(Role.ROLLOUT, 2).model_copy(update={"pod_uid": "another"}))
    answer = world.poll(client, None, 20)
    assert answer.order is not None
    assert answer.order.pod_uid == "another"
    world.poll(client, answer.order, 0.05)
    client.register(world.hello(Role.ROLLOUT, 2).model_copy(update={"pod_uid": "another"}))
    answer = world.poll(client, None)
    assert answer.order is None, "it came back by itself, and the table decides"


def order_actor(world: World, epoch: int, uid: str) -> None:
    """Orders that name this pod as the actor."""
    pod = PodKey(role=Role.ACTOR, replica=0)
    orders = [PodOrder(pod=pod, epoch=Epoch(epoch), generation=0, phase=PodPhase.RUN, pod_uid=uid)]
    world.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(epoch), pods=orders, replicas={}))


def carries(world: World) -> list[str]:
    """The launchers that carry pods."""
    return [pod.launcher for pod in world.status().pods]


def test_a_launcher_that_is_up_before_its_order_waits_and_ends_no_one(
    world: World, client: LauncherClient, other: LauncherClient
) -> None:
    """Its pod is made while the epoch that names it is still held back, as by a back-off."""
    world.raise_epoch(1)
    present, later = world.hello(Role.ACTOR), world.hello(Role.ACTOR).model_copy(update={"pod_uid": "later"})
    order_actor(world, 1, present.pod_uid)
    other.register(present)
    carried = world.poll(other, None).order
    client.register(later)
    assert world.poll(client, None).order is None
    assert world.poll(other, carried, 0.05).order == carried
    assert carries(world) == [present.launcher]
    client.begin_poll(LauncherPoll(carried=None, ranks=[], wait_seconds=20))
    world.raise_epoch(2)
    order_actor(world, 2, "later")
    answer = collected(client)
    assert isinstance(answer, LauncherAnswer)
    assert answer.order is not None
    assert (answer.order.epoch, answer.order.pod_uid) == (2, "later")
    assert carries(world) == [later.launcher]
    with pytest.raises(IncarnationOver, match="was replaced by a later one"):
        world.poll(other, carried, 0.05)


def test_an_order_of_no_one_is_begun_by_no_launcher_until_it_names_a_pod(
    world: World, client: LauncherClient, other: LauncherClient
) -> None:
    """The container is back before its platform has reported the supervisor, which orders the next epoch without it."""
    world.raise_epoch(1)
    lost, back = world.hello(Role.ACTOR), world.hello(Role.ACTOR)
    order_actor(world, 1, lost.pod_uid)
    other.register(lost)
    carried = world.poll(other, None).order
    world.poll(other, carried, 0.05)
    client.register(back)
    world.raise_epoch(2)
    order_actor(world, 2, UNSEEN_POD)
    assert world.poll(client, None).order is None
    client.register(back)
    assert world.poll(client, None).order is None
    client.begin_poll(LauncherPoll(carried=None, ranks=[], wait_seconds=20))
    order_actor(world, 2, back.pod_uid)
    answer = collected(client)
    assert isinstance(answer, LauncherAnswer)
    assert answer.order is not None
    assert (answer.order.epoch, answer.order.generation) == (2, 0)


def test_a_launcher_that_waits_for_its_order_goes_on_waiting_in_a_restarted_coordinator(
    world: World, client: LauncherClient, other: LauncherClient
) -> None:
    world.raise_epoch(1)
    order_actor(world, 1, "gone")
    client.register(world.hello(Role.ACTOR).model_copy(update={"pod_uid": "gone"}))
    other.register(world.hello(Role.ACTOR).model_copy(update={"pod_uid": "later"}))
    world.restart()
    assert world.poll(other, None).order is None
    order_actor(world, 1, "later")
    answer = world.poll(other, None, 20)
    assert answer.order is not None
    assert answer.order.pod_uid == "later"


def test_a_launcher_that_the_orders_have_left_or_name_otherwise_is_fenced(
    world: World, client: LauncherClient, other: LauncherClient
) -> None:
    world.raise_epoch(1)
    hello = world.hello(Role.ACTOR)
    order_actor(world, 1, hello.pod_uid)
    client.register(hello)
    order_actor(world, 1, "another")
    with pytest.raises(IncarnationOver, match="is pod another by order, and launcher"):
        client.register(hello)
    other.register(world.hello(Role.ACTOR).model_copy(update={"pod_uid": "third"}))
    pods = [
        PodOrder(pod=PodKey(role=Role.ACTOR, replica=replica), epoch=Epoch(1), generation=0, pod_uid=uid)
        for replica, uid in enumerate(("another", "third"))
    ]
    world.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(1), pods=pods, replicas={}))
    with pytest.raises(IncarnationOver, match="is pod another by order, and launcher"):
        world.poll(other, None)


def test_of_launchers_that_waited_for_one_pod_the_ordered_one_carries_it(
    world: World, client: LauncherClient, other: LauncherClient
) -> None:
    """The first has died while it waited, and its open poll may still be answered."""
    world.raise_epoch(1)
    order_actor(world, 1, "gone")
    first, second = (world.hello(Role.ACTOR).model_copy(update={"pod_uid": uid}) for uid in ("first", "second"))
    other.register(first)
    other.begin_poll(LauncherPoll(carried=None, ranks=[], wait_seconds=20))
    client.register(second)
    order_actor(world, 1, "second")
    answer = world.poll(client, None, 20)
    assert answer.order is not None
    assert carries(world) == [second.launcher]
    assert collected(other) is None
    assert other.registration_lost


def test_a_rank_that_lived_shows_that_its_launcher_took_the_order(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.register(Role.ADVANTAGES))
    world.rank(Role.ADVANTAGES)
    client.register(world.hello(Role.ADVANTAGES))
    answer = world.poll(client, None)
    assert answer.order is None


def test_an_order_that_went_into_a_dead_launchers_open_poll_is_still_the_next_ones(
    world: World, client: LauncherClient
) -> None:
    world.begin()
    client.register(world.hello(Role.ADVANTAGES))
    first = world.poll(client, None)
    client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    world.order(1, {"advantages-0": 1})
    swallowed = collected(client)
    assert isinstance(swallowed, LauncherAnswer)
    assert swallowed.order is not None
    assert swallowed.order.generation == 1
    client.register(world.hello(Role.ADVANTAGES))
    assert world.poll(client, None) == swallowed


def test_a_launcher_that_is_not_known_any_more_registers_itself_again(world: World, client: LauncherClient) -> None:
    world.begin()
    hello = world.hello(Role.ACTOR)
    client.register(hello)
    world.kill()
    with world.servers.control.admin() as admin:
        admin.delete("dcs:pods", "dcs:taken")
    world.start()
    assert world.status().pods == []
    answer = world.poll(client, None)
    assert answer.order is not None
    assert answer.order.epoch == 1
    assert world.status().pods[0].launcher == hello.launcher
