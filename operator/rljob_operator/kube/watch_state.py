"""The state of one watch, or of the census: open or closed, since when, and the cause.

What keeps the cache current writes it, from any thread; probes, metrics and its own supervision read it. No I/O.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_operator.kube.errors import ApiRefused

UNAUTHORIZED = 401
"""The one refusal that a restart may cure: the process then reads its credentials again."""


_log = logging.getLogger(__name__)


@dataclass(slots=True)
class WatchState:
    """A watch is closed before it was opened for the first time."""

    name: str
    """For messages: `the watch of pods in team-a`."""
    resource: str
    """Plural of the kind, for metrics."""
    clock: Callable[[], float] = time.monotonic
    is_open: bool = field(default=False, init=False)
    opened_count: int = field(default=0, init=False)
    """How often it was opened."""
    listed: bool = field(default=False, init=False)
    """Everything was listed once."""
    problem: str = field(default="", init=False)
    """Why it is closed; "" while it is open, and while a watch that has ended in order is begun again."""
    _alive_at: float = field(init=False)
    _answered_at: float | None = field(default=None, init=False)
    """None: it waits for other watches, and asks for nothing yet."""
    _closed_at: float = field(init=False)

    def __post_init__(self) -> None:
        """Counts from here."""
        self._alive_at = self._closed_at = self.clock()

    def age(self) -> float:
        """Seconds since it was opened or has reported anything."""
        return self.clock() - self._alive_at

    def silence(self) -> float:
        """Seconds since the API server has answered anything, be it a refusal that no restart would change."""
        return 0.0 if self._answered_at is None else self.clock() - self._answered_at

    def closed_for(self) -> float:
        """Seconds since it was open; 0 while it is."""
        return 0.0 if self.is_open else self.clock() - self._closed_at

    def begin(self) -> None:
        """The first request is about to be made."""
        self._answered_at = self.clock()

    def opened(self) -> None:
        """The API server has begun a stream, or answered a count."""
        if self.problem:
            _log.warning("%s goes on again, after %.0f s", self.name, self.closed_for())
        self.is_open, self.listed, self.problem = True, True, ""
        self.opened_count += 1
        self.reported()

    def reported(self) -> None:
        """Its stream has brought an event or a bookmark."""
        self._alive_at = self._answered_at = self.clock()

    def answered(self) -> None:
        """The API server has answered a list: the watch is not open by that."""
        self._answered_at = self.clock()

    def ended(self) -> None:
        """The stream is over, without an error."""
        if self.is_open:
            self.is_open, self._closed_at = False, self.clock()

    def broke(self, error: Exception) -> None:
        """It cannot be opened, or its stream has ended by this."""
        if isinstance(error, ApiRefused) and error.status != UNAUTHORIZED:
            self.answered()
        self.failed(str(error) or type(error).__name__)

    def failed(self, problem: str) -> None:
        """It is closed, and the API server has not answered."""
        self.ended()
        if problem != self.problem:
            _log.warning("%s is closed, and is tried again and again: %s", self.name, problem)
        self.problem = problem
