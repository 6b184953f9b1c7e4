"""Generate: tickets -> prompts -> the engine -> samples of whole groups.

Called by the groups in work, in the engine's event loop; keeps no state between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import xxhash

from rljob_workers.data.prompts import Prompt, PromptSource
from rljob_workers.engines.all_or_none import all_or_none
from rljob_workers.engines.base import Engine, FinishReason, Generation, Sample, SamplingParams
from rljob_workers.engines.errors import EngineEmptied
from rljob_workers.transfer_queue.types import Ticket


@dataclass(frozen=True, slots=True)
class GenerateConfig:
    """How a group is sampled."""

    job_seed: int
    samples_per_prompt: int
    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int
    max_tokens: int
    """Positions of the model: prompt and response together."""
    stop_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GeneratedGroup:
    """All samples of a ticket's prompt."""

    ticket: Ticket
    prompt: Prompt
    generation: Generation


@dataclass(frozen=True, slots=True)
class Listener:
    """Who hears how a request goes on; called in the engine's event loop."""

    tokens: Callable[[int], None]
    """So many more tokens were made."""
    samples: Callable[[int], None]
    """So many more samples are done, and no longer the engine's."""


def sampling_seed(job_seed: int, ticket: Ticket) -> int:
    """Seed of the group's first sample; the i-th has seed + i. A function of what names the group and nothing else."""
    name = f"{job_seed}/{ticket.rollout_id}/{ticket.group}/{ticket.attempt}"
    return xxhash.xxh3_64_intdigest(name.encode()) >> 20


class GenerateStage:
    """Generates the groups of tickets."""

    def __init__(self, config: GenerateConfig, engine: Engine, source: PromptSource) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._config = config
        self._engine = engine
        self._source = source

    async def run(self, tickets: Sequence[Ticket], listener: Listener) -> list[GeneratedGroup]:
        """All samples of all tickets: one request where the engine takes many prompts, else one for each sample.

        Raises EngineError (nothing of it counts). Prompts leave room for a response: others are passed over before.
        """
        prompts = [self._source.at(ticket.prompt_index) for ticket in tickets]
        params = [self._params(ticket, prompt) for ticket, prompt in zip(tickets, prompts, strict=True)]
        ids = [prompt.token_ids for prompt in prompts]
        if self._engine.prompts_per_request is None:
            generations = await self._engine.generate(ids, params, progress=listener.tokens)
            listener.samples(sum(one.num_samples for one in params))
        else:
            generations = await self._one_by_one(ids, params, listener)
        if any(sample.finish_reason is FinishReason.ABORT for one in generations for sample in one.samples):
            raise EngineEmptied("the samples were aborted at the engine: they are no answers")
        return [GeneratedGroup(*parts) for parts in zip(tickets, prompts, generations, strict=True)]

    async def _one_by_one(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], listener: Listener
    ) -> list[Generation]:
        """Every sample on its own, so that one that is done makes room at once. The first failure ends the others."""

        async def draw(prompt: Sequence[int], one: SamplingParams) -> Sample:
            (generation,) = await self._engine.generate([prompt], [one], progress=listener.tokens)
            listener.samples(1)
            return generation.samples[0]

        samples = iter(
            await all_or_none(
                draw(prompt, replace(given, num_samples=1, seed=given.seed + index))
                for prompt, given in zip(prompts, params, strict=True)
                for index in range(given.num_samples)
            )
        )
        return [Generation(tuple(islice(samples, given.num_samples))) for given in params]

    def _params(self, ticket: Ticket, prompt: Prompt) -> SamplingParams:
        room = self._config.max_tokens - len(prompt.token_ids)
        assert room > 0, f"prompt {prompt.index} leaves no room for a response"
        return SamplingParams(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            top_k=self._config.top_k,
            max_new_tokens=min(self._config.max_new_tokens, room),
            stop_token_ids=self._config.stop_token_ids,
            num_samples=self._config.samples_per_prompt,
            seed=sampling_seed(self._config.job_seed, ticket),
            stop=self._config.stop,
        )
