"""The crowd's process: `python -m tests.bench.coordinator.load`, which the benchmark starts.

Reads its task as one line of JSON, says when the crowd is at work, then counts from one line of its standard input to
the next and says what it counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rljob_api.wire.observation import EventPage
from tests.bench.coordinator.crowd import Line, Member, Place, Tally, every, pods, repeat, request

STATUS_SECONDS = 1.0
"""How often the supervisor of one machine asks (`core.decide`)."""
AT_ONCE = 32
"""Pods that begin at once."""


def main() -> None:
    task = json.loads(sys.stdin.readline())
    asyncio.run(_run(Place(task["host"], task["port"], task["token"]), task))


async def _run(place: Place, task: dict[str, Any]) -> None:
    tally = Tally()
    members = [Member(place, tally, pod) for pod in pods(task["ranks"])]
    gate = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_through(gate, member.begin) for member in members))
    await members[0].publish(task["chunk_bytes"])
    await asyncio.gather(*(_through(gate, member.receive) for member in members))
    interval = task["beat_seconds"] or members[0].beat_interval
    running = [one for member in members for one in member.loops(interval)]
    running += [asyncio.create_task(one) for one in await _supervisor(place, tally)]
    _print({"beat_interval": interval})
    await _line_of_input()
    tally.clear()
    await _line_of_input()
    failed = [one for one in running if one.done()]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(running)} loops ended: {failed[0].exception()!r}")
    _print({"requests": tally.requests, "refused": tally.refused, "beats": sorted(tally.beat_seconds)})
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _supervisor(place: Place, tally: Tally) -> list[Coroutine[Any, Any, None]]:
    """It asks for the status, and for events after the last one."""
    events = Line(place, tally)
    page = EventPage.model_validate_json(await events.ask(request(place, "GET", "/v1/events")))
    last = page.events[-1].id
    while page.events:
        page = EventPage.model_validate_json(await events.ask(request(place, "GET", f"/v1/events?after={last}")))
        last = page.events[-1].id if page.events else last
    status = request(place, "GET", "/v1/status")
    following = repeat(events, request(place, "GET", f"/v1/events?after={last}&wait=10"))
    return [every(STATUS_SECONDS, Line(place, tally), lambda: status), following]


async def _through(gate: asyncio.Semaphore, begin: Callable[[], Awaitable[None]]) -> None:
    async with gate:
        await begin()


async def _line_of_input() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


def _print(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
