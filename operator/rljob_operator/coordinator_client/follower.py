"""Follows one coordinator: requests its status on demand and long-polls its events.

`rljob run` and the operator share it: each extends `CoordinatorFollower` by what it does with events and late answers.
It decides nothing.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind, ServerState
from rljob_operator.coordinator_client.link import ANSWER_SECONDS, CoordinatorError, CoordinatorLink, CoordinatorTooLong
from rljob_operator.rate_limit import Budget, Rate, backoff_seconds

QUIET = (EventKind.STEP_TRAINED, EventKind.PUBLISHED)
"""Nothing is decided on these, and there are many of them."""


@dataclass(frozen=True, slots=True)
class FollowerLimits:
    """How long a follower waits for what."""

    patience_seconds: float
    """A coordinator that takes longer to answer a status request does not delay what can be decided without it. It is
    not waited for again before it has been faster."""
    first_patience_seconds: float
    """The same for the first answer."""
    wait_seconds: float
    """Longest time for which the coordinator may hold an events request open."""
    retry_seconds: tuple[float, float]
    """Before events are requested again after a failure: the first time, and the longest of a backoff."""
    spread: bool = False
    """Whether both times are shortened at random, so that many followers do not request at the same moment."""
    quiet: tuple[EventKind, ...] = ()
    """Kinds of events that end an events request only when its time is over."""
    earlier_events: int = 0
    """So many events before the first answer are received as well."""
    status_seconds: float = ANSWER_SECONDS
    """A status request that takes longer has no answer."""
    listening: Rate | None = None
    """How often events may be requested: a coordinator that always has some would be asked without end. None: any."""


class CoordinatorFollower:
    """One status request at a time, and one long poll for events."""

    def __init__(
        self, link: CoordinatorLink, limits: FollowerLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Requests nothing yet."""
        self.link = link
        self._limits = limits
        self._clock = clock
        self._patience = limits.first_patience_seconds
        self._question: asyncio.Task[CoordinatorStatus | None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._after = 0
        """Id of the last event that was received."""
        self.last_before = 0
        """Id of the last event before the first answer: those up to it may be old."""
        self._is_lost = False
        """Events after it can no longer be received: the next status has what has come of them."""
        self.unanswered = 0
        """Status requests in a row."""
        self.took_seconds = 0.0
        """The last status request."""

    def receive(self, events: Sequence[CoordinatorEvent]) -> None:
        """New events, each once, in their order."""

    def request_ended(self, what: str, error: CoordinatorError | None, /) -> None:
        """A request for `what` (status or events) has its answer, or failed."""

    def answered_late(self, seen: CoordinatorStatus | None, /) -> None:
        """A status request that `status` did not wait for has ended; None: without an answer."""

    @property
    def is_asking(self) -> bool:
        """Whether a status request is open: at its end `answered_late` is called."""
        return self._question is not None

    async def status(self) -> CoordinatorStatus | None:
        """What it sees; None if it does not answer soon, then `answered_late` is called with the answer.

        Events are received at the latest from the first answer on: what happened before is in the answer.
        """
        question = self._question or await self._begin()
        if self._question is not question or not question.done():
            return None
        self._question = None
        return question.result()

    def listen_after(self, event: int) -> None:
        """Receives from here on everything that comes after this event."""
        self._after = event
        self._listening = asyncio.create_task(self._listen())

    async def catch_up(self, wait_seconds: float) -> bool:
        """Receives one page; whether there was anything on it."""
        page = await self.link.events(self._after, wait_seconds, self._limits.quiet)
        if page.events:
            self._after = max(self._after, *(event.id for event in page.events))
            self.receive(page.events)
        return bool(page.events)

    def drop_question(self) -> None:
        """The process that was asked for its status has ended."""
        question, self._question = self._question, None
        if question is not None:
            question.cancel()

    async def close(self) -> None:
        """Requests no more."""
        tasks = [task for task in (self._question, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> asyncio.Task[CoordinatorStatus | None]:
        """A new status request, and some time for its answer."""
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
            self.answered_late(None if question.exception() else question.result())

    async def _ask(self) -> CoordinatorStatus | None:
        asked_at, after = self._clock(), self._after
        try:
            try:
                seen = await self.link.status(self._limits.status_seconds)
            finally:
                self.took_seconds, patience = self._clock() - asked_at, self._limits.patience_seconds
                self._patience = patience if self.took_seconds <= patience else 0.0
        except CoordinatorError as error:
            self.unanswered += 1
            self.request_ended("status", error)
            return None
        self.unanswered = 0
        self.request_ended("status", None)
        if seen.server is not ServerState.OPENING:  # it may not have read yet what has happened
            if self._is_lost or seen.last_event < after:
                # A coordinator that lost a tail of its state numbers events again from below.
                self._after, self._is_lost = seen.last_event, False
            self._listen_at_the_latest(seen.last_event)
        return seen

    def _listen_at_the_latest(self, last_event: int) -> None:
        if self._listening is None:
            self.last_before = last_event
            self.listen_after(max(0, last_event - self._limits.earlier_events))
        elif self._listening.done():
            self.listen_after(self._after)

    async def _listen(self) -> None:
        failures = 0
        budget = None if self._limits.listening is None else Budget(self._limits.listening)
        while True:
            if budget is not None:
                await asyncio.sleep(budget.free_at(self._clock()) - self._clock())
                budget.spend(self._clock())
            try:
                await self.catch_up(self._limits.wait_seconds * self._spread(0.8))
            except CoordinatorError as error:
                failures += 1
                self._is_lost |= isinstance(error, CoordinatorTooLong)
                self.request_ended("events", error)
                await asyncio.sleep(backoff_seconds(failures, *self._limits.retry_seconds) * self._spread(0.7))
                continue
            failures = 0
            self.request_ended("events", None)

    def _spread(self, least: float) -> float:
        return random.uniform(least, 1.0) if self._limits.spread else 1.0
