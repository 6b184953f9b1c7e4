"""What a launcher waits for, in its log: after a while, and then now and again.

Called from the loops of `replica` and `launcher`. Decides nothing: how long a pod may wait, the supervisor decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG_SECONDS = 30.0
"""Between two lines about one wait."""


class WaitLog:
    """One wait: from its making, or the last `end`, on."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self.end()

    def end(self) -> None:
        """It is over; the next one begins."""
        self._begun = self._logged = self._clock()

    def turn(self, sentence: str) -> None:
        """It goes on; `sentence` says who waits for what."""
        now = self._clock()
        if now - self._logged >= LOG_SECONDS:
            self._logged = now
            self._log.info("%s (for %.0f s by now)", sentence, now - self._begun)
