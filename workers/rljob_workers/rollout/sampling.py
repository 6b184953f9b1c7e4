"""How a job samples: the parameters and the seed of each group, which its ticket alone decides.

For the stages that generate.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import xxhash

from rljob_api.spec import RLJobSpec
from rljob_workers.engines.base import SamplingParams
from rljob_workers.rollout.admission import PromptedTicket
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
    min_p: float = 0.0
    draws_greedy: bool = False
    """Whether each ticket has a greedy answer beside its samples."""

    @classmethod
    def of(cls, spec: RLJobSpec, max_tokens: int) -> GenerateConfig:
        """Of a job and the positions that its engine has."""
        sampling = spec.rollout.sampling
        return cls(
            job_seed=spec.seed,
            samples_per_prompt=spec.rollout.samples_per_prompt,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=sampling.max_new_tokens,
            max_tokens=max_tokens,
            stop_token_ids=tuple(sampling.stop_token_ids),
            stop=tuple(sampling.stop),
            min_p=sampling.min_p or 0.0,
            draws_greedy=spec.algorithm.advantage_traits.needs_greedy,
        )

    def params_of(self, each: PromptedTicket) -> SamplingParams:
        """Of a ticket's group, within the positions that its prompt leaves."""
        room = self.max_tokens - len(each.prompt.token_ids)
        assert room > 0, f"prompt {each.prompt.index} leaves no room for a response"
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_new_tokens=min(self.max_new_tokens, room),
            stop_token_ids=self.stop_token_ids,
            num_samples=self.samples_per_prompt,
            seed=sampling_seed(self.job_seed, each.ticket),
            stop=self.stop,
            min_p=self.min_p,
        )

    def greedy_of(self, each: PromptedTicket) -> SamplingParams:
        """Of the greedy answer to a ticket's prompt: the likeliest token each time, and else as its samples."""
        return replace(self.params_of(each), temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, num_samples=1)


def sampling_seed(job_seed: int, ticket: Ticket) -> int:
    """Seed of the group's first sample; the i-th has seed + i. A function of what names the group and nothing else."""
    name = f"{job_seed}/{ticket.rollout_id}/{ticket.group}/{ticket.attempt}"
    return xxhash.xxh3_64_intdigest(name.encode()) >> 20
