"""Routes of logs that are kept beside the checkpoints. Translates; decides nothing.

Part of `app`, and behind its token. Files are written in a thread of their own: whatever the volume does, beats and
polls are answered.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from fastapi import FastAPI, Response

from rljob_api.names import Role
from rljob_api.wire.logs import LogTail
from rljob_workers.dcs.coordinator.answers import as_json
from rljob_workers.kept_logs import KeptLogs

_LOG = logging.getLogger("rljob.coordinator")


def add_log_routes(app: FastAPI, logs: KeptLogs) -> None:
    """`/v1/logs`."""
    one_write = asyncio.Lock()
    unkept: set[str] = set()

    @app.put("/v1/logs")
    async def keep(tail: LogTail) -> Response:
        async with one_write:
            try:
                await asyncio.to_thread(logs.keep, tail)
            except OSError as error:  # a full volume must not end the job: its checkpoints say so
                if tail.name not in unkept:
                    _LOG.warning("the log of %s is not kept: %s", tail.name, error)
                unkept.add(tail.name)
        return as_json(None)

    @app.get("/v1/logs")
    async def kept(role: Role | None = None, previous: bool = False) -> Response:
        return as_json(await asyncio.to_thread(partial(logs.read, role, previous=previous)))
