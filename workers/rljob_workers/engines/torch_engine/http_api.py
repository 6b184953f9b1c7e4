"""The HTTP edge: SGLang's paths, translated to commands of the model loop and back.

Every reply, errors too, carries the incarnation of this server's process. A request whose client has gone is aborted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rljob_workers.engines.torch_engine.control_bodies import AbortBody, PauseBody, ScoreBody, UpdateBody
from rljob_workers.engines.torch_engine.dialect import TextCodec, check_tokens, parse_body, parse_generate
from rljob_workers.engines.torch_engine.errors import BadRequest, EngineFault, NotServing
from rljob_workers.engines.torch_engine.names import INCARNATION_HEADER
from rljob_workers.engines.torch_engine.running_request import ProgressReply, RunningRequest

if TYPE_CHECKING:
    from rljob_workers.engines.torch_engine.commands import EngineCommands, EngineState
    from rljob_workers.engines.torch_engine.model_loop import ModelLoop

_Handler = Callable[[Request], Awaitable[Response]]

_DRAIN_LOOKS_SECONDS = 0.02
"""How soon a pause is answered after its last sample has ended."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What the edge knows of the model."""

    name: str
    """Path, or a word for a model made from a config."""
    vocab_size: int
    max_positions: int
    """Longest prompt + output, in tokens."""
    dtype: str
    codec: TextCodec
    eos_token_ids: frozenset[int]


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
        parsed = parse_generate(
            await request.body(),
            codec=self._model.codec,
            eos_token_ids=self._model.eos_token_ids,
            vocab_size=self._model.vocab_size,
        )
        running = await RunningRequest.begin(request, parsed, self._loop)
        seconds = parsed.body.progress_seconds
        if seconds is None or await running.ends_within(seconds):
            await running.end()
            return self._reply(running.result(self._model.codec))
        return ProgressReply(running, self._model.codec, seconds, {INCARNATION_HEADER: self._incarnation})

    async def abort_request(self, request: Request) -> Response:
        """Ends one request by its rid, or all."""
        body = parse_body(AbortBody, await request.body())
        if body.abort_all == (body.rid is not None):
            raise BadRequest("rid, abort_all: give exactly one of them.")
        rids = [] if body.rid is None else [body.rid]
        num_aborted = await self._command(lambda engine: engine.abort_all() if body.abort_all else engine.abort(rids))
        return self._json({"success": True, "message": f"{num_aborted} prompt groups were aborted."})

    async def pause_generation(self, request: Request) -> Response:
        """Stops between two steps; with Drain, when nothing runs any more."""
        body = parse_body(PauseBody, await request.body())
        await self._command(lambda engine: engine.pause(body.mode))
        while not await self._command(lambda engine: engine.is_drained()):
            await asyncio.sleep(_DRAIN_LOOKS_SECONDS)
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
        body = parse_body(ScoreBody, await request.body())
        check_tokens(body.input_ids, self._model.vocab_size, "input_ids")
        log_probs = await self._command(lambda engine: engine.score(body.input_ids))
        return self._json({"log_probs": log_probs})

    async def update_weights_from_disk(self, request: Request) -> Response:
        """Loads a safetensors file or a folder of them."""
        body = parse_body(UpdateBody, await request.body())
        weight = body.weight()
        if body.abort_all_requests:
            await self._command(lambda engine: engine.abort_all())
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
        state = await self._state()
        if state.held is None:
            raise NotServing("No weights are loaded yet: call /update_weights_from_disk first.")
        return self._json({"status": "ok"})

    async def model_info(self, request: Request) -> Response:
        """What is served, under which weight, by which life of the server."""
        del request
        state = await self._state()
        held = state.held
        return self._json(
            {
                "model_path": self._model.name,
                "is_generation": True,
                "weight_version": None if held is None else str(held.version),
                "lineage": None if held is None else held.lineage,
                "incarnation": self._incarnation,
                "extensions": ["compact", "progress_seconds", "weight_versions", "lineage", "drain", "score_tokens"],
            }
        )

    async def weight_version(self, request: Request) -> Response:
        """The version that is held."""
        del request
        held = (await self._state()).held
        return self._json({"weight_version": None if held is None else str(held.version)})

    async def server_info(self, request: Request) -> Response:
        """Bounds of this server."""
        del request
        state = await self._state()
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
        state = await self._state()
        return self._json([{"dp_rank": 0, "num_reqs": state.num_running, "num_waiting_reqs": state.num_waiting}])

    async def _state(self) -> EngineState:
        return await asyncio.wrap_future(self._loop.call(lambda engine: engine.state()))

    async def _command(self, command: Callable[[EngineCommands[Any]], Any]) -> Any:  # noqa: ANN401 (as the command)
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
