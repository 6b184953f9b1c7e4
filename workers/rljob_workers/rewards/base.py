"""The contract of a reward: answers and scores, the function that users write, the class that roles call, its errors.

Users import `Answer` from here. Imports nothing of ours.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence


_OURS = "rljob_workers."


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


def user_place(error: BaseException) -> str:
    """File and line in the user's code that raised, as ` (FILE, line N)`; empty where there is none.

    Of its frames the innermost that is no library's.
    """
    frames = [(frame.tb_frame.f_code.co_filename, frame.tb_lineno) for frame in _users(error)]
    own = [frame for frame in frames if "site-packages" not in frame[0] and not frame[0].startswith("<")]
    library = traceback.__file__.rpartition("/")[0]
    found = [frame for frame in own if not frame[0].startswith(f"{library}/")] or frames[:1]
    return f" ({found[-1][0]}, line {found[-1][1]})" if found else ""


def user_traceback(error: BaseException) -> str:
    """The traceback of what a user's code raised, from where our code called it."""
    first = next(_users(error), None)
    return "".join(traceback.format_exception(type(error), error, first)).rstrip()


def _users(error: BaseException) -> Iterator[TracebackType]:
    """The frames below our call and below the machinery of imports."""
    trace, is_below = error.__traceback__, False
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        is_below = is_below or not name.startswith((_OURS, "importlib", "_frozen_importlib"))
        if is_below:
            yield trace
        trace = trace.tb_next


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

        A ValueError means that these answers can never be scored: the job fails at once with its message. Anything else
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
