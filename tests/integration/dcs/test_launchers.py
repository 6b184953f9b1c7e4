"""Launchers: registration, orders by long poll, fencing, and the word that opens a restarted control Redis."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.epochs import DesiredState, PodOrder, PodPhase
from rljob_api.wire.identity import PodKey
from rljob_api.wire.launchers import LauncherAnswer, LauncherPoll
from rljob_api.wire.observation import EventKind
from rljob_workers.dcs.errors import CoordinatorUnreachable, LifeOver
from rljob_workers.dcs.launcher_client import LauncherClient, PendingOrder
from tests.integration.dcs.world import World, eventually


@pytest.fixture
def client(world: World) -> Iterator[LauncherClient]:
    client = world.launcher_client()
    yield client
    client.close()


def collected(pending: PendingOrder) -> object:
    """What a launcher's loop does: select with a time-out, ask, collect."""
    deadline = time.monotonic() + 30
    while not pending.ready():
        assert time.monotonic() < deadline
        select.select([pending.fileno()], [], [], 0.1)
    return pending.result()


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
    pending = client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    assert not pending.ready()
    world.raise_epoch(2)
    assert not pending.ready()
    world.order(2)
    answer = collected(pending)
    assert answer.order.epoch == 2  # type: ignore[attr-defined]


def test_a_poll_that_hears_nothing_new_repeats_the_order(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ACTOR))
    first = world.poll(client, None)
    assert world.poll(client, first.order, 0.05) == first


def test_a_poll_outlives_a_kill_of_the_coordinator(world: World, client: LauncherClient) -> None:
    world.begin()
    client.register(world.hello(Role.ACTOR))
    first = world.poll(client, None)
    pending = client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    world.restart()
    assert collected(pending) is None
    assert world.poll(client, first.order, 0.05) == first


def test_a_later_launcher_of_the_pod_fences_the_earlier_and_its_ranks(world: World, client: LauncherClient) -> None:
    world.begin()
    earlier = world.register(Role.ADVANTAGES)
    rank = world.rank(Role.ADVANTAGES)
    client.register(earlier)
    first = world.poll(client, None)
    pending = client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    later = world.register(Role.ADVANTAGES)
    with pytest.raises(LifeOver, match="was replaced by a later one"):
        collected(pending)
    with pytest.raises(LifeOver, match="was replaced by a later one"):
        client.register(earlier)
    with pytest.raises(LifeOver, match="is over"):
        rank.ready()
    assert world.status().pods[0].launcher == later.launcher
    assert len(world.told(EventKind.POD_CHANGED)) == 2


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


def test_a_new_pod_waits_for_its_orders_while_those_in_force_are_of_a_pod_that_is_gone(world: World) -> None:
    """As when a job is resumed: its launchers may be there before the supervisor has ordered anything."""
    gone, new = world.hello(Role.ACTOR), world.hello(Role.ACTOR).model_copy(update={"pod_uid": "new"})

    def order(epoch: int, uid: str) -> None:
        pods = [PodOrder(pod=gone.pod, epoch=Epoch(epoch), generation=0, phase=PodPhase.RUN, pod_uid=uid)]
        world.call("PUT", "/v1/desired", DesiredState(epoch=Epoch(epoch), pods=pods, replicas={}))

    world.raise_epoch(1)
    order(1, gone.pod_uid)
    impatient, client = LauncherClient(world.endpoints, patience_seconds=0.5), world.launcher_client()
    client.register(gone)
    with pytest.raises(LifeOver, match="is pod uid-actor-0 by order, and launcher"):
        impatient.register(new)
    world.restart()
    world.status()

    def must_wait() -> bool:
        with pytest.raises(CoordinatorUnreachable) as refused:
            impatient.register(new)
        return "of pod new must wait for other orders" in str(refused.value)

    eventually(must_wait, "the word that it must wait")  # which comes late: a slow coordinator's is given up before
    world.raise_epoch(2)
    order(2, "new")
    impatient.register(new)
    with pytest.raises(LifeOver, match="was replaced by a later one"):
        client.register(gone)
    impatient.close()
    client.close()


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
    open_poll = client.begin_poll(LauncherPoll(carried=first.order, ranks=[], wait_seconds=20))
    world.order(1, {"advantages-0": 1})
    swallowed = collected(open_poll)
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
