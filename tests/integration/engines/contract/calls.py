"""How the tests of the contract ask an engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rljob_api.names import Lineage, Stream, WeightVersion
from rljob_api.spec.weights import Interruption
from rljob_api.wire.identity import WeightId
from rljob_workers.engines.base import Engine, Sample, SamplingParams
from rljob_workers.models import weights as values
from tests.integration.engines.contract.reference import Weights
from tests.integration.engines.driven import samples_of
from tests.near import assert_log_probs_near

PROMPT = [5, 6, 7, 8, 9, 10]


def version(number: int) -> WeightId:
    """The weights that are called so."""
    return WeightId(lineage=Lineage(1), version=WeightVersion(number))


def params(max_new_tokens: int = 16, *, num_samples: int = 1, seed: int = 0, **changes: object) -> SamplingParams:
    """All tokens, at temperature 1."""
    given: dict[str, object] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop_token_ids": ()}
    return SamplingParams(num_samples=num_samples, seed=seed, max_new_tokens=max_new_tokens, **(given | changes))  # type: ignore[arg-type]


def soon() -> float:
    """A deadline that nothing here comes near."""
    return time.monotonic() + 240


async def load(engine: Engine, folder: Path, number: int, mode: Interruption = Interruption.RETRACT) -> None:
    """An update to version `number`."""
    await engine.update_weights(
        values.Weights(version(number), Stream.POLICY, values.Folder(folder)), mode, deadline=soon()
    )


async def draw(
    engine: Engine,
    one: SamplingParams,
    prompt: Sequence[int] = PROMPT,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """The samples of one prompt."""
    async with asyncio.timeout(240):
        [samples] = await samples_of(engine, [prompt], [one], progress)
    return samples


async def until(condition: Callable[[], bool], what: str) -> None:
    """Asks again until it is so; fails by name."""
    deadline = soon()
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"waited for {what}"
        await asyncio.sleep(0.02)


async def require_true_name(engine: Engine, versions: Sequence[Weights]) -> None:
    """What the server says that it holds is what it computes with, whatever an update has come to."""
    held = await engine.held()
    if held is not None:
        tokens = [*PROMPT, *range(100, 120)]
        found = torch.tensor(await engine.score(tokens, deadline=soon()))
        assert_log_probs_near(found, versions[held.version % len(versions)].log_probs(tokens[:1], tokens[1:]))


class Running:
    """A generation that has begun to make tokens, and goes on beside the test."""

    def __init__(self, engine: Engine, one: SamplingParams, prompt: Sequence[int] = PROMPT) -> None:
        self._made = asyncio.Event()
        self.num_tokens = 0
        self.task = asyncio.create_task(samples_of(engine, [prompt], [one], self._progress))

    def _progress(self, num_tokens: int) -> None:
        self.num_tokens += num_tokens
        self._made.set()

    async def began(self) -> Running:
        """When the first tokens were made."""
        async with asyncio.timeout(240):
            await self._made.wait()
        return self

    async def samples(self) -> list[Sample]:
        """When it has ended."""
        async with asyncio.timeout(240):
            [samples] = await self.task
        return samples

    async def give_up(self) -> None:
        """As a caller that needs it no longer."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
