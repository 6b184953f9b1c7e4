"""The time that a simulated job spends instead of computing, by its cost model and its clock.

For `engines.sim` and `trainers.sim_trainer`, in the threads that would compute. Computes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rljob_api.spec.simulation import SimulatedCost

LONGEST_NAP_SECONDS = 0.25
"""Between two pulses."""


CREDIT_SECONDS = 0.01
"""How much of what a nap took too long the next work is shorter by; a process that was stopped makes up for no more."""


def no_progress() -> None:
    """No wait is for a pulse."""


class SimulatedPace:
    """Spends what one kind of work takes."""

    def __init__(
        self,
        cost: SimulatedCost,
        speed: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cost = cost
        self._speed = speed
        self._clock = clock
        self._sleep = sleep
        self._due = clock()
        """When the work so far is done."""

    def spend(self, *, tokens: int = 0, rows: int = 0, progress: Callable[[], None] = no_progress) -> None:
        """Returns when that much work is done; calls `progress` on the way."""
        seconds = tokens * self._cost.seconds_per_token + rows * self._cost.seconds_per_row
        if seconds <= 0:
            return
        self._due = max(self._due, self._clock() - CREDIT_SECONDS) + seconds / self._speed
        while (left := self._due - self._clock()) > 0:
            self._sleep(min(left, LONGEST_NAP_SECONDS))
            progress()
