"""An engine without a server: a test says what it answers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Engine, EngineCapabilities, Generation, SamplingParams


class FakeEngine(Engine):
    """Answers nothing; tests override what is asked of it."""

    capabilities = EngineCapabilities(scores=False)
    prompts_per_request: ClassVar[int | None] = None

    async def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], *, progress: Callable[[int], None]
    ) -> list[Generation]:
        raise NotImplementedError

    async def update_weights(
        self, folder: Path, weight: WeightId, interruption: Interruption, *, deadline: float
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
