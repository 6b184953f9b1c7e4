"""The client of one SGLang server: `Engine` over its own HTTP, one streamed request per sample.

A sample is aborted by closing its connection: SGLang loses an abort by name of a request that waits while it is paused,
and takes a name for the beginning of others. A reply counts only if one life of the server made it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from rljob_api.spec import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.all_or_none import all_or_none
from rljob_workers.engines.base import Engine, EngineCapabilities, Generation, Sample, SamplingParams
from rljob_workers.engines.errors import EngineGone, EngineRefused
from rljob_workers.engines.sampling_words import sampling_words
from rljob_workers.engines.sglang.connection import Connection
from rljob_workers.engines.sglang.gate import Gate, Recalled
from rljob_workers.engines.sglang.life import LifeFile
from rljob_workers.engines.sglang.pace import Pace
from rljob_workers.engines.sglang.sample_stream import SampleBuilder
from rljob_workers.engines.sglang.server_facts import ServerFacts, ask_facts
from rljob_workers.engines.sglang.weight_labels import label_of, weight_of
from rljob_workers.engines.sglang.weight_update import drain, replace_weights, require_fit

_CONTROL_SECONDS = 60.0
"""For calls that the base gives no deadline."""
_IDLE_SECONDS = 30
"""For aborted samples to leave the server: it notices a closed connection that streams at once, others after 4 s."""


class SglangEngine(Engine):
    """Client of one server.

    engine = SglangEngine("http://127.0.0.1:30000", identity_file)
    await engine.update_weights(folder, weight, Interruption.RETRACT, deadline=...)
    await engine.generate(prompts, params, progress=...)
    """

    capabilities = EngineCapabilities(scores=True)
    prompts_per_request = 1

    def __init__(self, url: str, identity_file: Path | None) -> None:
        """Nothing is sent yet. `identity_file`: see `life`; None for a server that no launcher of ours started."""
        self._connection = Connection(url)
        self._life = LifeFile(identity_file, self._connection.url)
        self._gate = Gate()
        self._pace = Pace()
        self._known: tuple[str | None, ServerFacts] | None = None
        self._label = ""
        """Of the last update; prefixes that other weights cached are not read by samples that begin under it."""

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, progress: Callable[[int], None]
    ) -> list[Generation]:
        """See `Engine.generate`."""
        async with self._one_life(_soon()) as (facts, _):
            for prompt, one in zip(prompts, params, strict=True):
                _require_known_tokens(prompt, facts)
                _require_room(prompt, one, facts)
            samples = iter(
                await all_or_none(
                    self._sample(prompt, one, one.seed + index, facts, progress)
                    for prompt, one in zip(prompts, params, strict=True)
                    for index in range(one.num_samples)
                )
            )
        return [Generation(tuple(islice(samples, one.num_samples))) for one in params]

    async def update_weights(
        self, folder: Path, weight: WeightId, interruption: Interruption, *, deadline: float
    ) -> None:
        """See `Engine.update_weights`."""
        async with self._one_life(deadline) as (facts, require_same_life):
            await require_fit(folder, facts.shapes)
            async with self._gate.closed():
                if interruption is Interruption.DRAIN:
                    await drain(self._gate, deadline=deadline)
                elif interruption is Interruption.IN_PLACE:
                    self._gate.recall()  # they would read prefixes under the label of the weights that cached them
                self._label = label_of(weight)
                await replace_weights(
                    self._connection, folder, self._label, interruption, require_same_life, deadline=deadline
                )

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """See `Engine.score`. Nothing of the prefix cache is read."""
        async with self._one_life(deadline) as (facts, _), self._gate.passed():
            _require_known_tokens(tokens, facts)
            body = {
                "input_ids": list(tokens),
                "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
                "return_logprob": True,
                "logprob_start_len": 0,
            }
            reply = await self._connection.post("/generate", body, deadline=deadline)
        found = reply["meta_info"]["input_token_logprobs"]
        if len(found) != len(tokens):
            raise EngineRefused(f"The engine scored {len(found)} of {len(tokens)} tokens. Use SGLang 0.5.23.")
        return [float(value) for value, *_ in found[1:]]

    async def held(self) -> WeightId | None:
        """See `Engine.held`. Always asks the server: only so is one noticed that came back empty."""
        return weight_of((await self._connection.get("/model_info", deadline=_soon()))["weight_version"])

    async def max_tokens(self) -> int:
        """See `Engine.max_tokens`."""
        return (await self._facts(_soon())).max_tokens

    async def capacity(self) -> int:
        """See `Engine.capacity`."""
        return (await self._facts(_soon())).capacity

    async def abort_all(self) -> None:
        """See `Engine.abort_all`. The pause ends before the flush: what was frozen leaves only then."""
        await self._connection.post("/abort_request", {"abort_all": True}, deadline=_soon())
        await self._connection.post("/continue_generation", {}, deadline=_soon())
        await self._connection.post(f"/flush_cache?timeout={_IDLE_SECONDS}", {}, deadline=_soon())

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._connection.close()

    async def _sample(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        facts: ServerFacts,
        progress: Callable[[int], None],
    ) -> Sample:
        while True:
            with suppress(Recalled):
                async with self._gate.passed():
                    return await self._draw(prompt, params, seed, facts, progress)

    async def _draw(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        seed: int,
        facts: ServerFacts,
        progress: Callable[[int], None],
    ) -> Sample:
        building = SampleBuilder(incremental=facts.incremental)
        began = time.monotonic()
        total = 0
        body = {
            "input_ids": list(prompt),
            "sampling_params": sampling_body(params, seed if facts.seeds else None, self._pace.interval),
            "return_logprob": True,
            "stream": True,
            "extra_key": self._label,
        }
        async with aclosing(self._connection.stream("/generate", body)) as events:
            async with self._gate.unbegun():
                event = await anext(events, None)
            while event is not None:
                grown = building.add(event)
                total += grown
                progress(grown)
                event = await anext(events, None)
        self._pace.learn(total, time.monotonic() - began)
        return building.sample()

    @asynccontextmanager
    async def _one_life(self, deadline: float) -> AsyncIterator[tuple[ServerFacts, Callable[[], None]]]:
        """Everything within is of one life of the server, or EngineGone; with what looks for that in between, too."""
        asked = self._life.read()
        require_same_life = functools.partial(self._life.require, asked)
        facts = await self._facts_of(asked, deadline)
        try:
            yield facts, require_same_life
        except EngineGone:
            self._known = None
            raise
        require_same_life()

    async def _facts(self, deadline: float) -> ServerFacts:
        return await self._facts_of(self._life.read(), deadline)

    async def _facts_of(self, life: str | None, deadline: float) -> ServerFacts:
        if self._known is None or self._known[0] != life:
            facts = await ask_facts(self._connection, deadline=deadline)
            self._life.require(life)
            self._known = (life, facts)
        return self._known[1]


def sampling_body(params: SamplingParams, seed: int | None, interval: int) -> dict[str, Any]:
    """Of a request for one sample; `seed` None: the server heeds none, or would refuse it."""
    body = {"n": 1, "stream_interval": interval, **sampling_words(params)}
    return body if seed is None else {**body, "sampling_seed": seed}


def _require_known_tokens(tokens: Sequence[int], facts: ServerFacts) -> None:
    """The server would die of one that its model does not have."""
    unknown = [token for token in tokens if not 0 <= token < facts.vocab_size]
    if unknown:
        raise EngineRefused(
            f"A prompt has token {unknown[0]}, but the engine's model knows {facts.vocab_size}. Nothing was sent to it."
        )


def _require_room(prompt: Sequence[int], params: SamplingParams, facts: ServerFacts) -> None:
    """The server would cut the output short and call it as long as it may be."""
    longest = len(prompt) + params.max_new_tokens
    if longest > facts.max_tokens:
        raise EngineRefused(
            f"A prompt of {len(prompt)} tokens with {params.max_new_tokens} new ones makes {longest}: the engine has "
            f"room for {facts.max_tokens}."
        )


def _soon() -> float:
    return time.monotonic() + _CONTROL_SECONDS
