"""Follows one coordinator: requests its status on demand and long-polls its events.

`rljob run` and the operator share it. The owner sets the time limits and receives the events. It decides nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, ServerState
from rljob_operator.coordinator_client.link import ANSWER_SECONDS, CoordinatorError, CoordinatorLink, CoordinatorTooLong
from rljob_operator.rate_limit import Budget, Rate

QUIET = (EventKind.STEP_TRAINED, EventKind.PUBLISHED)
"""Nothing is decided on these, and there are many of them."""


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """How long its owner waits for what."""

    patience_seconds: float
    """A coordinator that takes longer to say its status does not keep its owner from what can be decided without it. It
    is not waited for again before it has been faster."""
    first_patience_seconds: float
    """The same for the first answer."""
    wait_seconds: Callable[[], float]
    """How long a question for events may be held open."""
    retry_seconds: Callable[[int], float]
    """Before events are asked for again after so many failures in a row."""
    quiet: tuple[EventKind, ...] = ()
    """Kinds of events that end a question for events only when its time is over."""
    look_back: int = 0
    """So many events before the first answer are heard as well."""
    status_seconds: float = ANSWER_SECONDS
    """A question for the status that takes longer has no answer."""
    listening: Rate | None = None
    """How often events may be asked for: one that always has some would be asked without end. None: as it likes."""


class FollowerOwner(Protocol):
    """Who follows it."""

    def hear(self, events: Sequence[CoordinatorEvent], /) -> None:
        """Events, each once, in their order."""

    def note_request(self, what: str, error: CoordinatorError | None, /) -> None:
        """A question for `what` (status or events) has its answer, or did not get one."""

    def wake(self, seen: CoordinatorStatus | None, /) -> None:
        """The answer to a question for the status that was not waited for is there; None: there is none."""


@dataclass(slots=True)
class EventCursor:
    """The last event that was heard."""

    after: int = 0
    is_lost: bool = False
    """What was told since is not heard any more: the next status says what has come of it."""

    def heard(self, events: Sequence[CoordinatorEvent]) -> None:
        """A page of events that come after it."""
        self.after = max([self.after, *(event.id for event in events)])

    def seen(self, status: CoordinatorStatus, after: int) -> None:
        """What the coordinator said, asked when `after` was the last event here.

        A coordinator that lost a tail of its state numbers events again from below. One that has not read its state yet
        knows of none.
        """
        if status.server is not ServerState.OPENING and (self.is_lost or status.last_event < after):
            self.after, self.is_lost = status.last_event, False


class CoordinatorFollower:
    """One question for the status at a time, and one long poll for events."""

    def __init__(
        self,
        link: CoordinatorLink,
        owner: FollowerOwner,
        pace: FollowerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Asks nothing yet."""
        self._link = link
        self._owner = owner
        self._pace = pace
        self._clock = clock
        self._patience = pace.first_patience_seconds
        self._question: asyncio.Task[CoordinatorStatus | None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.cursor = EventCursor()
        self.unanswered = 0
        """Questions for the status in a row."""
        self.took_seconds = 0.0
        """The last question for the status."""

    @property
    def is_asking(self) -> bool:
        """Whether a question for the status is open: its end wakes the owner."""
        return self._question is not None

    async def status(self) -> CoordinatorStatus | None:
        """What it sees; None if it does not say so soon, then its answer wakes the owner.

        It is listened to at the latest from its first answer on: what happened before is in the answer.
        """
        question = self._question or await self._begin()
        if self._question is not question or not question.done():
            return None
        self._question = None
        return question.result()

    def listen_after(self, event: int) -> None:
        """Listens from here on to everything that comes after this event."""
        self.cursor.after = event
        self._listening = asyncio.create_task(self._listen())

    async def catch_up(self, wait_seconds: float) -> bool:
        """Hears one page; whether there was anything on it."""
        page = await self._link.events(self.cursor.after, wait_seconds, self._pace.quiet)
        self.cursor.heard(page.events)
        if page.events:
            self._owner.hear(page.events)
        return bool(page.events)

    def drop_question(self) -> None:
        """Whoever was asked for the status is gone."""
        question, self._question = self._question, None
        if question is not None:
            question.cancel()

    async def close(self) -> None:
        """Asks and listens no more."""
        tasks = [task for task in (self._question, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> asyncio.Task[CoordinatorStatus | None]:
        """A new question, and some time for its answer."""
        question = self._question = asyncio.create_task(self._ask())
        try:
            if self._patience:
                await asyncio.wait({question}, timeout=self._patience)
        finally:
            if not question.done():
                question.add_done_callback(self._answered_late)
        return question

    def _answered_late(self, question: asyncio.Task[CoordinatorStatus | None]) -> None:
        if not question.cancelled():
            self._owner.wake(None if question.exception() else question.result())

    async def _ask(self) -> CoordinatorStatus | None:
        asked_at, after = self._clock(), self.cursor.after
        try:
            try:
                seen = await self._link.status(self._pace.status_seconds)
            finally:
                self.took_seconds, patience = self._clock() - asked_at, self._pace.patience_seconds
                self._patience = patience if self.took_seconds <= patience else 0.0
        except CoordinatorError as error:
            self.unanswered += 1
            self._owner.note_request("status", error)
            return None
        self.unanswered = 0
        self._owner.note_request("status", None)
        self.cursor.seen(seen, after)
        if seen.server is not ServerState.OPENING:  # it may not have read yet what has happened
            self._listen_at_the_latest(seen.last_event)
        return seen

    def _listen_at_the_latest(self, last_event: int) -> None:
        if self._listening is None:
            self.listen_after(max(0, last_event - self._pace.look_back))
        elif self._listening.done():
            self.listen_after(self.cursor.after)

    async def _listen(self) -> None:
        failures = 0
        budget = None if self._pace.listening is None else Budget(self._pace.listening)
        while True:
            if budget is not None:
                await asyncio.sleep(budget.free_at(self._clock()) - self._clock())
                budget.spend(self._clock())
            try:
                await self.catch_up(self._pace.wait_seconds())
            except CoordinatorError as error:
                failures += 1
                self.cursor.is_lost |= isinstance(error, CoordinatorTooLong)
                self._owner.note_request("events", error)
                await asyncio.sleep(self._pace.retry_seconds(failures))
                continue
            failures = 0
            self._owner.note_request("events", None)
