"""The protocol of a reward. Users write functions of this shape; roles score through `Reward`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample as a reward sees it."""

    prompt: str
    response: str
    label: Any
    """The value under labelKey, or the task entry of reasoning_gym."""
    group: int
    index: int


class RewardFunction(Protocol):
    """Scores the samples of one prompt group, in order; may be a plain or an async function."""

    def __call__(self, answers: Sequence[Answer], /) -> Sequence[float] | Awaitable[Sequence[float]]:
        """One float per answer.

        A ValueError says that these answers can never be scored: the job fails at once with its sentence. Anything else
        that is raised, and a call that takes too long, is a failure that a restart may help.
        """
        ...


class Reward(ABC):
    """Scores finished groups. Used by the rollout role; several threads may score at the same time."""

    @abstractmethod
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> list[list[float]]:
        """One finite float per answer, in order; blocks until all are scored.

        Raises RewardError, of the first group in order that has one.
        """

    def close(self) -> None:  # noqa: B027 - most rewards hold nothing; closing one is still right
        """Ends what the reward runs beside the caller; may be called twice."""
