"""An engine without a server: a test says what it answers."""

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, ClassVar

from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import (
    Drawn,
    Ended,
    Engine,
    Event,
    GivenUp,
    Sample,
    SamplingParams,
    Shown,
)
from rljob_workers.models.weights import Weights, WeightSource
from rljob_workers.rollout.engine_access import EngineProgress, RankEngine


def ends(samples: Sequence[Sample]) -> Iterator[Event]:
    """All samples of a request at once."""
    yield Drawn(sum(len(sample.output_ids) for sample in samples))
    if ended := {number: sample for number, sample in enumerate(samples) if not sample.goes_on}:
        yield Ended(ended)
    if given_up := {number: sample for number, sample in enumerate(samples) if sample.goes_on}:
        yield GivenUp(given_up)


class FakeEngine(Engine):
    """Answers nothing; tests override what is asked of it."""

    prompts_per_request: ClassVar[int | None] = None

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], shown: Shown = Shown.ENDS
    ) -> AsyncGenerator[Event]:
        raise NotImplementedError

    async def update_weights(
        self, weights: Weights[WeightSource], interruption: Interruption, *, deadline: float
    ) -> None:
        raise NotImplementedError

    async def score(self, tokens: Sequence[int], *, deadline: float) -> list[float]:
        raise NotImplementedError

    async def held(self) -> WeightId | None:
        raise NotImplementedError

    async def max_tokens(self) -> int:
        raise NotImplementedError

    async def capacity(self) -> int:
        raise NotImplementedError

    async def abort_all(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class FakeRankEngine(RankEngine):
    """A rank's engine whose process a test makes up: it is up when `is_up` says so, and `ended` counts its ends."""

    def __init__(self, client: Engine, is_up: Callable[[], bool] = lambda: True, *, tokens_per_ticket: int = 1) -> None:
        engine = SimpleNamespace(startup_seconds=1.0)
        spec: Any = SimpleNamespace(roles=SimpleNamespace(rollout=SimpleNamespace(engine=engine)))
        context: Any = SimpleNamespace(job=SimpleNamespace(spec=spec))
        session: Any = SimpleNamespace(busy=lambda *_: nullcontext())
        super().__init__(client, EngineProgress(time.monotonic, tokens_per_ticket), context, session)
        self._is_up = is_up
        self.ended = 0

    def await_up(self) -> bool:
        """At once."""
        return self._is_up()

    def end(self, why: str) -> None:
        """As its launcher would."""
        assert why
        self.ended += 1
