"""The protocol of a reward. Users write functions of this shape; roles score through `Reward`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from rljob_workers.rewards.errors import RewardError


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample as a reward sees it."""

    prompt: str
    response: str
    label: Any
    """The value under labelKey, or the task entry of reasoning_gym."""
    group: int
    index: int


@dataclass(frozen=True, slots=True)
class Score:
    """What became of one answer."""

    reward: float
    """0.0 where there is none."""
    failure: str | None = None
    """Why it could not be scored, in a sentence: then its sample is not valid. None where it was, or where the job
    gives such answers a score of their own."""


class RewardFunction(Protocol):
    """Scores the samples of one prompt group, in order; may be a plain or an async function."""

    def __call__(self, answers: Sequence[Answer], /) -> Sequence[float | None] | Awaitable[Sequence[float | None]]:
        """One float per answer; None for one that cannot be scored now.

        A ValueError says that these answers can never be scored: the job fails at once with its sentence. Anything else
        that is raised, and a call that takes too long, leaves all of them without a score. What becomes of an answer
        without one is rollout.reward.onFailure.
        """
        ...


class Reward(ABC):
    """Scores finished groups. Used by the rollout role; several threads may score at the same time."""

    @abstractmethod
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[float | RewardError]]:
        """Per answer, in order, a finite float, or why there is none; blocks until all are settled.

        Raises RewardRefused where another try would not help.
        """

    def close(self) -> None:  # noqa: B027 - most rewards hold nothing; closing one is still right
        """Ends what the reward runs beside the caller; may be called twice."""
