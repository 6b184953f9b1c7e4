"""An engine's client from threads of a test: its event loop runs beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from itertools import islice
from pathlib import Path

import httpx

from rljob_api.names import Stream
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Drawn, Engine, Sample, SamplingParams
from rljob_workers.engines.torch_engine.torch_client import TorchEngineClient
from rljob_workers.models.weights import Folder, Weights
from rljob_workers.rollout.engine_access import EventLoopThread

WAIT_SECONDS = 240.0


class DrivenEngine:
    """An `Engine` whose calls block. `progress` has every count of tokens, in order."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.progress: list[int] = []
        self._events = EventLoopThread("engine")

    def begin(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Future[list[list[Sample]]]:
        """A generation that may be cancelled: the samples of each prompt."""
        return self._events.begin(self._samples(prompts, params))

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, deadline: float
    ) -> list[list[Sample]]:
        """Cancelled at the deadline, as the rollout does; then a TimeoutError."""

        async def within() -> list[list[Sample]]:
            async with asyncio.timeout(deadline - time.monotonic()):
                return await self._samples(prompts, params)

        return self._events.call(within())

    async def _samples(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[list[Sample]]:
        return await samples_of(self.engine, prompts, params, self.progress.append)

    def update_weights(
        self,
        folder: Path,
        weight: WeightId,
        interruption: Interruption = Interruption.RETRACT,
        *,
        deadline: float,
    ) -> None:
        """As the engine's own."""
        self._events.call(
            self.engine.update_weights(Weights(weight, Stream.POLICY, Folder(folder)), interruption, deadline=deadline)
        )

    def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        """As the engine's own."""
        return self._events.call(self.engine.score(tokens, deadline=deadline))

    def held(self) -> WeightId | None:
        """As the engine's own."""
        return self._events.call(self.engine.held())

    def max_tokens(self) -> int:
        """As the engine's own."""
        return self._events.call(self.engine.max_tokens())

    def capacity(self) -> int:
        """As the engine's own."""
        return self._events.call(self.engine.capacity())

    def abort_all(self) -> None:
        """As the engine's own."""
        self._events.call(self.engine.abort_all())

    def close(self) -> None:
        """Ends the client, and the loop with all that still runs in it."""
        self._events.call(self.engine.close())
        self._events.close()


async def samples_of(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    progress: Callable[[int], None] = lambda _: None,
) -> list[list[Sample]]:
    """The samples of each prompt, those that were given up among them; `progress` gets each count of tokens."""
    found: dict[int, Sample] = {}
    async with aclosing(engine.generate(prompts, params)) as events:
        async for event in events:
            if isinstance(event, Drawn):
                progress(event.num_tokens)
            else:
                assert not found.keys() & event.samples.keys(), "a sample has ended twice"
                found |= event.samples
    numbers = iter(range(len(found)))
    return [[found[number] for number in islice(numbers, one.num_samples)] for one in params]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Asks again until it is so; fails by name."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.005)


def running_samples(url: str) -> int:
    """Of the torch engine at a URL."""
    return _count_at(url, "num_running_reqs")


def waiting_prompts(url: str) -> int:
    """Of the torch engine at a URL."""
    return _count_at(url, "num_waiting_reqs")


def _count_at(url: str, what: str) -> int:
    return int(httpx.get(f"{url}/get_server_info", timeout=60).json()[what])


def torch_engine(url: str) -> DrivenEngine:
    """The torch engine at a URL."""
    return DrivenEngine(TorchEngineClient(url))
