"""The restart clock: how long the stages of a restart take, from the sight of its cause. For a histogram only."""

import time
from dataclasses import dataclass

from rljob_operator.adapters.metrics import Metrics
from rljob_operator.core import Event, Reason


@dataclass(slots=True)
class _Running:
    scope: str
    seen_at: float
    ordered: bool = False


class RestartClock:
    """The running restart of one job; a wider one takes over from a narrower one."""

    def __init__(self, metrics: Metrics) -> None:
        self._histogram = metrics.restart_seconds
        self._running: _Running | None = None

    def persisted(self, events: tuple[Event, ...], seen_at: float) -> None:
        """The status with these decisions is in the API server."""
        scopes = {event.scope.value for event in events if event.scope is not None}
        if scopes:
            scope = "Global" if "Global" in scopes else scopes.pop()
            self._running = _Running(scope, seen_at)
            self._observe(scope, "persisted", seen_at)
        if any(event.reason is Reason.READY for event in events) and self._running is not None:
            self._observe(self._running.scope, "ready", self._running.seen_at)
            self._running = None

    def ordered(self) -> None:
        """The coordinator has taken the orders."""
        running = self._running
        if running is not None and not running.ordered:
            running.ordered = True
            self._observe(running.scope, "told", running.seen_at)

    def _observe(self, scope: str, stage: str, since: float) -> None:
        self._histogram.labels(scope, stage).observe(time.monotonic() - since)
