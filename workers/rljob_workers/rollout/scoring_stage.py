"""Scores of generated groups, and what becomes of a group by them: its rows, or another prompt.

Runs in threads of the rollout's groups in work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_workers.engines.base import Sample
from rljob_workers.models.tokenizers import TextDecoder
from rljob_workers.rewards.base import Answer, SettledScore
from rljob_workers.rollout.group_rows import GeneratedGroup, group_rows
from rljob_workers.transfer_queue.types import GroupRows, Ticket

MIN_VALID = 2
"""Scores of a group without which none of its samples has anything to be measured against."""


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


class ScoreStage:
    """Scores groups and makes rows of them."""

    def __init__(self, reward: GroupScorer, decode: TextDecoder) -> None:
        """The parts come from their factories; nothing is opened here."""
        self._reward = reward
        self._decode = decode

    def run(self, groups: Sequence[GeneratedGroup]) -> list[GroupRows | Unscored]:
        """What became of each; blocks for as long as the reward does.

        Raises ValueError for a reward that cannot work, which no restart would cure.
        """
        return [_outcome(*parts) for parts in zip(groups, self._score(groups), strict=True)]

    def _score(self, groups: Sequence[GeneratedGroup]) -> Sequence[Sequence[SettledScore]]:
        texts = iter(self._decode([sample.output_ids for group in groups for sample in group.generation.samples]))
        answers = [
            [_answer(group, index, sample, next(texts)) for index, sample in enumerate(group.generation.samples)]
            for group in groups
        ]
        return self._reward.score_groups(answers)


def _answer(group: GeneratedGroup, index: int, sample: Sample, text: str) -> Answer:
    prompt = group.prompt
    return Answer(
        prompt.text,
        text,
        prompt.label,
        group.ticket.group,
        index,
        token_ids=tuple(sample.output_ids),
        loss_mask=(1,) * len(sample.output_ids),
        finish_reason=sample.finish_reason.value,
        messages=prompt.messages,
        row=prompt.row,
    )


def _outcome(group: GeneratedGroup, scores: Sequence[SettledScore]) -> GroupRows | Unscored:
    failures = [score.failure for score in scores if score.failure is not None]
    num_valid = len(scores) - len(failures)
    if num_valid < MIN_VALID:
        return Unscored(group.ticket, f"{num_valid} of its {len(scores)} samples could be scored. {failures[-1]}")
    return group_rows(group.ticket, group.prompt, group.generation.samples, scores)
