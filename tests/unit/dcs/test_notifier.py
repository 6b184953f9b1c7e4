"""Long polls are woken by what concerns them, and by what happened since they looked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rljob_workers.dcs.coordinator.context import Notifier, Topic

LONG = 600.0
FIRST, SECOND = "actor-0", "actor-1"


def run(context: Callable[[Notifier], Awaitable[None]]) -> None:
    async def in_loop() -> None:
        await context(Notifier(asyncio.get_running_loop()))

    asyncio.run(in_loop())


async def waiting(notifier: Notifier, topic: Topic, key: str = "") -> asyncio.Task[None]:
    task = asyncio.create_task(notifier.wait(topic, notifier.count(topic, key), LONG, key))
    await asyncio.sleep(0)
    return task


async def settle() -> None:
    """Callbacks that are due have run, and those that they made due."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_key_wakes_those_who_wait_under_it() -> None:
    async def steps(notifier: Notifier) -> None:
        first, again = (
            await waiting(notifier, Topic.ORDERS, FIRST),
            await waiting(notifier, Topic.ORDERS, FIRST),
        )
        other, events = await waiting(notifier, Topic.ORDERS, SECOND), await waiting(notifier, Topic.EVENTS)
        notifier.notify(Topic.ORDERS, [FIRST, "nobody"])
        await asyncio.gather(first, again)
        await settle()
        assert not other.done()
        assert not events.done()
        notifier.notify(Topic.ORDERS)
        await other
        assert not events.done()
        events.cancel()

    run(steps)


def test_what_was_notified_after_the_count_was_read_is_not_missed() -> None:
    async def steps(notifier: Notifier) -> None:
        count, others = notifier.count(Topic.ORDERS, FIRST), notifier.count(Topic.ORDERS, SECOND)
        notifier.notify(Topic.ORDERS, [FIRST])
        await settle()
        await notifier.wait(Topic.ORDERS, count, LONG, FIRST)
        assert notifier.count(Topic.ORDERS, SECOND) == others
        notifier.notify(Topic.ORDERS)
        await settle()
        await notifier.wait(Topic.ORDERS, others, LONG, SECOND)

    run(steps)


def test_a_wait_ends_after_its_time() -> None:
    async def steps(notifier: Notifier) -> None:
        await notifier.wait(Topic.WEIGHTS, notifier.count(Topic.WEIGHTS), 0.01)
        await notifier.wait(Topic.WEIGHTS, notifier.count(Topic.WEIGHTS), 0.0)

    run(steps)
