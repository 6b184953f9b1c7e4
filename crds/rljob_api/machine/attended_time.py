"""Time in which somebody could look. Who calls others silent counts no time in which it was stopped itself.

For coordinator, launcher and supervisor: each looks at its own pace. Reads no clock but the one that it is given.
"""

from collections.abc import Callable


class AttendedTime:
    """Asked at every look. Of the time between two looks at most `longest_seconds` is attended.

    More than that was spent stopped, as by Ctrl-Z, by a frozen container or by a machine that slept.
    """

    def __init__(self, longest_seconds: float, clock: Callable[[], float]) -> None:
        """`clock` goes on while the process is stopped. The first look is now."""
        self._longest_seconds = longest_seconds
        self._clock = clock
        self.looked_at = clock()
        """The last look."""

    def look(self) -> float:
        """The attended seconds since the last look."""
        now = self._clock()
        passed, self.looked_at = now - self.looked_at, now
        return min(passed, self._longest_seconds)
