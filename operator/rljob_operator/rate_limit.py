"""Rate limits: a token bucket of one job, and the exponential backoff of whatever is retried.

Pure: the caller passes the time. Called by every room that repeats requests; it sleeps and logs nothing.
"""

from dataclasses import dataclass

_NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Rate:
    """What is allowed."""

    burst: int
    """So many at once."""
    every_seconds: float
    """Then one in so long; the burst comes back as slowly."""


@dataclass(slots=True)
class Budget:
    """What one job has used of it."""

    rate: Rate
    _full_at: float = _NEVER
    """When the whole burst will be there again."""

    def free_at(self, now: float) -> float:
        """When the next one is allowed; not before `now`."""
        return max(now, self._full_at - (self.rate.burst - 1) * self.rate.every_seconds)

    def is_whole(self, now: float) -> bool:
        """Whether it is as if nothing had ever been done."""
        return self._full_at <= now

    def spend(self, now: float) -> None:
        """One was done."""
        self._full_at = max(now, self._full_at) + self.rate.every_seconds


_MOST_DOUBLINGS = 16
"""A float has an end."""


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds after so many failures in a row (1: the first one): `first`, then twice as long each time."""
    return min(longest, first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
