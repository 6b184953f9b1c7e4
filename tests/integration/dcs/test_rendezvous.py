"""Ranks of a gang find each other, and only those of one epoch and generation; who is missing is named."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace

import pytest

from rljob_api.names import Role
from rljob_api.wire.ranks import Rendezvous
from rljob_workers.dcs.errors import IncarnationOver
from rljob_workers.dcs.membership.coordinator_http import CoordinatorClient
from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.gangs.rendezvous import form_group
from rljob_workers.trainers.data_parallel import GroupBroken, GroupNotComplete
from tests.integration.dcs.world import PATIENCE_SECONDS, World, eventually, job

GROUP = "actor-data-parallel"


def asked(session: RankSession, wait: float = 0.0) -> str:
    incarnation = session.incarnation
    query = f"epoch={incarnation.epoch}&generation={incarnation.generation}&wait={wait}&incarnation={incarnation.id}"
    return f"/v1/rendezvous/{GROUP}?{query}"


def ask(world: World, session: RankSession) -> Rendezvous:
    return Rendezvous.model_validate_json(world.call("GET", asked(session)))


def wait_for_others(world: World, session: RankSession) -> Rendezvous:
    """Over a connection of its own: one is a thread's."""
    with contextlib.closing(CoordinatorClient(world.endpoints)) as client:
        path = asked(session, wait=2)
        return client.ask("GET", path, None, Rendezvous, deadline=time.monotonic() + PATIENCE_SECONDS)


def offer(world: World, session: RankSession) -> Rendezvous:
    incarnation = session.incarnation
    offered = Rendezvous(
        group=GROUP,
        epoch=incarnation.epoch,
        generation=incarnation.generation,
        address="127.0.0.1:99",
        incarnation=incarnation.id,
    )
    world.call("PUT", f"/v1/rendezvous/{GROUP}", offered)
    return offered


def test_no_one_joins_before_all_have_come_and_who_is_missing_is_named(world: World) -> None:
    world.begin()
    first = world.rank(Role.ACTOR, 0)
    offered = offer(world, first)
    alone = ask(world, first)
    assert (alone.address, alone.missing, alone.absent) == ("", ["actor-1.0"], ["actor-1"])
    second = world.rank(Role.ACTOR, 1)
    assert ask(world, first).absent == [], "its pod has begun, and it builds its model"
    assert ask(world, first).missing == ["actor-1.0"]
    assert ask(world, second) == offered.model_copy(update={"complete": True})
    assert ask(world, first).address == "127.0.0.1:99"


def test_one_that_waits_learns_of_the_last_at_once_and_all_stay_reported_over_a_restart(world: World) -> None:
    world.begin()
    first, second = world.rank(Role.ACTOR, 0), world.rank(Role.ACTOR, 1)
    offer(world, first)
    received: list[Rendezvous] = []
    waiting = threading.Thread(target=lambda: received.append(wait_for_others(world, first)))
    waiting.start()
    eventually(lambda: ask(world, second).address, "the first rank to have come")
    waiting.join(240)
    assert received[0].address == "127.0.0.1:99"
    world.restart()
    assert ask(world, second).complete, "the first one has gone on and does not ask again"


def test_a_rendezvous_is_found_by_those_of_the_same_epoch_and_generation(world: World) -> None:
    world.begin()
    first, second = world.rank(Role.ACTOR, 0), world.rank(Role.ACTOR, 1)
    offered = offer(world, first)
    ask(world, first)
    assert ask(world, second) == offered.model_copy(update={"complete": True})
    of_another = asked(second).replace("generation=0", "generation=1")
    assert Rendezvous.model_validate_json(world.call("GET", of_another)).address == ""
    world.raise_epoch(2)
    with pytest.raises(IncarnationOver):
        ask(world, first)


def test_what_a_incarnation_that_is_over_has_offered_counts_for_nothing(world: World) -> None:
    world.begin()
    first = world.rank(Role.ACTOR, 0)
    offer(world, first)
    world.order(1, {"actor-0": 1, "actor-1": 1})
    with pytest.raises(IncarnationOver):
        ask(world, first)
    with pytest.raises(IncarnationOver):
        offer(world, first)
    second = world.rank(Role.ACTOR, 1, generation=1)
    assert ask(world, second).missing == ["actor-0.0"]
    again = world.rank(Role.ACTOR, 0, generation=1)
    offer(world, again)
    assert ask(world, again).complete


def test_a_rank_that_does_not_come_is_named_after_the_limit(world: World) -> None:
    world.begin()
    first, _ = world.rank(Role.ACTOR, 0), world.rank(Role.ACTOR, 1)
    with pytest.raises(GroupNotComplete, match=r"actor-1\.0 did not come in 1 s \(restartPolicy\.rendezvousTimeout"):
        form_group(of_two(first.context, rendezvous_seconds=1), first)
    busy = next(pod for pod in world.status().pods if pod.pod.replica == 0).ranks[0].busy
    assert busy is not None
    assert busy.what == "the rendezvous: it waits for actor-1.0"


def test_one_that_is_lost_after_all_have_come_breaks_the_group(world: World) -> None:
    """Its peers leave as those do that lose it later: it is the one that is named."""
    world.begin()
    first, second = world.rank(Role.ACTOR, 0), world.rank(Role.ACTOR, 1)
    offer(world, first)  # where no one listens any more
    ask(world, first)
    with pytest.raises(GroupBroken, match=r"rank 1 of 2 waited .* at 127\.0\.0\.1:99"):
        form_group(replace(of_two(second.context, rendezvous_seconds=60), global_rank=1), second)


def of_two(context: RankContext, rendezvous_seconds: int) -> RankContext:
    spec = job().spec
    times = {"rendezvous_timeout_seconds": rendezvous_seconds, "collective_timeout_seconds": 4}
    policy = spec.restart_policy.model_copy(update=times)
    manifest = context.job.model_copy(update={"spec": spec.model_copy(update={"restart_policy": policy})})
    return replace(context, job=manifest, world_size=2)
