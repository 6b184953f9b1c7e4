"""Scores of generated groups, and what becomes of a group by them: its rows, or another prompt.

Runs in threads of the rollout's groups in work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from rljob_api.spec.rollout import GroupOrder
from rljob_workers.estimators import JobEstimator
from rljob_workers.models.tokenizers import TextDecoder
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.dynamic_sampling import DynamicSampling, Verdict
from rljob_workers.rollout.group_rows import GeneratedGroup, answer_of, group_rows
from rljob_workers.rollout.trajectory import LostSample, Trajectory
from rljob_workers.tensors.packed import DRAWN_FOR, DRAWS, LAST_REFUSED, Fact
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore
from rljob_workers.transfer_queue.types import GroupRows, Ticket

MIN_VALID = 2
"""Scores of a group without which none of its samples has anything to be measured against."""


MIN_VALID_BESIDE_GREEDY = 1
"""The same where they are measured against a greedy answer."""


class GroupScorer(Protocol):
    """Scores whole groups (`rewards.scoring`)."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[SettledScore]]:
        """One score per answer, group by group. Raises ValueError where another try would not help."""
        ...


@dataclass(frozen=True, slots=True)
class Unscored:
    """A group of which too little could be scored: its samples cannot be compared, and another prompt is drawn."""

    ticket: Ticket
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A group that the job's filter would not have trained: another prompt is drawn."""

    ticket: Ticket
    score: GroupScore = UNSCORED


Outcome = GroupRows | Unscored | Refused
"""A group's rows, or why it has none."""


class ScoreStage:
    """Scores groups and makes rows of them."""

    def __init__(
        self,
        reward: GroupScorer,
        decode: TextDecoder,
        estimator: JobEstimator | None = None,
        sampling: DynamicSampling | None = None,
        order: GroupOrder = GroupOrder.BOUND,
        pass_reward: float | None = None,
    ) -> None:
        """The parts come from their factories; nothing is opened here.

        `estimator` None: a role makes advantages. `sampling` None: what is scored is trained on. With `order` Swap rows
        name the rollout that their group was begun for. `pass_reward`: of the job's curriculum; None: it has none.
        """
        self._reward = reward
        self._decode = decode
        self._estimator = estimator
        self._sampling = sampling
        self._order = order
        self._pass_reward = pass_reward

    def run(self, groups: Sequence[GeneratedGroup]) -> list[Outcome]:
        """What became of each; blocks for as long as the reward does.

        Raises ValueError for a reward or a filter that cannot work, which no restart would cure.
        """
        return [self._outcome(*parts) for parts in zip(groups, self._score(groups), strict=True)]

    def _outcome(self, group: GeneratedGroup, scores: Sequence[SettledScore]) -> Outcome:
        """`scores` are those of `group.answers`."""
        if group.greedy is None:
            # A group of one is compared with none: a teacher measures it.
            return self._of_samples(group, scores, min(MIN_VALID, len(scores)), None)
        *of_samples, greedy = scores
        if greedy.failure is not None:
            reason = "its greedy answer, which its samples are measured against, could not be scored."
            return Unscored(group.ticket, f"{reason} {greedy.failure}")
        return self._of_samples(group, of_samples, MIN_VALID_BESIDE_GREEDY, greedy.reward)

    def _of_samples(
        self, group: GeneratedGroup, scores: Sequence[SettledScore], min_valid: int, baseline: float | None
    ) -> Outcome:
        failures = [score.failure for score in scores if score.failure is not None]
        num_valid = len(scores) - len(failures)
        if num_valid < min_valid:
            return Unscored(group.ticket, f"{num_valid} of its {len(scores)} samples could be scored. {failures[-1]}")
        facts: dict[str, Fact] = {}
        if self._order is GroupOrder.SWAP:
            facts[DRAWN_FOR] = group.ticket.rollout_id - group.ticket.put_off
        if self._sampling is not None:
            found = self._sampling.verdict_of(group, scores, baseline)
            if found is Verdict.REFUSED:
                return Refused(group.ticket, self._score_of(scores))
            facts |= {DRAWS: group.ticket.refused + 1, LAST_REFUSED: found is Verdict.EXHAUSTED}
        rows = group_rows(group, scores, baseline, self._estimator, facts)
        return replace(rows, score=self._score_of(scores))

    def _score_of(self, scores: Sequence[SettledScore]) -> GroupScore:
        if self._pass_reward is None:
            return UNSCORED
        return GroupScore.of([score.reward for score in scores if score.failure is None], self._pass_reward)

    def _score(self, groups: Sequence[GeneratedGroup]) -> list[list[SettledScore]]:
        """Of every answer; the reward is asked for those that were made and have none of their function's."""
        asked = [(group, indices) for group in groups for indices in _scored_together(group)]
        texts = iter(self._decode([_made(group, index).response_ids for group, indices in asked for index in indices]))
        answers = [[answer_of(group, index, next(texts)) for index in indices] for group, indices in asked]
        scored = iter(self._reward.score_groups(answers) if answers else ())
        return [_settled(group, scored) for group in groups]


def _scored_together(group: GeneratedGroup) -> list[list[int]]:
    """Indices of answers that the reward is asked for; none is empty.

    The greedy answer is alone: a reward may compare the samples, and what they are measured against is none of them.
    """
    samples = [index for index, sample in enumerate(group.samples) if _is_asked(sample)]
    greedy = [] if group.greedy is None else [len(group.samples)]
    return [indices for indices in (samples, greedy) if indices]


def _settled(group: GeneratedGroup, scored: Iterator[Sequence[SettledScore]]) -> list[SettledScore]:
    """Scores of all answers of a group; `scored` has those that were asked for, in the order of `_scored_together`."""
    found = {
        index: score for indices in _scored_together(group) for index, score in zip(indices, next(scored), strict=True)
    }
    return [found[index] if index in found else _own_score(answer) for index, answer in enumerate(group.answers)]


def _is_asked(sample: Trajectory | LostSample) -> bool:
    return isinstance(sample, Trajectory) and sample.reward is None


def _own_score(sample: Trajectory | LostSample) -> SettledScore:
    if isinstance(sample, LostSample):
        return SettledScore(0.0, sample.reason)
    assert sample.reward is not None
    return SettledScore(float(sample.reward))


def _made(group: GeneratedGroup, index: int) -> Trajectory:
    sample = group.answers[index]
    assert isinstance(sample, Trajectory)
    return sample
