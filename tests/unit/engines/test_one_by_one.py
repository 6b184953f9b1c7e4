"""Requests of one sample each, merged to one: numbers of samples, and what the end of one does to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from rljob_workers.engines.base import (
    Drawn,
    Ended,
    EngineGone,
    Event,
    FinishReason,
    GivenUp,
    Grown,
    Sample,
    SamplingParams,
)
from rljob_workers.engines.one_by_one import merged, singles


def params(num_samples: int, seed: int) -> SamplingParams:
    return SamplingParams(1.0, 1.0, 0, 8, (), num_samples, seed)


def sample(token: int) -> Sample:
    return Sample([token], [-1.0], FinishReason.STOP, ())


class Requests:
    """Requests of one sample each, which wait until the test lets them go on."""

    def __init__(self, count: int) -> None:
        self.go = [asyncio.Event() for _ in range(count)]
        self.closed: list[int] = []

    async def of(self, number: int, event: Event | Exception) -> AsyncGenerator[Event]:
        try:
            yield Drawn(1)
            await self.go[number].wait()
            if isinstance(event, Exception):
                raise event
            yield event
        finally:
            self.closed.append(number)


async def read(events: AsyncGenerator[Event], found: list[Event]) -> None:
    async with aclosing(events):
        async for event in events:
            found.append(event)


def test_samples_are_numbered_in_the_order_of_prompts_and_have_their_own_seeds() -> None:
    found = [(prompt, one.num_samples, one.seed) for prompt, one in singles([[1], [2]], [params(2, 40), params(1, 7)])]
    assert found == [([1], 1, 40), ([1], 1, 41), ([2], 1, 7)]


def test_events_have_the_numbers_of_their_requests_and_come_as_they_are_made() -> None:
    async def run() -> list[Event]:
        requests, found = Requests(3), list[Event]()
        events: list[Event | Exception] = [Ended({0: sample(1)}), GivenUp({0: sample(2)}), Grown({0: sample(3)})]
        reading = asyncio.ensure_future(read(merged(map(requests.of, range(3), events)), found))
        for number in (2, 0, 1):
            requests.go[number].set()
            for _ in range(9):
                await asyncio.sleep(0)
        await reading
        return found

    *counts, first, second, third = asyncio.run(run())
    assert counts == [Drawn(1)] * 3
    assert [first, second, third] == [Grown({2: sample(3)}), Ended({0: sample(1)}), GivenUp({1: sample(2)})]


def test_the_first_failure_ends_the_others_behind_what_had_come() -> None:
    async def run() -> tuple[list[Event], list[int]]:
        requests, found = Requests(3), list[Event]()
        requests.go[1].set()
        events: list[Event | Exception] = [Ended({0: sample(0)}), EngineGone("it died"), Ended({0: sample(2)})]
        with pytest.raises(EngineGone, match="it died"):
            await read(merged(map(requests.of, range(3), events)), found)
        return found, requests.closed

    found, closed = asyncio.run(run())
    assert found == [Drawn(1)] * 3
    assert sorted(closed) == [0, 1, 2]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "closed"])
def test_a_reader_that_leaves_ends_all(is_cancelled: bool) -> None:
    async def run() -> list[int]:
        requests = Requests(2)
        events = merged(map(requests.of, range(2), [Ended({0: sample(0)})] * 2))
        await anext(events)
        if is_cancelled:
            reading = asyncio.ensure_future(read(events, []))
            for _ in range(9):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait({reading})
        else:
            await events.aclose()
        return requests.closed

    assert sorted(asyncio.run(run())) == [0, 1]
