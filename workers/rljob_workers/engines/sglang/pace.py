"""How many tokens of a sample a stream gathers before it tells of them. Pure.

Each event costs server and client as much as some tokens: they shall be few, and yet come about once a second, since
who waits takes a sample that stands still for lost.
"""

from __future__ import annotations

EVENTS_PER_SECOND = 1.0
FIRST_INTERVAL = 16
"""Until a rate is known; a slow server's first events come late enough."""
LONGEST_INTERVAL = 256
_MEMORY = 0.9


class Pace:
    """Learns the rate of one sample from those before it."""

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._tokens_per_second: float | None = None

    @property
    def interval(self) -> int:
        """Tokens between two events of the next sample."""
        if self._tokens_per_second is None:
            return FIRST_INTERVAL
        return max(1, min(LONGEST_INTERVAL, int(self._tokens_per_second / EVENTS_PER_SECOND)))

    def learn(self, num_tokens: int, seconds: float) -> None:
        """Of a sample that has ended. One that waited longer than it grew makes the interval shorter, never longer."""
        if num_tokens == 0 or seconds <= 0:
            return
        rate, before = num_tokens / seconds, self._tokens_per_second
        self._tokens_per_second = rate if before is None else _MEMORY * before + (1 - _MEMORY) * rate
