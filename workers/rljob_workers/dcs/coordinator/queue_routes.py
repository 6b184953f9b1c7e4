"""Routes for people who look after the queue of a running job. Translates; decides nothing.

Part of `app`, and behind its token.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Query, Response

from rljob_api.wire.queue import MAX_PEEK_ROWS, MAX_PEEK_VALUES, DrainRequest, QueueCheck, RowState
from rljob_workers.dcs.coordinator.answers import as_json
from rljob_workers.dcs.coordinator.queue_room import PeekRequest
from rljob_workers.dcs.coordinator.serial_executor import SerialExecutor


def add_queue_routes(app: FastAPI, executor: SerialExecutor) -> None:
    """`/v1/queue` and what is below it."""
    room = executor.coordinator.queue

    @app.get("/v1/queue")
    async def stats() -> Response:
        return as_json(await executor.do_when_open(room.stats))

    @app.get("/v1/queue/rows")
    async def rows(
        partition: Annotated[int | None, Query(ge=0)] = None,
        task: str | None = None,
        state: RowState | None = None,
        field: str | None = None,
        first: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_PEEK_ROWS)] = 10,
        values: Annotated[int, Query(ge=0, le=MAX_PEEK_VALUES)] = 8,
    ) -> Response:
        request = PeekRequest(partition, task, state, field, first, limit, values)
        return as_json(await executor.do_when_open(partial(room.peek, request)))

    one_check = asyncio.Lock()

    @app.get("/v1/queue/check")
    async def check() -> Response:
        # Step by step, one check at a time: beats and polls are served in between.
        async with one_check:
            number, steps = await executor.do_when_open(room.check_steps)
            broken = [line for step in steps for line in await executor.do_when_open(step)]
        return as_json(QueueCheck(partitions=number, broken=list(dict.fromkeys(broken))))

    @app.put("/v1/queue/drain")
    async def drain(request: DrainRequest) -> Response:
        return as_json(await executor.do_when_open(partial(room.drain, request)))

    @app.get("/v1/queue/drain")
    async def drain_state() -> Response:
        return as_json(await executor.do_when_open(room.drain_state))
