"""A clock of the time in which its owner could look: silence of others counts none in which the owner was stopped.

For coordinator, launcher and supervisor, each of which ticks it at its own pace. Reads no clock but the one that it is
given.
"""

from collections.abc import Callable

FROZEN_SECONDS = 5.0
"""Between two ticks: the process was stopped, as when its container or its machine is frozen."""


class AttendedClock:
    """Ticked in every turn of its owner's loop. Silence is `seconds` now less `seconds` when it began.

    Of the time between two ticks at most `longest_step` is attended. More than that was spent stopped, as by Ctrl-Z, by
    a frozen container or by a machine that slept.
    """

    def __init__(self, longest_step: float, clock: Callable[[], float]) -> None:
        """`clock` goes on while the process is stopped. The first tick is now."""
        self._longest_step = longest_step
        self._clock = clock
        self._ticked_at = self._running_since = clock()
        self.seconds = 0.0
        """Attended so far, as of the last tick."""

    def tick(self) -> float:
        """The attended seconds so far, now."""
        self._running_since = self.running_since
        now = self._clock()
        self.seconds += min(now - self._ticked_at, self._longest_step)
        self._ticked_at = now
        return self.seconds

    @property
    def running_since(self) -> float:
        """The time of `clock` since which the process has not been stopped; now, where it was until now."""
        now = self._clock()
        return now if now - self._ticked_at > FROZEN_SECONDS else self._running_since
