"""Budget: how often something may be done for one job, so that a job that asks for ever costs the others nothing.

Pure: it is told the time. A burst is free, since much happens at once where a job starts or a node is lost; what comes
on and on is spaced out (the generic cell rate algorithm).
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
