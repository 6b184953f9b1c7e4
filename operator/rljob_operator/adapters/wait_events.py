"""The cause of a wait as an Event, so that it stands at the end of `kubectl describe` and not in a condition alone.

Emitted once a cause has lasted, and again as long as it lasts, since the API server forgets Events after an hour. So is
another sentence of the same cause, such as another kind of device that is missing. What a restarted operator emits
again is the same Event once more to its reader.
"""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_api.status import ConditionType, RLJobStatus
from rljob_operator.adapters.event_records import warning
from rljob_operator.adapters.events import EventRecord
from rljob_operator.core.conditions import find, terminal
from rljob_operator.core.readiness import STARTING
from rljob_operator.core.reasons import Reason

PATIENCE_SECONDS = 10.0
"""In a job that starts, pods wait for each other for a moment: that is no news."""

AGAIN_SECONDS = 1500.0
"""Less than what repeats one Event instead of making another (`events.SERIES_SECONDS`)."""

_COUNTED = re.compile(r"\S*\d\S*")
"""Numbers of nodes, pods and restarts, and the names of pods: they change while the cause is the same."""

_NO_CAUSE = frozenset({"", STARTING, "Restarting", *map(str, (Reason.SCALING, Reason.BACKING_OFF, Reason.READY))})
_HAS_ITS_OWN = frozenset(map(str, (Reason.OBJECT_REFUSED, Reason.INFRASTRUCTURE_DOWN, Reason.COORDINATOR_REFUSED)))


@dataclass(slots=True)
class WaitEvents:
    """Of one job."""

    clock: Callable[[], float] = time.time
    _cause: str = ""
    _due: float | None = None
    _again: float = 0.0
    _emitted: set[str] = field(default_factory=set)
    """Sentences of the cause since it was last repeated, without numbers: a wait may go back and forth between two."""

    def of(self, status: RLJobStatus) -> EventRecord | None:
        """What is to be emitted now of the wait that the status tells of."""
        ready, now = find(status, ConditionType.READY), self.clock()
        waits = terminal(status) is None and ready is not None and ready.status == "False"
        if ready is None or not waits or ready.reason in _NO_CAUSE | _HAS_ITS_OWN:
            self._cause, self._due, self._emitted = "", None, set()
            return None
        if ready.reason != self._cause:
            self._cause, self._due, self._emitted = ready.reason, now + PATIENCE_SECONDS, set()
        sentence = _COUNTED.sub("", ready.message)
        is_known = sentence in self._emitted
        # Another sentence has its own patience, which goes on while sentences change.
        soon = now + PATIENCE_SECONDS if self._due is None or self._due == self._again else self._due
        self._due = self._again if is_known else soon
        if now < self._due:
            return None
        self._emitted = {sentence} | (set() if is_known else self._emitted)
        self._again = self._due = now + AGAIN_SECONDS
        return warning(ready.reason, ready.message)

    @property
    def look_again_at(self) -> float | None:
        """When there is something to emit, if the wait goes on."""
        return self._due
