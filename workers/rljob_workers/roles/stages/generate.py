"""Generate: tickets -> prompts -> engine -> rewards -> the rows of whole groups.

Called by the rollout loop from several threads at once; keeps no state between calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import xxhash

from rljob_api.wire.identity import WeightId
from rljob_workers.data.base import Prompt, PromptSource
from rljob_workers.engines.base import Engine, Generation, SamplingParams
from rljob_workers.rewards.base import Answer
from rljob_workers.rewards.errors import RewardError, RewardRefused
from rljob_workers.roles import tasks
from rljob_workers.transfer_queue.jagged import Jagged
from rljob_workers.transfer_queue.types import GroupRows, Ticket


class GroupScorer(Protocol):
    """Scores whole groups (`rewards.build_reward`)."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[float]]:
        """One float per answer, group by group."""
        ...


class TextDecoder(Protocol):
    """Turns token ids into text without special tokens."""

    def __call__(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """One string per sequence."""
        ...


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
    timeout_seconds: float
    """For one request to the engine."""


def sampling_seed(job_seed: int, ticket: Ticket) -> int:
    """Seed of the group's first sample; the i-th has seed + i. A function of what names the group and nothing else."""
    name = f"{job_seed}/{ticket.rollout_id}/{ticket.group}/{ticket.attempt}"
    return xxhash.xxh3_64_intdigest(name.encode()) >> 20


class GenerateStage:
    """Generates and scores the groups of tickets."""

    def __init__(
        self, config: GenerateConfig, engine: Engine, source: PromptSource, reward: GroupScorer, decode: TextDecoder
    ) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._config = config
        self._engine = engine
        self._source = source
        self._reward = reward
        self._decode = decode

    def run(self, tickets: Sequence[Ticket]) -> list[GroupRows]:
        """One batched request, then rewards, then rows.

        Raises EngineError (nothing of the request counts), RewardError, and ValueError for what no restart would help:
        a prompt that is too long, a reward function that cannot work.
        """
        prompts = [self._source.at(ticket.prompt_index) for ticket in tickets]
        params = [self._params(ticket, prompt) for ticket, prompt in zip(tickets, prompts, strict=True)]
        deadline = time.monotonic() + self._config.timeout_seconds
        generations = self._engine.generate([prompt.token_ids for prompt in prompts], params, deadline=deadline)
        rewards = self._score(tickets, prompts, generations)
        return [_rows(*parts) for parts in zip(tickets, prompts, generations, rewards, strict=True)]

    def _params(self, ticket: Ticket, prompt: Prompt) -> SamplingParams:
        room = self._config.max_tokens - len(prompt.token_ids)
        if room < 1:
            raise ValueError(
                f"data.prompts: prompt {prompt.index} has {len(prompt.token_ids)} tokens, but the model has only "
                f"{self._config.max_tokens} positions for prompt and response. Remove the prompt or use a longer model."
            )
        return SamplingParams(
            temperature=self._config.temperature,
            top_p=self._config.top_p,
            top_k=self._config.top_k,
            max_new_tokens=min(self._config.max_new_tokens, room),
            stop_token_ids=self._config.stop_token_ids,
            num_samples=self._config.samples_per_prompt,
            seed=sampling_seed(self._config.job_seed, ticket),
        )

    def _score(
        self, tickets: Sequence[Ticket], prompts: Sequence[Prompt], generations: Sequence[Generation]
    ) -> Sequence[Sequence[float]]:
        texts = iter(self._decode([sample.output_ids for generation in generations for sample in generation.samples]))
        groups = [
            [
                Answer(prompt.text, next(texts), prompt.label, ticket.group, index)
                for index in range(len(generation.samples))
            ]
            for ticket, prompt, generation in zip(tickets, prompts, generations, strict=True)
        ]
        try:
            return self._reward.score_groups(groups)
        except RewardError as error:
            if _is_final(error):
                raise ValueError(str(error)) from error
            raise


def _is_final(error: RewardError) -> bool:
    """Whether the function would say the same again: it returns no rewards, or says itself that it cannot score."""
    return isinstance(error, RewardRefused) or type(error.__cause__) is ValueError


def _rows(ticket: Ticket, prompt: Prompt, generation: Generation, rewards: Sequence[float]) -> GroupRows:
    samples = generation.samples
    prompt_ids = list(prompt.token_ids)
    lengths = [len(sample.output_ids) for sample in samples]
    response_lengths = torch.tensor(lengths, dtype=torch.int64)
    tokens = torch.tensor(
        [token for sample in samples for token in (*prompt_ids, *sample.output_ids)], dtype=torch.int32
    )
    log_probs = torch.tensor([value for sample in samples for value in sample.log_probs], dtype=torch.float32)
    columns = {
        tasks.TOKENS: Jagged.from_lengths(tokens, response_lengths + len(prompt_ids)),
        tasks.RESPONSE_LENGTHS: Jagged.scalars(response_lengths),
        tasks.LOSS_MASKS: Jagged.from_lengths(torch.ones(sum(lengths), dtype=torch.uint8), response_lengths),
        tasks.ROLLOUT_LOG_PROBS: Jagged.from_lengths(log_probs, response_lengths),
        tasks.REWARDS: Jagged.scalars(torch.tensor(rewards, dtype=torch.float32)),
    }
    oldest: list[WeightId] = [sample.spans[0].weight for sample in samples]
    newest: list[WeightId] = [sample.spans[-1].weight for sample in samples]
    return GroupRows(ticket, columns, oldest, newest)
