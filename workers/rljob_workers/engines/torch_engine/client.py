"""The torch engine's client: `Engine` over its HTTP dialect.

One batched request per `generate`. A reply counts only if the same incarnation of the server made it that was asked.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from rljob_api.names import Lineage, WeightVersion
from rljob_api.spec import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Engine, EngineCapabilities, Generation, SamplingParams
from rljob_workers.engines.errors import EngineError, EngineGone, EngineRefused, EngineTimeout
from rljob_workers.engines.sampling_words import sampling_words
from rljob_workers.engines.torch_engine.replies import read_compact
from rljob_workers.engines.torch_engine.transport import Reply, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_PROGRESS_SECONDS = 0.5
"""How often a request that is not answered tells of its tokens."""

_CONTROL_SECONDS = 60.0
"""For calls that the base gives no deadline: an engine that only just starts answers them from its backlog."""


@dataclass(frozen=True, slots=True)
class _ServerInfo:
    """What a server says about itself."""

    incarnation: str | None
    held: WeightId | None


class TorchEngineClient(Engine):
    """Client of one server.

    engine = TorchEngineClient("http://127.0.0.1:30000")
    await engine.update_weights(folder, weight, Interruption.RETRACT, deadline=...)
    await engine.generate(prompts, params, progress=...)
    """

    capabilities = EngineCapabilities(scores=True)
    prompts_per_request: ClassVar[int | None] = None

    def __init__(self, url: str) -> None:
        """Nothing is sent yet: the server may still be starting."""
        self._transport = Transport(url)
        self._known: _ServerInfo | None = None
        """Of the server that was last asked; its `held` may be outdated. Forgotten when another incarnation answers."""

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, progress: Callable[[int], None]
    ) -> list[Generation]:
        """See `Engine.generate`."""
        asked = await self._info(time.monotonic() + _CONTROL_SECONDS)
        told = 0

        def on_line(line: bytes) -> None:
            nonlocal told
            drawn = orjson.loads(line)["progress"]
            if drawn > told:
                progress(drawn - told)
                told = drawn

        reply = await self._ask(asked, "POST", "/generate", _generate_body(prompts, params), on_line=on_line)
        if "error" in reply.body:
            raise EngineRefused(
                f"POST /generate of the engine at {self._transport.url} ended with {reply.body['error']['status']}: "
                f"{reply.body['error']['message']}"
            )
        generations = read_compact(reply.body, [one.num_samples for one in params])
        progress(sum(len(sample.output_ids) for one in generations for sample in one.samples) - told)
        return generations

    async def update_weights(
        self, folder: Path, weight: WeightId, interruption: Interruption, *, deadline: float
    ) -> None:
        """See `Engine.update_weights`. After an error the pause ends too: the server refuses by itself."""
        asked = await self._info(deadline)
        try:
            await self._control(asked, "/pause_generation", {"mode": _PAUSE_MODES[interruption]}, deadline)
            await self._control(asked, "/update_weights_from_disk", _update_body(folder, weight), deadline)
        except EngineGone:
            raise
        except BaseException:
            # With time of its own, also where the caller gave up: the server must not stay paused.
            with suppress(EngineError):  # the error that led here says more
                await asyncio.shield(
                    self._control(asked, "/continue_generation", {}, time.monotonic() + _CONTROL_SECONDS)
                )
            raise
        await self._control(asked, "/continue_generation", {}, deadline)

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """See `Engine.score`."""
        asked = await self._info(deadline)
        reply = await self._within(deadline, asked, "POST", "/score_tokens", {"input_ids": list(tokens)})
        return [float(value) for value in reply.body["log_probs"]]

    async def held(self) -> WeightId | None:
        """See `Engine.held`. Always asks the server: only so is a server noticed that came back empty."""
        return (await self._ask_info(time.monotonic() + _CONTROL_SECONDS)).held

    async def max_tokens(self) -> int:
        """See `Engine.max_tokens`."""
        return int((await self._server_info())["context_length"])

    async def capacity(self) -> int:
        """See `Engine.capacity`."""
        return int((await self._server_info())["max_running_requests"])

    async def abort_all(self) -> None:
        """See `Engine.abort_all`. Also ends a pause that a rank left behind when it died."""
        deadline = time.monotonic() + _CONTROL_SECONDS
        asked = await self._ask_info(deadline)
        # Paused first, so that nothing starts to run between the abort and the flush, which would be refused.
        await self._control(asked, "/pause_generation", {"mode": "abort"}, deadline)
        await self._control(asked, "/abort_request", {"abort_all": True}, deadline)
        await self._control(asked, "/flush_cache", {}, deadline)
        await self._control(asked, "/continue_generation", {}, deadline)

    async def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()

    async def _server_info(self) -> dict[str, Any]:
        deadline = time.monotonic() + _CONTROL_SECONDS
        reply = await self._within(deadline, await self._info(deadline), "GET", "/get_server_info", None)
        body: dict[str, Any] = reply.body
        return body

    async def _control(self, asked: _ServerInfo, path: str, body: object, deadline: float) -> None:
        await self._within(deadline, asked, "POST", path, body)

    async def _info(self, deadline: float) -> _ServerInfo:
        """What is known of the server; asks if nothing is."""
        return self._known or await self._ask_info(deadline)

    async def _ask_info(self, deadline: float) -> _ServerInfo:
        info = _read_info(await self._within(deadline, None, "GET", "/get_model_info", None))
        self._known = info
        return info

    async def _within(self, deadline: float, asked: _ServerInfo | None, method: str, path: str, body: object) -> Reply:
        """As `_ask`, until a deadline in monotonic seconds."""
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._ask(asked, method, path, body)
        except TimeoutError as error:
            raise EngineTimeout(
                f"{method} {path} of the engine at {self._transport.url} was not answered within the deadline."
            ) from error

    async def _ask(
        self,
        asked: _ServerInfo | None,
        method: str,
        path: str,
        body: object,
        *,
        on_line: Callable[[bytes], None] = lambda _: None,
    ) -> Reply:
        """One request to the server that `asked` describes (None: to whoever answers)."""
        try:
            reply = await self._transport.request(method, path, body, on_line=on_line)
        except EngineGone:
            self._known = None
            raise
        if asked is not None and reply.incarnation != asked.incarnation:
            self._known = None
            raise EngineGone(
                f"The engine at {self._transport.url} is another one: incarnation {reply.incarnation} answered, "
                f"{asked.incarnation} was asked. Its reply does not count."
            )
        if reply.refusal is not None:
            raise EngineRefused(reply.refusal)
        return reply


_PAUSE_MODES = {Interruption.RETRACT: "retract", Interruption.IN_PLACE: "in_place", Interruption.DRAIN: "drain"}
"""The dialect's words."""


def _read_info(reply: Reply) -> _ServerInfo:
    version, lineage = reply.body["weight_version"], reply.body["lineage"]
    held = None
    if version is not None:
        held = WeightId(lineage=Lineage(int(lineage)), version=WeightVersion(int(version)))
    return _ServerInfo(reply.incarnation, held)


def _update_body(folder: Path, weight: WeightId) -> dict[str, Any]:
    return {"model_path": str(folder), "weight_version": str(weight.version), "lineage": weight.lineage}


def _generate_body(prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> dict[str, Any]:
    return {
        "input_ids": [list(prompt) for prompt in prompts],
        "sampling_params": [_sampling_body(one) for one in params],
        "return_logprob": True,
        "compact": True,
        "progress_seconds": _PROGRESS_SECONDS,
    }


def _sampling_body(params: SamplingParams) -> dict[str, Any]:
    return {"n": params.num_samples, "sampling_seed": params.seed, **sampling_words(params)}
