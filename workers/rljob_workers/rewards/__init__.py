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
from rljob_workers.rewards.math_answers import MathVerify
from rljob_workers.rewards.retries import Retried, Retries
from rljob_workers.rewards.texts import TextReward, choice, has_tags, matches, text_overlap
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


def build_reward(spec: RewardSpec, data: DataSpec, source: PromptSource, retries: Retries | None = None) -> Reward:
    """The reward that `spec` means for `data`; ValueError (a sentence) where it cannot be.

    `retries` None: what has failed is not asked again.
    """
    if spec.sum is None:
        return _single(spec, "rollout.reward", data, source, retries)
    return WeightedSum(
        [
            Summand(part.name, part.weight, _single(part, f"rollout.reward.sum[{place}]", data, source, retries))
            for place, part in enumerate(spec.sum)
        ]
    )


def _single(
    spec: RewardSpec | SummedRewardSpec, field: str, data: DataSpec, source: PromptSource, retries: Retries | None
) -> Reward:
    called = _called(spec, field, data)
    if called is None:
        return _built_in(spec, field, data, source)
    return called if retries is None else Retried(called, retries)


def _built_in(spec: RewardSpec | SummedRewardSpec, field: str, data: DataSpec, source: PromptSource) -> Reward:
    if spec.format is not None:
        return TextReward(matches(spec.format.pattern, f"{field}.format"))
    if spec.tags is not None:
        return TextReward(has_tags(spec.tags.names))
    if not spec.kinds and data.reasoning_gym is not None:
        if not isinstance(source, TaskScorer):
            raise ValueError(
                f"rollout.reward: {type(source).__name__} cannot score answers, which data.reasoningGym without a"
                " reward of its own needs. Set rollout.reward."
            )
        return TaskScore(source)
    _need_labels(data)
    if spec.math_verify is not None:
        return MathVerify(spec.math_verify.timeout_seconds, f"{field}.mathVerify")
    if spec.text_overlap is not None:
        return TextReward(text_overlap)
    if spec.choice is not None:
        return TextReward(choice)
    return ExactMatch() if spec.character_match is None else CharacterMatch()


def _called(spec: RewardSpec | SummedRewardSpec, field: str, data: DataSpec) -> CustomReward | None:
    """A reward that may fail and succeed later; None for a reward that comes with the product."""
    part = spec.name if isinstance(spec, SummedRewardSpec) else None
    if spec.custom is not None:
        return CustomReward.from_spec(spec.custom, f"{field}.custom", part, data.label_key)
    if spec.remote is None and spec.judge is None:
        return None
    from rljob_workers.rewards.judges import JudgedScore  # aiohttp: not for other rewards
    from rljob_workers.rewards.servers import RemoteScores, ServedReward

    if spec.remote is not None:
        scores = RemoteScores(spec.remote, f"{field}.remote")
        return ServedReward(scores, spec.remote.url, f"{field}.remote", part)
    assert spec.judge is not None
    judged = JudgedScore(spec.judge, f"{field}.judge")
    return ServedReward(judged, spec.judge.url, f"{field}.judge", part, per_sample=True)


def _need_labels(data: DataSpec) -> None:
    if data.reasoning_gym is None and data.label_key is None:
        raise ValueError(
            "data.labelKey: null means that there are no labels, but the reward compares with them."
            " Set data.labelKey, or set rollout.reward.custom."
        )
