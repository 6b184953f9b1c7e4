"""Rewards: scores of finished groups. Used by the rollout role.

Never imports torch. Which reward a spec means is decided here, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_api.spec.rollout import RewardSpec, SummedRewardSpec
from rljob_workers.rewards.base import (
    Answer,
    Reward,
    RewardError,
    RewardFailed,
    RewardFunction,
    RewardMissing,
    RewardRefused,
    RewardTimeout,
    Score,
)
from rljob_workers.rewards.builtin import CharacterMatch, ExactMatch, TaskScore, TaskScorer
from rljob_workers.rewards.custom import CustomReward
from rljob_workers.rewards.weighted_sum import Summand, WeightedSum

if TYPE_CHECKING:
    from rljob_api.spec.data import DataSpec
    from rljob_workers.data.prompts import PromptSource

__all__ = [
    "Answer",
    "Reward",
    "RewardError",
    "RewardFailed",
    "RewardFunction",
    "RewardMissing",
    "RewardRefused",
    "RewardTimeout",
    "Score",
    "build_reward",
]


def build_reward(spec: RewardSpec, data: DataSpec, source: PromptSource) -> Reward:
    """The reward that `spec` means for `data`; ValueError (a sentence) where it cannot be."""
    if spec.sum is None:
        return _single(spec, "rollout.reward", data, source)
    return WeightedSum(
        [
            Summand(part.name, part.weight, _single(part, f"rollout.reward.sum[{place}]", data, source))
            for place, part in enumerate(spec.sum)
        ]
    )


def _single(spec: RewardSpec | SummedRewardSpec, field: str, data: DataSpec, source: PromptSource) -> Reward:
    if spec.custom is not None:
        part = spec.name if isinstance(spec, SummedRewardSpec) else None
        return CustomReward.from_spec(spec.custom, f"{field}.custom", part)
    has_own = spec.exact_match is not None or spec.character_match is not None
    if not has_own and data.reasoning_gym is not None:
        if not isinstance(source, TaskScorer):
            raise ValueError(
                f"rollout.reward: {type(source).__name__} cannot score answers, which data.reasoningGym without a"
                " reward of its own needs. Set rollout.reward."
            )
        return TaskScore(source)
    _need_labels(data)
    return ExactMatch() if spec.character_match is None else CharacterMatch()


def _need_labels(data: DataSpec) -> None:
    if data.reasoning_gym is None and data.label_key is None:
        raise ValueError(
            "data.labelKey: null means that there are no labels, but the reward compares with them."
            " Set data.labelKey, or set rollout.reward.custom."
        )
