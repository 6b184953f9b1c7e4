"""Whether a scored group is trained on, or is drawn anew with another prompt: the job's filter, and its limit.

Used by the scoring stage, in its threads. The queue counts what was refused (`Ticket.refused`), so that another rank or
incarnation that goes on with a group decides as the one before would have. Users import `KeepsGroup` from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import torch

from rljob_api.spec.dynamic_sampling import GroupFilter
from rljob_workers.estimators import has_variance
from rljob_workers.rewards.base import Answer, SettledScore, named_prompt
from rljob_workers.rollout.group_rows import GeneratedGroup, answer_of
from rljob_workers.rollout.trajectory import Trajectory
from rljob_workers.user_functions import FinalCalls, Signature, load_called

if TYPE_CHECKING:
    from rljob_api.spec.dynamic_sampling import DynamicSamplingSpec
    from rljob_workers.models.tokenizers import TextDecoder

FIELD = "rollout.dynamicSampling.filter"


_OWN = Signature(2, "answers, rewards", "def keeps(answers, rewards): return True")


class KeepsGroup(Protocol):
    """A user's filter: whether a group is trained on."""

    def __call__(self, answers: Sequence[Answer], rewards: Sequence[float], /) -> bool:
        """True for a group that is; for False another prompt is drawn in its place.

        `answers` are the samples that have a score, as a reward sees them, and `rewards` what they have earned. Several
        threads may call it. Whatever it raises fails the job.
        """
        ...


class Verdict(Enum):
    """What becomes of a scored group."""

    PASSED = "passed"
    REFUSED = "refused"
    """It is drawn anew."""
    EXHAUSTED = "exhausted"
    """The filter refuses it, and it was the last draw: it is trained on all the same."""


def verdict(refused: int, max_attempts: int, *, keeps: bool) -> Verdict:
    """Of a group of which `refused` earlier draws were refused, by what the filter says of this one."""
    if keeps:
        return Verdict.PASSED
    return Verdict.REFUSED if refused + 1 < max_attempts else Verdict.EXHAUSTED


class Filter(Protocol):
    """The job's filter."""

    def __call__(self, group: GeneratedGroup, scores: Sequence[SettledScore], baseline: float | None, /) -> bool:
        """Whether the group is trained on. `scores` of its samples; `baseline` is its greedy answer's reward."""
        ...


def rewards_differ(
    group: GeneratedGroup,  # noqa: ARG001 - one signature
    scores: Sequence[SettledScore],
    baseline: float | None,
) -> bool:
    """NoVariance: as `algorithm.noVariance` and the metric of that name see a group, in float32."""
    rewards = torch.tensor([score.reward for score in scores], dtype=torch.float32)
    valid = torch.tensor([score.failure is None for score in scores])
    baselines = None if baseline is None else torch.full_like(rewards, baseline)
    return bool(has_variance(rewards, valid, len(scores), baselines)[0])


class OwnFilter:
    """A user's function, its result checked."""

    def __init__(self, name: str, function: KeepsGroup, decode: TextDecoder) -> None:
        """`name`: its import path."""
        self._calls = FinalCalls(f"{FIELD}: {name}", function)
        self._decode = decode

    @classmethod
    def load(cls, spec: DynamicSamplingSpec, decode: TextDecoder) -> OwnFilter:
        """Raises ValueError, with a sentence, where the function cannot be loaded."""
        path_field = "rollout.dynamicSampling.path"
        function = load_called(FIELD, spec.filter, path_field, spec.path, _OWN, "a filter is called")
        return cls(spec.filter, function, decode)

    def __call__(self, group: GeneratedGroup, scores: Sequence[SettledScore], baseline: float | None, /) -> bool:  # noqa: ARG002 - one signature
        """Raises ValueError, which fails the job, for what the function raises, and for a result that is no bool."""
        made = [index for index, score in enumerate(scores) if score.failure is None]
        samples = [sample for sample in (group.samples[index] for index in made) if isinstance(sample, Trajectory)]
        texts = self._decode([sample.response_ids for sample in samples])
        answers = [answer_of(group, index, text) for index, text in zip(made, texts, strict=True)]
        where = f"{named_prompt(group.prompt.text)} (group {group.ticket.group})"
        cure = "Return True for a group to train on, and False for one to draw anew."
        return self._calls.verdict(where, cure, answers, [scores[index].reward for index in made])


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """A filter, and how often a group is drawn for it."""

    keeps: Filter
    max_attempts: int

    @classmethod
    def of(cls, spec: DynamicSamplingSpec | None, decode: TextDecoder) -> DynamicSampling | None:
        """The job's. Raises ValueError where a function of the user's cannot be loaded."""
        if spec is None:
            return None
        own = None if spec.filter == GroupFilter.NO_VARIANCE else OwnFilter.load(spec, decode)
        return cls(rewards_differ if own is None else own, spec.max_attempts)

    def verdict_of(self, group: GeneratedGroup, scores: Sequence[SettledScore], baseline: float | None) -> Verdict:
        """Of a group that was scored. Raises ValueError where the filter cannot tell."""
        return verdict(group.ticket.refused, self.max_attempts, keeps=self.keeps(group, scores, baseline))
