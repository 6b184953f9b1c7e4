"""One `/generate` while it runs: its end, its client's end, and a reply that tells meanwhile how it goes on.

Used by the HTTP edge. A request whose client has gone is aborted, also while generation is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from rljob_workers.engines.torch_engine.dialect import render_generate
from rljob_workers.engines.torch_engine.errors import EngineFault
from rljob_workers.engines.torch_engine.requests import Batch

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from rljob_workers.engines.torch_engine.dialect import GenerateRequest, TextCodec
    from rljob_workers.engines.torch_engine.model_loop import ModelLoop


class RunningRequest:
    """A batch in the model loop and the connection that waits for it.

    running = await RunningRequest.begin(request, parsed, loop)
    await running.end()
    running.result(codec)
    """

    def __init__(self, parsed: GenerateRequest, batch: Batch, loop: ModelLoop, done: asyncio.Future[None]) -> None:
        self._parsed = parsed
        self._batch = batch
        self._loop = loop
        self._done = done
        self._gone: asyncio.Future[None]

    @classmethod
    async def begin(cls, request: Request, parsed: GenerateRequest, loop: ModelLoop) -> RunningRequest:
        """Hands the groups to the model loop; an EngineFault if it takes them not."""
        events = asyncio.get_running_loop()
        done: asyncio.Future[None] = events.create_future()

        def wake() -> None:
            if not done.done():
                done.set_result(None)

        def on_done(_: Batch) -> None:
            with suppress(RuntimeError):  # the event loop is closed: the server is going down
                events.call_soon_threadsafe(wake)

        running = cls(parsed, Batch(parsed.groups, on_done), loop, done)
        await asyncio.wrap_future(loop.call(lambda engine: engine.generate(running._batch)))
        running._gone = asyncio.ensure_future(_disconnected(request))
        return running

    async def ends_within(self, seconds: float) -> bool:
        """Whether the batch, or its client, ended before so many seconds were over."""
        ended, _ = await asyncio.wait((self._done, self._gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(ended)

    async def end(self) -> None:
        """Waits for the batch; a client that closes its connection ends it."""
        try:
            await asyncio.wait((self._done, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not self._done.done():
                await self.abort()
        finally:
            self._gone.cancel()

    async def abort(self) -> None:
        """Ends the batch with the tokens that it has."""
        await asyncio.wrap_future(self._loop.call(lambda engine: engine.abort_batch(self._batch)))
        await self._done

    async def drawn(self) -> int:
        """Tokens of the batch until now."""
        return await asyncio.wrap_future(self._loop.call(lambda engine: engine.drawn(self._batch)))

    def result(self, codec: TextCodec) -> bytes:
        """The reply of a batch that has ended; raises the EngineFault that it ended with."""
        if self._batch.error is not None:
            raise self._batch.error
        return render_generate(self._parsed, self._batch, codec)


class ProgressReply(Response):
    """Lines of JSON: `{"progress": tokens}` again and again, at last the reply, or `{"error"}` in its place.

    The status was sent before the end was known, so that it says nothing of it.
    """

    def __init__(self, running: RunningRequest, codec: TextCodec, seconds: float, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers, media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._running = running
        self._codec = codec
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every response; the client's end is seen by the request itself."""
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not await self._running.ends_within(self._seconds):
            line = orjson.dumps({"progress": await self._running.drawn()}, option=orjson.OPT_APPEND_NEWLINE)
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await self._running.end()
        try:
            last = self._running.result(self._codec)
        except EngineFault as error:
            last = orjson.dumps({"error": {"message": str(error), "status": error.status}})
        await send({"type": "http.response.body", "body": last + b"\n", "more_body": False})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
