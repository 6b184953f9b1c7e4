"""For how long this coordinator could hear anybody. Who listens calls nobody silent for the time it was stopped itself.

Ticked by the event loop, in which requests arrive (`serving`); read by the gate, in the one thread.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.attended import AttendedTime

TICK_SECONDS = 0.2
LONGEST_TICK_SECONDS = 2 * TICK_SECONDS
"""More of the time between two ticks was not listened in."""
DEAF_SECONDS = 5.0
"""Between two ticks: the process was stopped, as when its container or its machine is frozen."""


class Hearing:
    """Seconds, by a clock that also goes on while the process is stopped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._attended = AttendedTime(LONGEST_TICK_SECONDS, clock)
        self._since = self._attended.looked_at
        self.seconds = 0.0
        """In which this coordinator has listened so far."""

    @property
    def since(self) -> float:
        """From when on it has not been stopped."""
        now = self._clock()
        return now if now - self._attended.looked_at > DEAF_SECONDS else self._since

    def tick(self) -> None:
        """The loop has come round."""
        self._since = self.since
        self.seconds += self._attended.look()
