"""Rewards that come with the product: exact and character match, reasoning_gym's own score. Cheap: run in the caller.

Left out: any reading of the answer beyond stripping white space.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rljob_api.row_files.labels import answer_in
from rljob_workers.rewards.base import Answer, Reward
from rljob_workers.rewards.metrics import is_reward

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)


class ExactMatch(Reward):
    """1.0 when the answer equals the label, else 0.0; both as text, stripped of white space."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """Raises ValueError for a prompt without a label."""
        return [[float(answer.response.strip() == expected_label(answer)) for answer in group] for group in groups]


class CharacterMatch(Reward):
    """Places where answer and label agree, over the longer one's length: 1.0 when they are equal. Stripped as above."""

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """Raises ValueError for a prompt without a label."""
        return [[_agreement(answer.response.strip(), expected_label(answer)) for answer in group] for group in groups]


def _agreement(answer: str, label: str) -> float:
    if answer == label:
        return 1.0
    agreeing = sum(mine == wanted for mine, wanted in zip(answer, label, strict=False))
    return agreeing / max(len(answer), len(label))


def expected_label(answer: Answer) -> str:
    """The label as text. ValueError where there is none."""
    label = answer_in(answer.label)
    if label is None:
        raise ValueError(
            f"data.labelKey: the prompt {answer.prompt[:80]!r} has no label, but the reward compares with one."
            " Add it or correct data.labelKey."
        )
    return str(label).strip()


@runtime_checkable
class TaskScorer(Protocol):
    """Scores an answer by the task that was asked."""

    def score(self, answer: str, entry: dict[str, Any]) -> float:
        """0.0 to 1.0."""
        ...


class TaskScore(Reward):
    """`score_answer` of the reasoning_gym dataset that the prompts come from.

    A dataset's scorer that raises on an answer, or gives what is no finite number, gives 0.0: some read numbers or
    grids out of the text without a guard, and text from an untrained model is mostly not one. It is logged once per
    kind of error.
    """

    def __init__(self, scorer: TaskScorer) -> None:
        self._scorer = scorer
        self._logged: set[str] = set()

    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """Never raises."""
        return [[self._score(answer) for answer in group] for group in groups]

    def _score(self, answer: Answer) -> float:
        try:
            score = float(self._scorer.score(answer.response.strip(), answer.label))
            if not is_reward(score):
                raise ArithmeticError(f"its score is {score}")
            return score
        except Exception as error:  # foreign code over text made by a model: anything may come
            kind = type(error).__name__
            if kind not in self._logged:
                self._logged.add(kind)
                _LOG.warning("score_answer raised %s: %s; such answers get 0.0", kind, error)
            return 0.0
