"""The supervisor's listener hears every event of a coordinator once, whatever statuses it is told of meanwhile."""

from __future__ import annotations

import asyncio
from typing import cast

from rljob_api.names import Role
from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, QueueObservation, ServerState
from rljob_operator.coordinator_link import CoordinatorLink
from rljob_operator.local.coordinator_transport import LocalTransport
from rljob_operator.local.journal import Journal
from rljob_operator.local.listener import Listener
from tests.integration.dcs.world import World, eventually


class Heard:
    """In the place of the journal."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def hear(self, event: CoordinatorEvent, queue: QueueObservation | None) -> None:
        self.ids.append(event.id)


async def follow(world: World) -> list[int]:
    heard = Heard()
    async with LocalTransport(world.endpoints) as transport:
        link = CoordinatorLink(transport)
        listener = Listener(link, cast(Journal, heard), wake=lambda: None)
        await listener.catch_up(0)

        # A status that was asked for before another event, and comes after it was heard.
        after, late = listener.after, await link.status()
        world.register(Role.ACTOR)
        await listener.catch_up(0)
        assert listener.after > late.last_event
        listener.seen(late, after)
        await listener.catch_up(0)

        # A coordinator that has not read yet what has happened.
        world.kill()
        world.servers.control.kill()
        world.start()
        status = cast(CoordinatorStatus, eventually(world.status, "a status"))
        assert (status.server, status.last_event) == (ServerState.OPENING, 0)
        listener.seen(status, listener.after)
        world.servers.control.start()
        eventually(lambda: world.status().server is ServerState.OPEN, "an open server")
        world.register(Role.ADVANTAGES)
        await listener.catch_up(10)
    return heard.ids


def test_every_event_is_heard_once(world: World) -> None:
    world.begin()
    ids = asyncio.run(follow(world))
    assert ids == [event.id for event in world.events()]
