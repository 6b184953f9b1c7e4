"""A reward that takes its time, so that a job trains for as long as a test kills it, and leaves the CPU to others."""

import time
from collections.abc import Sequence
from pathlib import Path

from rljob_workers.rewards.base import Answer

SECONDS = 0.6
LONG_SECONDS = 1.0


def slow(answers: Sequence[Answer], /) -> list[float]:
    """The share of characters at their place, after a while; calls of one rollout overlap."""
    time.sleep(SECONDS)
    return _shares(answers)


def slower(answers: Sequence[Answer], /) -> list[float]:
    """The same after a longer while."""
    time.sleep(LONG_SECONDS)
    return _shares(answers)


def gated(answers: Sequence[Answer], /) -> list[float]:
    """Slower still, until there is a file `go` beside this one: then the job runs to its end at once."""
    if not Path(__file__).with_name("go").exists():
        time.sleep(2 * LONG_SECONDS)
    return _shares(answers)


def raising(answers: Sequence[Answer], /) -> list[float]:
    """No score for any answer."""
    raise ValueError(f"no score for {len(answers)} answers")


def _shares(answers: Sequence[Answer]) -> list[float]:
    return [sum(a == b for a, b in zip(answer.response, answer.label, strict=False)) / 3 for answer in answers]
