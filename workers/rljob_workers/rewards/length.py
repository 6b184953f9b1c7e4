"""An answer's length changes its reward: by a penalty near the longest one, and a bonus for shorter ones.

Added to what another reward gives, with a metric for each. A length is that of the response in tokens, as maxNewTokens
bounds it. Answers that could not be scored stay so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_workers.rewards.base import Answer, Outcome, Reward, RewardAround, RewardError, Score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rljob_api.spec.rollout import RolloutSpec

OVERLONG, SHORTER = "overlong", "shorter"
"""Names of the metrics: `reward/overlong`, `reward/shorter`."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """DAPO's soft punishment of answers that come near the longest one.

    Formula, for a response of n tokens of at most L, and a buffer of B: 0 up to L - B tokens, from there
    penalty (L - B - n) / B, which is -penalty at L.
    Source: Yu et al. 2025, DAPO, arXiv:2503.14476, equation 13.
    """

    longest: int
    buffer: int
    penalty: float

    def of(self, num_tokens: int) -> float:
        """The penalty of one answer; at most 0."""
        return self.penalty * min(0.0, (self.longest - self.buffer - num_tokens) / self.buffer)


def shorter_is_better(lengths: Sequence[int], rewards: Sequence[float]) -> list[float]:
    """The length reward of Kimi k1.5 for the answers to one prompt, each from -0.5 to 0.5.

    Formula: lambda_i = 0.5 - (n_i - shortest) / (longest - shortest); an answer whose reward is positive gets lambda_i,
    another one min(0, lambda_i), so that a wrong answer earns nothing by being short. 0 where all are of one length.
    Source: Kimi Team 2025, arXiv:2501.12599, section 2.3.3.
    """
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    if shortest == longest:
        return [0.0] * len(lengths)
    shares = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [share if reward > 0 else min(0.0, share) for share, reward in zip(shares, rewards, strict=True)]


class LengthShaped(RewardAround):
    """Another reward, with what lengths add to it."""

    def __init__(self, reward: Reward, overlong: Overlong | None, shorter_weight: float) -> None:
        """`overlong` None, and a weight of 0: nothing of the kind."""
        super().__init__(reward)
        self._overlong = overlong
        self._shorter_weight = shorter_weight

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[Outcome]]:
        """Compares the scored answers alone of each group."""
        scored = self._inner.score_groups(groups)
        return [self._shaped(group, outcomes) for group, outcomes in zip(groups, scored, strict=True)]

    def _shaped(self, group: Sequence[Answer], outcomes: Sequence[Outcome]) -> list[Outcome]:
        scored = {place: _as_score(one) for place, one in enumerate(outcomes) if not isinstance(one, RewardError)}
        lengths = [len(group[place].token_ids) for place in scored]
        shares = shorter_is_better(lengths, [score.reward for score in scored.values()])
        shaped = list(outcomes)
        for (place, score), length, share in zip(scored.items(), lengths, shares, strict=True):
            added = {}
            if self._overlong is not None:
                added[OVERLONG] = self._overlong.of(length)
            if self._shorter_weight:
                added[SHORTER] = self._shorter_weight * share
            shaped[place] = Score(score.reward + sum(added.values()), {**score.metrics, **added})
        return shaped


def _as_score(outcome: float | Score) -> Score:
    return outcome if isinstance(outcome, Score) else Score(outcome)


def shaped_by_length(reward: Reward, spec: RolloutSpec) -> Reward:
    """The reward with what the job adds by length; itself where that is nothing."""
    overlong, shorter = spec.reward.overlong, spec.reward.shorter
    if overlong is None and shorter is None:
        return reward
    punished = None
    if overlong is not None:
        punished = Overlong(spec.sampling.max_new_tokens, overlong.buffer, overlong.penalty)
    return LengthShaped(reward, punished, 0.0 if shorter is None else shorter.weight)
