"""The pace of a run: figures over the last steps, since those of a single step jump about. Pure.

Used by the views. Fed with lines of metrics.jsonl in their order.
"""

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

WINDOW_STEPS = 10


class Pace:
    """Means over the last ten steps of an epoch; None until there are two to measure between."""

    def __init__(self) -> None:
        """Before the first step."""
        self._window: deque[Mapping[str, Any]] = deque(maxlen=WINDOW_STEPS + 1)
        self._first_rewards: list[float] = []

    def add(self, line: Mapping[str, Any]) -> None:
        """One more step. A new epoch is measured from its own first step, without the gap before it."""
        if self._window and self._window[-1]["epoch"] != line["epoch"]:
            self._window.clear()
        self._window.append(line)
        if len(self._first_rewards) < WINDOW_STEPS:
            self._first_rewards.append(line["reward"])

    @property
    def reward(self) -> float | None:
        """Mean of the last steps."""
        return fmean(line["reward"] for line in list(self._window)[-WINDOW_STEPS:]) if self._window else None

    @property
    def first_reward(self) -> float | None:
        """Mean of the first ten steps, once there are more than these."""
        return fmean(self._first_rewards) if len(self._window) > WINDOW_STEPS else None

    @property
    def samples_per_second(self) -> float | None:
        """From the end of one step to the end of another."""
        return self._rate("samples")

    @property
    def tokens_per_second(self) -> float | None:
        """Likewise."""
        return self._rate("tokens")

    @property
    def seconds_per_step(self) -> float | None:
        """Likewise."""
        seconds = self._seconds()
        return seconds / (len(self._window) - 1) if seconds is not None else None

    def _rate(self, counted: str) -> float | None:
        seconds = self._seconds()
        return sum(line[counted] for line in list(self._window)[1:]) / seconds if seconds is not None else None

    def _seconds(self) -> float | None:
        if len(self._window) < 2:
            return None
        return max(float(self._window[-1]["time"] - self._window[0]["time"]), 1e-9)
