"""The coordinators of all jobs: asked for their status in a turn, listened to between the turns.

A turn waits for an answer only so long; a later one finds it. A coordinator that is down costs a retry with back-off.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable

from rljob_api.wire.observation import CoordinatorStatus, EventKind, ServerState
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.coordinator import Access
from rljob_operator.adapters.metrics import Metrics
from rljob_operator.adapters.urgency import urgency_of_events, urgency_of_status
from rljob_operator.adapters.views import JobKey
from rljob_operator.adapters.work_queue import Urgency
from rljob_operator.coordinator_link import CoordinatorError, CoordinatorLink

PATIENCE_SECONDS = 1.0
"""A coordinator that takes longer to answer does not keep a turn from what can be decided without it. It is not waited
for again before it has been faster: where many are out of reach, their turns would leave none for the others."""

FIRST_PATIENCE_SECONDS = 0.2
"""The same for one that was never asked: when an operator begins, that is all of them."""

WAIT_SECONDS = 30.0
"""How long a question for events is held open; the coordinator allows no more. While nothing happens but steps, it is
how old the status gets. A little less each time, so that the jobs do not all write theirs at the same moment."""

RETRY_SECONDS = (0.2, 10.0)

ASK_AGAIN_SECONDS = (1.0, 30.0)
"""When a job whose coordinator did not answer is looked at again unasked: later each time, since a pod that comes back
is announced, and there may be many that do not."""

_QUIET = (EventKind.STEP_TRAINED, EventKind.PUBLISHED)
"""Nothing is decided on these, and there are many of them: they only make the status due, and only end a question when
its time is over."""

_log = logging.getLogger(__name__)


class Coordinator:
    """One job's."""

    def __init__(self, link: CoordinatorLink, wake: Callable[[Urgency], None], metrics: Metrics) -> None:
        self.link = link
        self._wake = wake
        self._metrics = metrics
        self._after = 0
        self._asked: asyncio.Task[CoordinatorStatus | None] | None = None
        self._patience = FIRST_PATIENCE_SECONDS
        self._listening: asyncio.Task[None] | None = None
        self._unanswered = 0
        """Questions in a row."""

    @property
    def ask_again_seconds(self) -> float:
        """In how long to look unasked, where there was no answer. While a question is open its end wakes the job."""
        return ASK_AGAIN_SECONDS[1] if self._asked else backoff_seconds(self._unanswered, *ASK_AGAIN_SECONDS)

    async def status(self) -> CoordinatorStatus | None:
        """What it sees; None if it does not say so soon, then its answer wakes the job.

        From its first answer on it is listened to: what happened before is in the answer, and whatever happens after it
        and may need a decision wakes the job.
        """
        asked = self._asked or await self._begin()
        if not asked.done():
            return None
        self._asked = None
        return asked.result()

    async def close(self) -> None:
        """Asks and listens no more."""
        tasks = [task for task in (self._asked, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> asyncio.Task[CoordinatorStatus | None]:
        """A new question, and some time for its answer."""
        asked = self._asked = asyncio.create_task(self._ask())
        try:
            if self._patience:
                await asyncio.wait({asked}, timeout=self._patience)
        finally:
            if not asked.done():
                asked.add_done_callback(self._answered_late)
        return asked

    def _answered_late(self, asked: asyncio.Task[CoordinatorStatus | None]) -> None:
        if asked.cancelled():
            return
        seen = None if asked.exception() else asked.result()
        self._wake(Urgency.PROGRESS if seen is None else urgency_of_status(seen))

    async def _ask(self) -> CoordinatorStatus | None:
        asked_at = time.monotonic()
        try:
            seen = await self.link.status()
        except CoordinatorError as error:
            self._metrics.coordinator_requests.labels("status", type(error).__name__).inc()
            self._unanswered += 1
            return None
        finally:
            self._patience = PATIENCE_SECONDS if time.monotonic() - asked_at <= PATIENCE_SECONDS else 0.0
        self._metrics.coordinator_requests.labels("status", "ok").inc()
        self._unanswered = 0
        if seen.server is not ServerState.OPENING:  # it may not have read yet what has happened
            self._listen_after(seen.last_event)
        return seen

    def _listen_after(self, last_event: int) -> None:
        if self._listening is None or self._listening.done():
            self._after = last_event
            self._listening = asyncio.create_task(self._listen())
        # A coordinator that lost a tail of its state numbers events again from below.
        self._after = min(self._after, last_event)

    async def _listen(self) -> None:
        failures = 0
        while True:
            try:
                page = await self.link.events(self._after, WAIT_SECONDS * random.uniform(0.8, 1.0), _QUIET)
            except CoordinatorError as error:
                failures += 1
                self._metrics.coordinator_requests.labels("events", type(error).__name__).inc()
                await asyncio.sleep(backoff_seconds(failures, *RETRY_SECONDS) * random.uniform(0.7, 1.0))
                continue
            failures = 0
            self._metrics.coordinator_requests.labels("events", "ok").inc()
            self._after = max([self._after, *(event.id for event in page.events)])
            if page.events:
                self._wake(urgency_of_events(page.events))


class Coordinators:
    """All of them, by job; one is made when its job is first asked about."""

    def __init__(self, access: Access, wake: Callable[[JobKey, Urgency], None], metrics: Metrics) -> None:
        self._access = access
        self._wake = wake
        self._metrics = metrics
        self._known: dict[JobKey, tuple[str, Coordinator]] = {}

    async def of(self, key: JobKey, token: str) -> Coordinator:
        """The coordinator of a job; another token means another job of the same name."""
        known = self._known.get(key)
        if known is not None and known[0] == token:
            return known[1]
        await self.close(key)
        link = CoordinatorLink(self._access.to(key, token))
        made = Coordinator(link, lambda urgency: self._wake(key, urgency), self._metrics)
        self._known[key] = (token, made)
        return made

    async def close(self, key: JobKey) -> None:
        """The job is gone, over or suspended."""
        known = self._known.pop(key, None)
        if known is not None:
            await known[1].close()

    async def close_all(self) -> None:
        """Before the process ends."""
        for key in list(self._known):
            await self.close(key)
