"""When the job last came forward, by the word of its ranks' beats.

Used by the coordinator in its thread, and told to the supervisor with the status. In memory alone: what a coordinator
that began anew cannot know, it takes for having happened when it began, so that its death makes no job a stalled one.
"""

from __future__ import annotations

from collections.abc import Callable

from rljob_api.wire.ranks import Beat


class Advance:
    """The newest growth of any rank's progress."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at = clock()
        self._known: dict[str, int] = {}
        """Incarnation -> the highest progress that it told."""

    def hear(self, beat: Beat) -> None:
        """Notes the beat of a living rank."""
        name = beat.life.incarnation
        if beat.progress > self._known.get(name, 0):
            self._known[name] = beat.progress
            self._at = self._clock()

    def forget(self, incarnation: str) -> None:
        """A life is over; what it did still counts."""
        self._known.pop(incarnation, None)

    def epoch_opened(self) -> None:
        """All lives are over."""
        self._known.clear()

    def age_seconds(self) -> float:
        """Since the job last came forward."""
        return self._clock() - self._at
