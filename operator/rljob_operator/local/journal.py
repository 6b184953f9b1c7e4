"""The journal: everything that the supervisor writes down and shows, in one place and one order.

Status first, then the event that tells of it; both before anything is done, so that what was done can be read.
"""

import time

from rljob_api.status import RLJobStatus
from rljob_api.times import timestamp
from rljob_api.wire.observation import CoordinatorEvent, EventKind, QueueObservation
from rljob_operator.core import Decision, Event
from rljob_operator.core.told import told
from rljob_operator.local.metrics import step_line
from rljob_operator.local.run_folder import RunFolder
from rljob_operator.local.view import View

PROGRESS_SECONDS = 1.0
"""Progress alone rewrites status.json this often."""


class Journal:
    """Writes status, events and metrics of one start, and tells the view."""

    def __init__(self, folder: RunFolder, view: View, status: RLJobStatus) -> None:
        self._folder = folder
        self._view = view
        self._written_at = 0.0
        self._unwritten = False
        self._started_at = time.time()
        self.status = status
        """As last persisted."""

    def persist(self, decision: Decision) -> None:
        """Durably where something was decided; progress now and then."""
        decided = bool(decision.events) or decision.status.restart != self.status.restart
        self._unwritten = self._unwritten or decision.status != self.status
        self.status = decision.status
        now = time.monotonic()
        if decided or (self._unwritten and now - self._written_at >= PROGRESS_SECONDS):
            self._folder.write_status(decision.status, durable=decided)
            self._written_at = now
            self._unwritten = False
        for event in decision.events:
            self.emit(event)
        self._view.status(decision.status)

    def begin(self, status: RLJobStatus, event: Event) -> None:
        """The first status of a start."""
        self.status = status
        self._folder.write_status(status, durable=True)
        self.emit(event)

    def flush(self) -> None:
        """The last status of a start."""
        self._folder.write_status(self.status, durable=True)

    def emit(self, event: Event) -> None:
        """An event of the core."""
        role = event.role.value if event.role is not None else None
        scope = event.scope.value if event.scope is not None else None
        self.note(event.time, event.reason.value, event.message, role=role, scope=scope)

    def note(self, at: float, reason: str, message: str, *, role: str | None = None, scope: str | None = None) -> None:
        """A line of events.jsonl."""
        line = {"time": timestamp(at), "reason": reason, "role": role, "scope": scope, "message": message}
        self._folder.append_event(line)
        self._view.event(line)

    def hear(self, event: CoordinatorEvent, queue: QueueObservation | None) -> None:
        """An event of the coordinator. A step that is told twice is written once."""
        line = step_line(event, queue) if event.kind is EventKind.STEP_TRAINED else None
        if line is not None and self._folder.append_step(line):
            self._view.step(line)
        ours = told(event, self.status)
        if ours is not None and event.at >= self._started_at:
            self.emit(ours)
