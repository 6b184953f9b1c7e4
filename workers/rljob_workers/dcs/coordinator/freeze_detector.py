"""For how long this coordinator could receive requests: while it was stopped itself, nobody counts as silent.

Ticked by the event loop, in which requests arrive (`serving`); read by the gate, in the one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.attended import AttendedTime

TICK_SECONDS = 0.2
LONGEST_TICK_SECONDS = 2 * TICK_SECONDS
"""What is beyond this between two ticks is not counted: the loop did not run then."""
FROZEN_SECONDS = 5.0
"""Between two ticks: the process was stopped, as when its container or its machine is frozen."""


class FreezeDetector:
    """Seconds, by a clock that also goes on while the process is stopped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attended = AttendedTime(LONGEST_TICK_SECONDS, clock)
        self._since = self._attended.looked_at
        self.seconds = 0.0
        """In which this coordinator could receive requests so far."""

    @property
    def since(self) -> float:
        """From when on it has not been stopped."""
        now = self._clock()
        return now if now - self._attended.looked_at > FROZEN_SECONDS else self._since

    def tick(self) -> None:
        """The loop has come round."""
        self._since = self.since
        self.seconds += self._attended.look()
