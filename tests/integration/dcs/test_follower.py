"""A follower receives every event of a coordinator once, whatever statuses it receives meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from rljob_api.names import Role
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, ServerState
from rljob_operator.coordinator_client.follower import CoordinatorFollower, FollowerLimits
from rljob_operator.coordinator_client.link import CoordinatorLink, CoordinatorTransport
from rljob_operator.local.supervisor import FOLLOWER_LIMITS, LocalTransport, coordinator_client
from rljob_operator.local.watchdog import Watchdog
from tests.integration.dcs.world import World, eventually


class Follower(CoordinatorFollower):
    """Keeps the ids of what it receives."""

    def __init__(self, link: CoordinatorLink, limits: FollowerLimits) -> None:
        super().__init__(link, limits)
        self.ids: list[int] = []

    def receive(self, events: Sequence[CoordinatorEvent]) -> None:
        self.ids += [event.id for event in events]


class Answers(list[str]):
    """A watchdog that retains who has answered."""

    def answered(self, name: str) -> None:
        self.append(name)


class LateLink(CoordinatorLink):
    """Its statuses come when the test lets them."""

    def __init__(self, transport: CoordinatorTransport) -> None:
        super().__init__(transport)
        self.is_answered = asyncio.Event()
        self.may_come = asyncio.Event()

    async def status(self, timeout: float = 20.0) -> CoordinatorStatus:
        status = await super().status(timeout)
        self.is_answered.set()
        await self.may_come.wait()
        return status


async def follow(world: World) -> list[int]:
    async with coordinator_client(world.endpoints) as http:
        link = LateLink(LocalTransport(http, cast(Watchdog, Answers())))
        follower = Follower(link, replace(FOLLOWER_LIMITS, patience_seconds=100.0, first_patience_seconds=0.0))
        follower.listen_after(0)
        assert await follower.status() is None

        # A status that was asked for before another event, and comes after it was received.
        await link.is_answered.wait()
        world.register(Role.ACTOR)
        newest = world.events()[-1].id
        while newest not in follower.ids:
            await asyncio.sleep(0.01)
        link.may_come.set()
        while (late := await follower.status()) is None:
            await asyncio.sleep(0.01)
        assert late.last_event < newest

        # A coordinator that has not read yet what has happened.
        world.kill()
        world.servers.control.kill()
        world.start()
        while (opening := await follower.status()) is None:
            await asyncio.sleep(0.01)
        assert (opening.server, opening.last_event) == (ServerState.OPENING, 0)
        world.servers.control.start()
        await asyncio.to_thread(eventually, lambda: world.status().server is ServerState.OPEN, "an open server")
        await asyncio.to_thread(world.register, Role.ADVANTAGES)
        newest = (await asyncio.to_thread(world.events))[-1].id
        while newest not in follower.ids:
            await asyncio.sleep(0.01)
        await follower.close()
    return follower.ids


def test_every_event_is_received_once(world: World) -> None:
    world.begin()
    ids = asyncio.run(follow(world))
    assert ids == [event.id for event in world.events()]
