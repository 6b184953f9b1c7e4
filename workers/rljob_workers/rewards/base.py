"""The protocol of a reward. Users write functions of this shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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

    def __call__(self, answers: Sequence[Answer], /) -> Sequence[float]:
        """One float per answer."""
        ...
