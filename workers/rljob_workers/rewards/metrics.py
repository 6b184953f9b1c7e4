"""The metrics of rewards: how users' are checked, and their names in the step's report, where all begin with `reward/`.

Of the only reward of a job METRIC; of one of several NAME, its value before its weight, and NAME/METRIC. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import SupportsFloat, cast

from rljob_workers.rewards.base import RewardFailed, RewardRefused, Score

PREFIX = "reward/"


MAX_METRICS = 64
"""Different names that one reward may have, over all its answers: each is a figure of every step."""


MAX_OF_SUM = 200
"""Metrics of all rewards of a sum together: a row has room for them and for those of its rollout function."""


RESERVED = ("mean", "std")
"""The step's report has these of every job's reward."""


_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


_MAX_CHARACTERS = 64


MAX_REWARD = 3.4028234663852886e38
"""Rows carry rewards as float32."""


def as_number(value: object) -> float | None:
    """None for what is no number; numbers written as text are none. May be NaN or infinite."""
    if isinstance(value, str | bytes):
        return None
    try:
        return float(cast("SupportsFloat", value))
    except OverflowError:
        return math.inf
    except (TypeError, ValueError):
        return None


def is_reward(number: float) -> bool:
    """Whether it is finite, also as float32."""
    return math.isfinite(number) and abs(number) <= MAX_REWARD


def checked_metrics(where: str, metrics: object) -> dict[str, float]:
    """A user's metrics as floats. Sentences begin with `where` (field and function).

    RewardRefused for what can be none, RewardFailed for NaN and infinite ones.
    """
    if not isinstance(metrics, Mapping):
        raise RewardRefused(f"{where} returned a Score whose metrics are {metrics!r:.80}. Give a mapping of floats.")
    return {name: _checked(where, name, value) for name, value in metrics.items()}


def _checked(where: str, name: object, value: object) -> float:
    if not isinstance(name, str) or len(name) > _MAX_CHARACTERS or not _NAME.fullmatch(name):
        raise RewardRefused(
            f"{where} returned the metric {name!r:.80} = {value!r:.80}. Its name is at most {_MAX_CHARACTERS} letters,"
            " digits, underscores, full stops, hyphens and slashes between them."
        )
    if name in RESERVED:
        raise RewardRefused(
            f"{where} returned the metric {name!r} = {value!r:.80}. Every step reports {PREFIX}{name} of the"
            " whole reward: give it another name."
        )
    number = as_number(value)
    if number is not None and math.isfinite(number):
        return number
    sentence = (
        f"{where} returned the metric {name!r} = {value!r:.80}. A metric is a finite float; leave it out where there is"
        " none."
    )
    raise RewardRefused(sentence) if number is None else RewardFailed(sentence)


class MetricNames:
    """The names that one reward has used so far. Threads may share it."""

    def __init__(self, where: str, limit: int = MAX_METRICS) -> None:
        """`where`: field and function, the beginning of sentences."""
        self._where = where
        self._limit = limit
        self._seen: frozenset[str] = frozenset()

    def add(self, names: Iterable[str]) -> None:
        """RewardRefused where they become too many."""
        added = frozenset(names)
        if added <= self._seen:
            return
        self._seen |= added
        if len(self._seen) > self._limit:
            shown = ", ".join(sorted(added)[:3])
            raise RewardRefused(
                f"{self._where} has returned more than {self._limit} different metrics, the last of them {shown}. Each"
                " is a figure of every step: name what is measured, not what it is measured of."
            )


def of_component(name: str, outcome: float | Score) -> dict[str, float]:
    """Value and metrics of one of several rewards."""
    if not isinstance(outcome, Score):
        return {name: outcome}
    return {name: outcome.reward, **{f"{name}/{metric}": value for metric, value in outcome.metrics.items()}}
