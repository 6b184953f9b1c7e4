"""Requests of one sample each, merged to the events of one request.

For clients of servers that end a sample, or make room for another, only with its own reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from rljob_workers.engines.base import Drawn, Event, SamplingParams, all_or_none


def singles(
    prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Iterator[tuple[Sequence[int], SamplingParams]]:
    """Prompt and parameters of every sample, in the order of their numbers."""
    for prompt, given in zip(prompts, params, strict=True):
        for index in range(given.num_samples):
            yield prompt, replace(given, num_samples=1, seed=given.seed + index)


async def merged(requests: Iterable[AsyncGenerator[Event]]) -> AsyncGenerator[Event]:
    """Events of requests of one sample each, numbered by the place of its request. The first failure ends the others.

    Each request is read in a task of its own, which waits nowhere but in it: a request may be cancelled from within.
    """
    events: asyncio.Queue[Event | None] = asyncio.Queue()
    reading = asyncio.ensure_future(all_or_none(_read(*each, events) for each in enumerate(requests)))
    reading.add_done_callback(lambda _: events.put_nowait(None))
    try:
        while (event := await events.get()) is not None:
            yield event
        reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(number: int, request: AsyncGenerator[Event], events: asyncio.Queue[Event | None]) -> None:
    async with aclosing(request):
        async for event in request:
            events.put_nowait(event if isinstance(event, Drawn) else type(event)({number: event.samples[0]}))
