"""What an evaluation consists of: its sets, opened, and the numbers of their samples.

Made by the rollout role when it begins. The numbers and the digest are all that the control Redis knows of the sets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import floor
from typing import TYPE_CHECKING

import xxhash

from rljob_api.spec import RLJobSpec
from rljob_api.spec.data import DataSpec
from rljob_api.spec.evaluation import EvaluationSetSpec, EvaluationSpec
from rljob_api.spec.set_defaults import stated_data, stated_sampling
from rljob_workers.data import build_prompt_source
from rljob_workers.data.prompts import PromptSource
from rljob_workers.data.room import need_room
from rljob_workers.engines.base import SamplingParams
from rljob_workers.evaluation import digest_of
from rljob_workers.rewards import build_reward
from rljob_workers.rewards.retries import Retries
from rljob_workers.rewards.scoring import FailedShare, FailurePolicy, Scoring, ScoringCounts
from rljob_workers.rollout.scoring_stage import GroupScorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Prompts, how they are answered, and who scores the answers."""

    spec: EvaluationSetSpec
    data: DataSpec
    source: PromptSource
    params: SamplingParams
    """Of any sample but its seed, with as many new tokens as the longest may have."""
    scorer: GroupScorer

    @property
    def num_samples(self) -> int:
        """Of all prompts."""
        return len(self.source) * self.spec.samples_per_prompt


def evaluation_seed(job_seed: int, set_name: str, prompt: int, index: int) -> int:
    """Of a sample: the same for every version, so that two of them differ by their weights alone."""
    return xxhash.xxh3_64_intdigest(f"{job_seed}/evaluation/{set_name}/{prompt}/{index}".encode()) >> 20


@dataclass(frozen=True, slots=True)
class NumberedSample:
    """What the number of a sample stands for."""

    of: EvaluationSet
    prompt: int
    index: int


class EvaluationPlan:
    """The samples of an evaluation, numbered set after set, prompt after prompt."""

    def __init__(self, spec: EvaluationSpec, sets: Sequence[EvaluationSet], *, seed: int, num_rollouts: int) -> None:
        """`seed` is the job's."""
        self._spec = spec
        self._sets = sets
        self._seed = seed
        self._num_rollouts = num_rollouts
        self._ends = list(accumulate(each.num_samples for each in sets))
        self.num_samples = self._ends[-1]
        self.digest = digest_of(spec, seed, [each.num_samples for each in sets])

    def is_due(self, version: int) -> bool:
        """Whether a version is evaluated."""
        return self._spec.is_due(version, self._num_rollouts)

    def most_in_flight(self, samples_in_flight: int) -> int:
        """Of so many at the engine."""
        return max(1, floor(self._spec.engine_share * samples_in_flight))

    def of(self, number: int) -> NumberedSample:
        """What it stands for."""
        place = bisect_right(self._ends, number)
        each = self._sets[place]
        prompt, index = divmod(number - (self._ends[place] - each.num_samples), each.spec.samples_per_prompt)
        return NumberedSample(each, prompt, index)

    def seed_of(self, sample: NumberedSample) -> int:
        """Its seed."""
        return evaluation_seed(self._seed, sample.of.spec.name, sample.prompt, sample.index)


def build_plan(
    job: RLJobSpec, tokenizer: PreTrainedTokenizerBase, max_tokens: int, counts: ScoringCounts
) -> EvaluationPlan | None:
    """That of a job; None where it evaluates nothing. `max_tokens`: positions of the model. All sets share `counts`.

    Raises ValueError, a sentence, for sets that cannot be answered.
    """
    spec = job.evaluation
    if spec is None:
        return None
    sets = [
        _build_set(job, each, f"evaluation.sets[{place}]", tokenizer, counts) for place, each in enumerate(spec.sets)
    ]
    for place, each in enumerate(sets):
        need_room(each.data, each.source, f"evaluation.sets[{place}].data", max_tokens)
    return EvaluationPlan(spec, sets, seed=job.seed, num_rollouts=job.rollout.num_rollouts)


def _build_set(
    job: RLJobSpec, spec: EvaluationSetSpec, field: str, tokenizer: PreTrainedTokenizerBase, counts: ScoringCounts
) -> EvaluationSet:
    data = stated_data(spec.data)
    policy = FailurePolicy.of(job.rollout.reward)
    try:
        source = build_prompt_source(data, tokenizer)
        reward = build_reward(job.rollout.reward, data, source, Retries(policy, counts))
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from error
    share = FailedShare.over(len(source) * spec.samples_per_prompt, job.rollout.reward.max_failed_share)
    return EvaluationSet(spec, data, source, _params_of(spec, job), Scoring(reward, policy, share, counts))


def _params_of(spec: EvaluationSetSpec, job: RLJobSpec) -> SamplingParams:
    """How a set is sampled; the seed is each sample's own."""
    sampling = stated_sampling(spec.sampling, job.rollout.sampling)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_new_tokens=sampling.max_new_tokens,
        stop_token_ids=tuple(sampling.stop_token_ids),
        num_samples=1,
        seed=0,
        stop=tuple(sampling.stop),
        min_p=sampling.min_p or 0.0,
    )
