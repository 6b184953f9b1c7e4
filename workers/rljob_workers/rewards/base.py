"""The contract of a reward: answers and scores, the function that users write, the class that roles call, its errors.

Users import `Answer` and `Score` from here. Imports nothing of ours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


class RewardError(Exception):
    """Base of everything that scoring raises; the message names function and prompt."""


class RewardFailed(RewardError):
    """The user's function raised."""


class RewardMissing(RewardError):
    """The user's function has no score for an answer."""


class RewardTimeout(RewardError):
    """The user's function took too long."""


class RewardRefused(RewardError):
    """The user's function cannot work."""


def named_prompt(text: str) -> str:
    """A prompt in a sentence, cut where it is long."""
    return f"the prompt {text if len(text) <= 80 else text[:77] + '...'!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample as a reward sees it."""

    prompt: str
    response: str
    label: Any
    """The value under labelKey, or the task entry of reasoning_gym."""
    group: int
    index: int
    token_ids: Sequence[int] = ()
    """Tokens of the response, those that a tool wrote included."""
    loss_mask: Sequence[int] = ()
    """For each of them 1 where the model drew it, else 0."""
    finish_reason: str = "stop"
    """`stop` or `length`: whether the response ended or was cut off."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The chat of the prompt, each with role and content, and after it any further turns; empty where it is no chat."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The other data columns of the prompt's line."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics that the rollout function measured of the sample."""


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's result for one answer where it has more to say than a float."""

    reward: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures by name; the step's report has the mean of each over the samples that have it."""


@dataclass(frozen=True, slots=True)
class SettledScore:
    """The outcome of one answer."""

    reward: float
    """0.0 where there is none."""
    failure: str | None = None
    """Why it could not be scored, in a sentence: then its sample is not valid. None where it was, or where the job
    gives such answers a score of their own."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """As the step's report names them."""


Given: TypeAlias = "float | Score | None"
"""A user's function gives this for one answer; None where it cannot be scored now."""


class RewardFunction(Protocol):
    """Scores the samples of one prompt group, in order; may be a plain or an async function."""

    def __call__(self, answers: Sequence[Answer], /) -> Sequence[Given] | Awaitable[Sequence[Given]]:
        """One float or Score per answer; None for one that cannot be scored now.

        A ValueError means that these answers can never be scored: the job fails at once with its message. Anything else
        that is raised, and a call that takes too long, leaves all of them without a score. What becomes of an answer
        without one is rollout.reward.onFailure.
        """
        ...


class SampleReward(Protocol):
    """Scores one sample, for `perSample: true`; may be a plain or an async function."""

    def __call__(self, answer: Answer, /) -> Given | Awaitable[Given]:
        """As `RewardFunction`, of one answer; calls for the samples of a prompt run side by side."""
        ...


Outcome: TypeAlias = "float | Score | RewardError"
"""A reward, with metrics named after `reward/` in the step's report, or why there is none."""


class Reward(ABC):
    """Scores finished groups. Used by the rollout role; several threads may score at the same time."""

    @abstractmethod
    def score_groups(self, groups: Sequence[Sequence[Answer]]) -> Sequence[Sequence[Outcome]]:
        """Per answer, in order, a finite reward, or why there is none; blocks until all are settled.

        Raises RewardRefused where another try would not help.
        """

    @property
    def num_resent(self) -> int:
        """Requests of all calls that were sent again, since a try had failed; what `score_groups` settles by itself."""
        return 0

    @property
    def num_unread(self) -> int:
        """Replies of judges, over all calls, that had not exactly one score on the scale."""
        return 0

    def close(self) -> None:  # noqa: B027 - most rewards hold nothing; closing one is still right
        """Ends what the reward runs beside the caller; may be called twice."""


class RewardAround(Reward):
    """A reward that changes how another one is asked, or what it gives; counts and end are the other one's."""

    def __init__(self, reward: Reward) -> None:
        self._inner = reward

    @property
    def num_resent(self) -> int:
        """See `Reward`."""
        return self._inner.num_resent

    @property
    def num_unread(self) -> int:
        """See `Reward`."""
        return self._inner.num_unread

    def close(self) -> None:
        """See `Reward`."""
        self._inner.close()
