"""The client of one SGLang server: `Engine` over its own HTTP, one streamed request per sample.

A sample is aborted by closing its connection: SGLang loses an abort by name of a request that waits while it is paused,
and takes a name for the beginning of others. A reply counts only if one incarnation of the server made it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import (
    NOT_BEGUN,
    Drawn,
    Ended,
    Engine,
    EngineGone,
    EngineRefused,
    Event,
    FinishReason,
    GivenUp,
    Grown,
    Sample,
    SamplingParams,
    Shown,
    VersionSpan,
    continued,
    continued_seed,
    sampling_fields,
)
from rljob_workers.engines.one_by_one import merged, singles
from rljob_workers.engines.sglang.connection import Connection, IncarnationFile, ServerFacts, ask_facts
from rljob_workers.engines.sglang.weight_update import (
    Gate,
    Recalled,
    drain,
    label_of,
    replace_weights,
    require_fit,
    weight_of,
)
from rljob_workers.models.weights import Weights, WeightSource, full_folder

EVENTS_PER_SECOND = 1.0


FIRST_INTERVAL = 16
"""Until a rate is known; a slow server's first events come late enough."""


LONGEST_INTERVAL = 256


_MEMORY = 0.9


class Pace:
    """Learns the rate of one sample from those before it."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._tokens_per_second: float | None = None

    @property
    def interval(self) -> int:
        """Tokens between two events of the next sample."""
        if self._tokens_per_second is None:
            return FIRST_INTERVAL
        return max(1, min(LONGEST_INTERVAL, int(self._tokens_per_second / EVENTS_PER_SECOND)))

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Of a sample that has ended. One that waited longer than it grew makes the interval shorter, never longer."""
        if num_tokens == 0 or seconds <= 0:
            return
        rate, before = num_tokens / seconds, self._tokens_per_second
        self._tokens_per_second = rate if before is None else _MEMORY * before + (1 - _MEMORY) * rate


_BAD_REQUEST = 400


class SampleBuilder:
    """Takes events in their order."""

    def __init__(self, *, incremental: bool) -> None:
        """`incremental`: each event has the tokens that are new (the flag that we start servers with), and not all."""
        self._incremental = incremental
        self._tokens: list[int] = []
        self._log_probs: list[float] = []
        self._given = 0
        self._last: dict[str, Any] = {}

    def add(self, event: dict[str, Any]) -> int:
        """Takes one; returns how many tokens it is longer now."""
        before = len(self._tokens)
        meta = self._last = event["meta_info"]
        tokens = event.get("output_ids") or []
        log_probs = [value for value, *_ in meta.get("output_token_logprobs") or ()]
        if self._incremental:
            self._tokens.extend(tokens)
            self._log_probs.extend(log_probs)
        else:
            self._tokens, self._log_probs = tokens, log_probs
        return len(self._tokens) - before

    @property
    def has_ended(self) -> bool:
        """Whether the sample has ended by itself."""
        reason = self._last.get("finish_reason")
        return reason is not None and reason["type"] in (FinishReason.STOP, FinishReason.LENGTH)

    def more(self, weight: WeightId) -> Grown:
        """The tokens that no call before has given, as `weight` has drawn them."""
        begin, end = self._given, min(len(self._tokens), len(self._log_probs))
        self._given = end
        spans = (VersionSpan(weight, 0, end - begin),) if end > begin else ()
        return Grown({0: Sample(self._tokens[begin:end], self._log_probs[begin:end], FinishReason.ABORT, spans)})

    def sample(self) -> Sample:
        """The whole; EngineGone where it never ended, EngineRefused where what made it has no name."""
        reason = self._last.get("finish_reason")
        if reason is None:
            raise EngineGone("The engine ended a sample's stream without a reason: the server is dying.")
        if reason.get("status_code") == _BAD_REQUEST:
            raise EngineRefused(f"The engine refused a sample: {reason.get('message')}")
        if len(self._log_probs) != len(self._tokens):
            raise EngineGone(
                f"The engine answered {len(self._log_probs)} log-probs for {len(self._tokens)} tokens. None counts."
            )
        return Sample(self._tokens, self._log_probs, FinishReason(reason["type"]), self._spans())

    def _spans(self) -> tuple[VersionSpan, ...]:
        given = [span for span in self._last.get("weight_versions") or () if span["end"] > span["start"]]
        spans = []
        for span in given:
            weight = weight_of(span["version"])
            if weight is None:
                raise EngineRefused(
                    f"The engine made tokens with weights called {span['version']!r}. Load some that have a name."
                )
            spans.append(VersionSpan(weight, span["start"], span["end"]))
        self._require_no_gap(spans)
        return tuple(spans)

    def _require_no_gap(self, spans: list[VersionSpan]) -> None:
        starts = [0, *(span.end for span in spans)]
        if [*(span.start for span in spans), len(self._tokens)] != starts:
            raise EngineRefused(
                f"The engine does not say which weights made each of the {len(self._tokens)} tokens of a sample (its "
                f"weight_versions: {self._last.get('weight_versions')}). Use SGLang 0.5.23."
            )


def _end(sample: Sample) -> Event:
    return GivenUp({0: sample}) if sample.goes_on else Ended({0: sample})


_CONTROL_SECONDS = 60.0
"""For calls that the base gives no deadline."""


_IDLE_SECONDS = 30
"""For aborted samples to leave the server: it notices a closed connection that streams at once, others after 4 s."""


class SglangEngine(Engine):
    """Client of one server.

    engine = SglangEngine("http://127.0.0.1:30000", identity_file)
    await engine.update_weights(Folder(folder), weight, Interruption.RETRACT, deadline=...)
    async for event in engine.generate(prompts, params): ...
    """

    prompts_per_request = 1

    def __init__(self, url: str, identity_file: Path | None) -> None:
        """Nothing is sent yet. `identity_file`: see `incarnation`; None if no launcher of ours started it."""
        self._connection = Connection(url)
        self._incarnation = IncarnationFile(identity_file, self._connection.url)
        self._gate = Gate()
        self._pace = Pace()
        self._known: tuple[str | None, ServerFacts] | None = None
        self._label = ""
        """Of the last update; prefixes that other weights cached are not read by samples that begin under it."""

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        """See `Engine.generate`."""
        async with self._one_incarnation(_soon()) as (facts, _):
            for prompt, one in zip(prompts, params, strict=True):
                _require_known_tokens(prompt, facts)
                _require_room(prompt, one, facts)
            draw = self._ends if shown is Shown.ENDS else self._tokens
            async with aclosing(merged(draw(*each, facts) for each in singles(prompts, params))) as events:
                async for event in events:
                    yield event

    async def update_weights(
        self, weights: Weights[WeightSource], interruption: Interruption, *, deadline: float
    ) -> None:
        """See `Engine.update_weights`."""
        folder = full_folder(weights.source, "An engine of kind SGLang")
        async with self._one_incarnation(deadline) as (facts, require_same_incarnation):
            await require_fit(folder, facts.shapes)
            async with self._gate.closed():
                if interruption is Interruption.DRAIN:
                    await drain(self._gate, deadline=deadline)
                else:
                    await self._gate.recall_confined()
                if interruption is Interruption.IN_PLACE:
                    self._gate.recall()  # they would read prefixes under the label of the weights that cached them
                self._label = label_of(weights.id)
                await replace_weights(
                    self._connection, folder, self._label, interruption, require_same_incarnation, deadline=deadline
                )

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """See `Engine.score`. Nothing of the prefix cache is read."""
        async with self._one_incarnation(deadline) as (facts, _), self._gate.passed():
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

    async def _ends(self, prompt: Sequence[int], params: SamplingParams, facts: ServerFacts) -> AsyncGenerator[Event]:
        """A sample that is shown when it has ended; the server then says which weights drew what."""
        while True:
            building = SampleBuilder(incremental=facts.incremental)
            with suppress(Recalled):
                async with (
                    self._gate.passed(),
                    aclosing(self._grows(building, prompt, params, facts, self._gate.unbegun())) as growing,
                ):
                    async for num_tokens in growing:
                        yield Drawn(num_tokens)
                yield _end(building.sample())
                return

    async def _tokens(self, prompt: Sequence[int], params: SamplingParams, facts: ServerFacts) -> AsyncGenerator[Event]:
        """A sample of which it is known at any time which weights drew what there is.

        The server says so at a sample's end alone, so that none runs on over an update: it is begun anew behind its
        tokens, which new weights then read, as after Retract. What the server had not sent until then is drawn again.
        """
        made = NOT_BEGUN
        while made.goes_on:
            if len(made.output_ids) == params.max_new_tokens:  # all had come but the end of the stream
                yield Ended({0: replace(made, finish_reason=FinishReason.LENGTH)})
                return
            with suppress(Recalled):
                async with aclosing(self._confined(made, prompt, params, facts)) as events:
                    async for event in events:
                        if not isinstance(event, Drawn):
                            made = continued(made, event.samples[0]) if isinstance(event, Grown) else event.samples[0]
                        yield event
                return

    async def _confined(
        self, begun: Sample, prompt: Sequence[int], params: SamplingParams, facts: ServerFacts
    ) -> AsyncGenerator[Event]:
        """What follows `begun` under the weights that are held now; Recalled by an update."""
        count = len(begun.output_ids)
        seed = continued_seed(params.seed, count) if count else params.seed
        left = replace(params, max_new_tokens=params.max_new_tokens - count, seed=seed)
        building = SampleBuilder(incremental=facts.incremental)
        async with self._gate.passed(), self._gate.confined():
            weight = await self.held()  # an update that failed has left none
            if weight is None:
                raise EngineRefused("The engine holds no weights that have a name. Load some.")
            growing = self._grows(building, [*prompt, *begun.output_ids], left, facts, nullcontext())
            async with aclosing(growing):
                async for num_tokens in growing:
                    yield Drawn(num_tokens)
                    yield _end(continued(begun, building.sample())) if building.has_ended else building.more(weight)
        if not building.has_ended:
            yield _end(continued(begun, building.sample()))

    async def _grows(
        self,
        building: SampleBuilder,
        prompt: Sequence[int],
        params: SamplingParams,
        facts: ServerFacts,
        waits: AbstractAsyncContextManager[None],
    ) -> AsyncGenerator[int]:
        """How many tokens each event of the server has brought. `waits`: around the wait for the first."""
        began = time.monotonic()
        total = 0
        body = {
            "input_ids": list(prompt),
            "sampling_params": sampling_body(params, params.seed if facts.seeds else None, self._pace.interval),
            "return_logprob": True,
            "stream": True,
            "extra_key": self._label,
        }
        async with aclosing(self._connection.stream("/generate", body)) as events:
            async with waits:
                event = await anext(events, None)
            while event is not None:
                grown = building.add(event)
                total += grown
                yield grown
                event = await anext(events, None)
        self._pace.learn(total, time.monotonic() - began)

    @asynccontextmanager
    async def _one_incarnation(self, deadline: float) -> AsyncIterator[tuple[ServerFacts, Callable[[], None]]]:
        """Everything within is of one incarnation of the server, or EngineGone; with a check of that for in between."""
        asked = self._incarnation.read()
        require_same_incarnation = functools.partial(self._incarnation.require, asked)
        facts = await self._facts_of(asked, deadline)
        try:
            yield facts, require_same_incarnation
        except EngineGone:
            self._known = None
            raise
        require_same_incarnation()

    async def _facts(self, deadline: float) -> ServerFacts:
        return await self._facts_of(self._incarnation.read(), deadline)

    async def _facts_of(self, incarnation: str | None, deadline: float) -> ServerFacts:
        if self._known is None or self._known[0] != incarnation:
            facts = await ask_facts(self._connection, deadline=deadline)
            self._incarnation.require(incarnation)
            self._known = (incarnation, facts)
        return self._known[1]


def sampling_body(params: SamplingParams, seed: int | None, interval: int) -> dict[str, Any]:
    """Of a request for one sample; `seed` None: the server heeds none, or would refuse it."""
    body = {"n": 1, "stream_interval": interval, **sampling_fields(params)}
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
