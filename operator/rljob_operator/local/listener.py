"""The listener: follows the coordinator's events, writes them down, and wakes the supervisor if it matters."""

import asyncio
from collections.abc import Callable

from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, QueueObservation, ServerState
from rljob_operator.coordinator_link import CoordinatorError, CoordinatorLink
from rljob_operator.local.journal import Journal

WAIT_SECONDS = 10.0
RETRY_SECONDS = 0.1

_QUIET = (EventKind.STEP_TRAINED, EventKind.PUBLISHED)
"""Nothing is decided on these; there are many of them."""


class Listener:
    """One long poll at a time. A coordinator that lost a tail of its state numbers events again from below."""

    def __init__(self, link: CoordinatorLink, journal: Journal, wake: Callable[[], None]) -> None:
        self._link = link
        self._journal = journal
        self._wake = wake
        self.after = 0
        """The last event that was heard."""
        self.queue: QueueObservation | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.catch_up(WAIT_SECONDS)
            except CoordinatorError:
                await asyncio.sleep(RETRY_SECONDS)

    async def catch_up(self, wait_seconds: float) -> bool:
        """Reads one page; whether there was anything on it."""
        page = await self._link.events(self.after, wait_seconds)
        for event in page.events:
            self._hear(event)
        return bool(page.events)

    def seen(self, status: CoordinatorStatus, after: int) -> None:
        """What the coordinator said, asked when `after` was the last event here.

        If its newest event is below that, its numbers began again from below.
        """
        if status.server is not ServerState.OPENING and status.last_event < after:
            self.after = status.last_event

    def _hear(self, event: CoordinatorEvent) -> None:
        self.after = event.id
        self._journal.hear(event, self.queue)
        if event.kind not in _QUIET:
            self._wake()
