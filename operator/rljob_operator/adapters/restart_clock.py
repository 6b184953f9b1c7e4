"""The restart clock: how long the stages of a restart take, from the sight of its cause. For a histogram only."""

import time
from dataclasses import dataclass

from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.views import JobKey
from rljob_operator.core import Event, Reason


@dataclass(slots=True)
class _Running:
    scope: str
    seen_at: float
    told: bool = False


class RestartClock:
    """One running restart a job; a wider one takes over from a narrower one."""

    def __init__(self, metrics: Metrics) -> None:
        self._histogram = metrics.restart_seconds
        self._running: dict[JobKey, _Running] = {}

    def forget(self, key: JobKey) -> None:
        """The job is gone."""
        self._running.pop(key, None)

    def persisted(self, key: JobKey, events: tuple[Event, ...], seen_at: float) -> None:
        """The status with these decisions is in the API server."""
        scopes = {event.scope.value for event in events if event.scope is not None}
        if scopes:
            scope = "Global" if "Global" in scopes else scopes.pop()
            self._running[key] = _Running(scope, seen_at)
            self._observe(scope, "persisted", seen_at)
        if any(event.reason is Reason.READY for event in events) and key in self._running:
            running = self._running.pop(key)
            self._observe(running.scope, "ready", running.seen_at)

    def told(self, key: JobKey) -> None:
        """The coordinator has taken the orders."""
        running = self._running.get(key)
        if running is not None and not running.told:
            running.told = True
            self._observe(running.scope, "told", running.seen_at)

    def _observe(self, scope: str, stage: str, since: float) -> None:
        self._histogram.labels(scope, stage).observe(time.monotonic() - since)
