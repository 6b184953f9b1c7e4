"""Contact: whether this launcher was cut off from the coordinator when one of its ranks left for want of it.

Called by `ranks`. A rank that alone cannot reach coordinator or control Redis, as with a wrong password, would do so in
every epoch: that is a failure of it. One whose launcher is cut off, too, is on the wrong side of a network.
"""

from __future__ import annotations

from collections.abc import Callable

LOST_SECONDS = 5.0
"""Without an answer, at most. A poll is held open for a second, and a coordinator that is restarted is back in two."""

AFTER_SECONDS = 10.0
"""How long a rank may still leave for it once the launcher is answered again: an attempt of a rank's takes five."""


class Contact:
    """Of one launcher, from its start on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Counts as answered now."""
        self._clock = clock
        self._answered_at = clock()
        self._back_at: float | None = None
        self.lost_seconds = LOST_SECONDS
        """Half of what a rank does without its coordinator, where that is less."""

    def answered(self) -> None:
        """The coordinator has answered the launcher now."""
        now = self._clock()
        if now - self._answered_at > self.lost_seconds:
            self._back_at = now
        self._answered_at = now

    @property
    def is_cut_off(self) -> bool:
        """Whether it has not been answered for that long, or was not until a moment ago."""
        now, back_at = self._clock(), self._back_at
        is_back = back_at is not None and now - back_at <= AFTER_SECONDS
        return is_back or now - self._answered_at > self.lost_seconds
