"""The engine's HTTP server: its entry, SGLang's paths, a `/generate` while it runs, and the thread that computes.

`serve` is called by the launcher in a forked child and returns at SIGTERM. Handlers run commands in the model loop's
thread, between two steps; every reply, errors too, carries the incarnation of this process. A request whose client has
gone is aborted, also while generation is paused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rljob_workers.bounded_http import BoundedServer
from rljob_workers.devices import own_device
from rljob_workers.engines.torch_engine import INCARNATION_HEADER
from rljob_workers.engines.torch_engine.continuous_batching import ContinuousBatching
from rljob_workers.engines.torch_engine.decoder import geometry_of
from rljob_workers.engines.torch_engine.dialect import (
    AbortBody,
    PauseBody,
    ServedModel,
    parse_body,
    parse_generate,
    parse_score,
    parse_update,
    render_generate,
    render_progress,
)
from rljob_workers.engines.torch_engine.requests import (
    BadRequest,
    Batch,
    EngineFault,
    Growth,
    NotServing,
    Sent,
    StepFailed,
)
from rljob_workers.engines.torch_engine.scheduler import Limits, Scheduler
from rljob_workers.models.building import build_config, torch_dtype
from rljob_workers.models.ends import ends_of_model
from rljob_workers.models.tokenizers import build_tokenizer

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from transformers import PreTrainedTokenizerBase

    from rljob_api.spec.model import Dtype, ModelSpec
    from rljob_workers.engines.torch_engine.dialect import GenerateRequest


_log = logging.getLogger(__name__)


_Answer = TypeVar("_Answer")


_Command = tuple[Callable[[ContinuousBatching[Any]], object], Future[object]]


class ModelLoop:
    """The one thread that owns the scheduler: it steps it, and runs commands between two steps. Nothing is locked.

    loop = ModelLoop(scheduler)
    loop.start()
    loop.call(lambda engine: engine.pause(mode)).result()
    loop.stop()
    """

    def __init__(self, scheduler: ContinuousBatching[Any]) -> None:
        """`scheduler` belongs to the loop's thread from `start` on."""
        self._scheduler = scheduler
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model-loop", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the current step; requests that still run are left to their closed connections."""
        self._inbox.put(None)
        self._thread.join()

    def call(self, command: Callable[[ContinuousBatching[Any]], _Answer]) -> Future[_Answer]:
        """Runs `command` between two steps; what it raises is in the future."""
        future: Future[_Answer] = Future()
        self._inbox.put((command, future))  # type: ignore[arg-type]  # the pair belongs together, whatever the answer
        return future

    def _run(self) -> None:
        with torch.inference_mode():
            while self._serve_inbox():
                self._step()

    def _serve_inbox(self) -> bool:
        """Runs all commands that wait, and blocks for one where there is nothing to compute. False: stop."""
        while not self._scheduler.has_work or not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                return False
            command, future = message
            try:
                future.set_result(command(self._scheduler))
            except Exception as error:
                future.set_exception(error)
        return True

    def _step(self) -> None:
        try:
            self._scheduler.step()
        except Exception:  # the edge of a loop that must live: a fault of ours costs the requests, not the server
            _log.exception("A step failed in a way that the scheduler does not know")
            self._scheduler.fail_all(StepFailed("The engine failed inside; its log has the details."))


class RunningRequest:
    """A batch in the model loop and the connection that waits for it.

    running = await RunningRequest.begin(request, parsed, loop)
    await running.end()
    running.result(tokenizer)
    """

    def __init__(self, request: Request, parsed: GenerateRequest, batch: Batch, loop: ModelLoop) -> None:
        self._parsed = parsed
        self._batch = batch
        self._loop = loop
        self._sent = Sent(batch.num_rows)
        """In lines."""
        self._done = asyncio.wrap_future(batch.done)
        self._gone = asyncio.ensure_future(_disconnected(request))

    @classmethod
    async def begin(cls, request: Request, parsed: GenerateRequest, loop: ModelLoop) -> RunningRequest:
        """Hands the groups to the model loop; an EngineFault if it takes them not."""
        batch = Batch(parsed.groups)
        await asyncio.wrap_future(loop.call(lambda engine: engine.submit(batch)))
        return cls(request, parsed, batch, loop)

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
            self._done.cancel()  # of a server that goes down: the batch may end when the event loop is closed

    async def abort(self) -> None:
        """Ends the batch with the tokens that it has."""
        own = {id(group) for group in self._batch.groups}  # whatever its rids
        await asyncio.wrap_future(self._loop.call(lambda engine: engine.abort(lambda group: id(group) in own)))
        await self._done

    async def progress(self) -> bytes:
        """A line of what was drawn until now, with what no line had before where the reply is compact."""
        drawn, growth = await asyncio.wrap_future(self._loop.call(self._look))
        if growth is not None:
            self._sent.add(growth)
        return render_progress(drawn, growth)

    def _look(self, engine: ContinuousBatching[Any]) -> tuple[int, Growth | None]:
        body, drawn = self._parsed.body, engine.drawn(self._batch)
        if not body.compact:
            return drawn, None
        if body.progress_tokens:
            return drawn, engine.growth(self._batch, self._sent)
        return drawn, self._batch.growth(self._sent)

    def result(self, tokenizer: PreTrainedTokenizerBase) -> bytes:
        """The reply of a batch that has ended; raises the EngineFault that it ended with."""
        if self._batch.error is not None:
            raise self._batch.error
        return render_generate(self._parsed, self._batch, self._sent, tokenizer)


class ProgressReply(Response):
    """Lines of JSON: `{"progress": tokens, "grown": samples}` again and again, at last the reply, or `{"error"}`.

    The status is sent before the batch ends, so that an error comes in the last line.
    """

    def __init__(
        self,
        running: RunningRequest,
        tokenizer: PreTrainedTokenizerBase,
        seconds: float,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers=headers, media_type="application/x-ndjson")
        del self.headers["content-length"]
        self._running = running
        self._tokenizer = tokenizer
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every response; the client's end is seen by the request itself."""
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while not await self._running.ends_within(self._seconds):
            line = await self._running.progress()
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await self._running.end()
        try:
            last = self._running.result(self._tokenizer)
        except EngineFault as error:
            last = orjson.dumps({"error": {"message": str(error), "status": error.status}})
        await send({"type": "http.response.body", "body": last + b"\n", "more_body": False})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


_Handler = Callable[[Request], Awaitable[Response]]


_DRAIN_POLL_SECONDS = 0.02
"""How soon a pause is answered after its last sample has ended."""


class HttpApi:
    """Handlers of all paths."""

    def __init__(self, loop: ModelLoop, model: ServedModel, incarnation: str) -> None:
        """The loop must be running before the first request."""
        self._loop = loop
        self._model = model
        self._incarnation = incarnation

    def app(self) -> Starlette:
        """The ASGI application."""
        get, post, both = ["GET"], ["POST"], ["GET", "POST"]
        routes: list[tuple[str, _Handler, list[str]]] = [
            ("/generate", self.generate, ["POST", "PUT"]),
            ("/abort_request", self.abort_request, post),
            ("/pause_generation", self.pause_generation, post),
            ("/continue_generation", self.continue_generation, post),
            ("/flush_cache", self.flush_cache, both),
            ("/score_tokens", self.score_tokens, post),
            ("/update_weights_from_disk", self.update_weights_from_disk, post),
            ("/update_weights_from_tensor", self.update_weights_from_tensor, post),
            ("/health", self.health, get),
            ("/health_generate", self.health_generate, get),
            ("/get_model_info", self.model_info, get),
            ("/model_info", self.model_info, get),
            ("/get_weight_version", self.weight_version, get),
            ("/get_server_info", self.server_info, get),
            ("/server_info", self.server_info, get),
            ("/get_load", self.load, get),
        ]
        return Starlette(
            routes=[Route(path, self._guarded(handler), methods=methods) for path, handler, methods in routes]
        )

    async def generate(self, request: Request) -> Response:
        """Runs prompts to their ends."""
        parsed = parse_generate(await request.body(), self._model)
        running = await RunningRequest.begin(request, parsed, self._loop)
        seconds = parsed.body.progress_seconds
        if seconds is None or await running.ends_within(seconds):
            await running.end()
            return self._reply(running.result(self._model.tokenizer))
        return ProgressReply(running, self._model.tokenizer, seconds, {INCARNATION_HEADER: self._incarnation})

    async def abort_request(self, request: Request) -> Response:
        """Ends one request by its rid, or all."""
        body = parse_body(AbortBody, await request.body())
        if body.abort_all == (body.rid is not None):
            raise BadRequest("rid, abort_all: give exactly one of them.")
        # An unknown rid is no error: it may have ended.
        num_aborted = await self._command(
            lambda engine: engine.abort(lambda group: body.abort_all or group.rid == body.rid)
        )
        return self._json({"success": True, "message": f"{num_aborted} prompt groups were aborted."})

    async def pause_generation(self, request: Request) -> Response:
        """Stops between two steps; with Drain, when nothing runs any more."""
        body = parse_body(PauseBody, await request.body())
        await self._command(lambda engine: engine.pause(body.mode))
        while not await self._command(lambda engine: engine.is_drained()):
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        return self._json({"status": "ok", "message": f"Generation is paused ({body.mode.value})."})

    async def continue_generation(self, request: Request) -> Response:
        """Goes on after a pause."""
        await request.body()
        await self._command(lambda engine: engine.resume())
        return self._json({"status": "ok", "message": "Generation goes on."})

    async def flush_cache(self, request: Request) -> Response:
        """Drops the KV cache."""
        await request.body()
        await self._command(lambda engine: engine.flush_cache())
        return self._json({"success": True, "message": "The cache is empty."})

    async def score_tokens(self, request: Request) -> Response:
        """Log-probs of given tokens."""
        tokens = parse_score(await request.body(), self._model)
        log_probs = await self._command(lambda engine: engine.score(tokens))
        return self._json({"log_probs": log_probs})

    async def update_weights_from_disk(self, request: Request) -> Response:
        """Loads a safetensors file or a folder of them."""
        body, weight = parse_update(await request.body())
        if body.abort_all_requests:
            await self._command(lambda engine: engine.abort(lambda _: True))
        await self._command(lambda engine: engine.update_from_disk(body.model_path, weight))
        return self._json({"success": True, "message": f"The engine holds {weight}.", "num_paused_requests": 0})

    async def update_weights_from_tensor(self, request: Request) -> Response:
        """Refused: SGLang sends pickled tensors here."""
        await request.body()
        raise BadRequest(
            "/update_weights_from_tensor would need pickle, which no wire of RLJob carries. "
            "Write a safetensors file and call /update_weights_from_disk."
        )

    async def health(self, request: Request) -> Response:
        """The process answers; weights or not."""
        del request
        return self._json({"status": "ok"})

    async def health_generate(self, request: Request) -> Response:
        """The model loop answers and holds weights."""
        del request
        if (await self._command(lambda engine: engine.held)) is None:
            raise NotServing("No weights are loaded yet: call /update_weights_from_disk first.")
        return self._json({"status": "ok"})

    async def model_info(self, request: Request) -> Response:
        """What is served, under which weight, by which incarnation of the server."""
        del request
        held = await self._command(lambda engine: engine.held)
        return self._json(
            {
                "model_path": self._model.name,
                "is_generation": True,
                "weight_version": None if held is None else str(held.version),
                "lineage": None if held is None else held.lineage,
                "incarnation": self._incarnation,
                "extensions": [
                    "compact",
                    "progress_seconds",
                    "progress_tokens",
                    "weight_versions",
                    "lineage",
                    "drain",
                    "score_tokens",
                ],
            }
        )

    async def weight_version(self, request: Request) -> Response:
        """The version that is held."""
        del request
        held = await self._command(lambda engine: engine.held)
        return self._json({"weight_version": None if held is None else str(held.version)})

    async def server_info(self, request: Request) -> Response:
        """Bounds of this server."""
        del request
        state = await self._command(lambda engine: engine.state())
        return self._json(
            {
                "model_path": self._model.name,
                "context_length": self._model.max_positions,
                "dtype": self._model.dtype,
                "is_paused": state.is_paused,
                "max_running_requests": state.capacity,
                "num_running_reqs": state.num_running,
                "num_waiting_reqs": state.num_waiting,
                "incarnation": self._incarnation,
            }
        )

    async def load(self, request: Request) -> Response:
        """How much runs and waits."""
        del request
        state = await self._command(lambda engine: engine.state())
        return self._json([{"dp_rank": 0, "num_reqs": state.num_running, "num_waiting_reqs": state.num_waiting}])

    async def _command(self, command: Callable[[ContinuousBatching[Any]], _Answer]) -> _Answer:
        return await asyncio.wrap_future(self._loop.call(command))

    def _guarded(self, handler: _Handler) -> _Handler:
        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except EngineFault as error:
                body = {"success": False, "error": {"message": str(error), "type": type(error).__name__}}
                return self._json(body | {"message": str(error)}, status=error.status)

        return guarded

    def _json(self, body: object, *, status: int = 200) -> Response:
        return self._reply(orjson.dumps(body), status=status)

    def _reply(self, body: bytes, *, status: int = 200) -> Response:
        headers = {INCARNATION_HEADER: self._incarnation}
        return Response(body, status_code=status, media_type="application/json", headers=headers)


_KEEP_ALIVE_SECONDS = 24 * 3600
"""Clients keep their connection between rollouts; one that the server closed first would look like a dead server."""


_GRACE_SECONDS = 1
"""After SIGTERM requests are not waited for: their tickets come back."""


def serve(
    listener: socket.socket,
    model: ModelSpec,
    head_dtype: Dtype,
    incarnation: str,
    *,
    threads: int = 1,
    limits: Limits | None = None,
) -> None:
    """Serves on the listening socket until SIGTERM. ValueError where the model is none that the engine computes."""
    torch.set_num_threads(threads)
    tokenizer = build_tokenizer(model)
    config = build_config(model, tokenizer)
    device = own_device()
    geometry = geometry_of(config, torch_dtype(model.dtype), device, torch_dtype(head_dtype))
    served = ServedModel(
        name=model.path or "config",
        vocab_size=geometry.vocab_size,
        max_positions=geometry.max_positions,
        dtype=str(geometry.dtype).removeprefix("torch."),
        tokenizer=tokenizer,
        eos_token_ids=ends_of_model(model, tokenizer),
    )
    scheduler = Scheduler(geometry, limits or Limits.on(device))
    _log.info("engine %s computes on %s with %d threads", incarnation, device, threads)
    serve_scheduler(listener, scheduler, served, incarnation)


def serve_scheduler(
    listener: socket.socket, scheduler: ContinuousBatching[Any], served: ServedModel, incarnation: str
) -> None:
    """Runs the model loop and the HTTP edge on the listening socket until SIGTERM."""
    loop = ModelLoop(scheduler)
    loop.start()
    app = HttpApi(loop, served, incarnation).app()
    server = BoundedServer(
        app, log_config=None, timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=_GRACE_SECONDS
    )
    _log.info("engine %s serves on %s", incarnation, listener.getsockname())
    try:
        server.run(sockets=[_naming_its_protocol(listener)])
    finally:
        loop.stop()


def _naming_its_protocol(listener: socket.socket) -> socket.socket:
    """The same listening socket, as one from which asyncio turns off Nagle's delay on every connection.

    asyncio does so only where the socket's object says TCP, which an inherited one does not. Every reply would then
    wait 40 ms for an acknowledgement, since head and body are written one after the other.
    """
    if listener.family not in (socket.AF_INET, socket.AF_INET6):
        return listener
    return socket.socket(listener.family, listener.type, socket.IPPROTO_TCP, fileno=os.dup(listener.fileno()))
