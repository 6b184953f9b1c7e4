"""A rank's access to its engine: its client, the event loop that calls it, its process, and the clock of its progress.

Used by the rollout loop, the groups in work, sync and verification. Knows no backend.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rljob_workers.dcs.membership.rank_context import RankContext
from rljob_workers.engines import backend_of
from rljob_workers.engines.base import Engine, EngineAway, EngineGone, EngineRefused, EngineStalled, EngineTimeout
from rljob_workers.engines.incarnation import await_engine, end_engine
from rljob_workers.transfer_queue.types import Ticket

_Answer = TypeVar("_Answer")


class EventLoopThread:
    """The thread and its loop.

    with closing(EventLoopThread("generation")) as events:
        events.call(engine.abort_all())
    """

    def __init__(self, name: str) -> None:
        """Runs at once."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, _Answer]) -> Future[_Answer]:
        """Runs `work` as a task; cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Runs `work` and waits for it, never from the loop's own thread. What it waits for has its own deadlines."""
        assert threading.current_thread() is not self._thread, "the loop would wait for itself"
        return self.begin(work).result()

    def close(self) -> None:
        """Cancels all tasks, waits until they have cleaned up, and ends the thread."""
        self.call(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def watched(work: Coroutine[Any, Any, _Answer], check: Callable[[], object], *, every: float) -> _Answer:
    """The answer. `check` is called every so many seconds meanwhile, and may raise to give the work up.

    Work that is given up, or whose caller is cancelled, is waited for until it has cleaned up.
    """
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=every))[0]:
            check()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


CREDITED_BEGINNINGS = 3
"""A long answer that is lost to a dead engine twice still makes progress; one that is begun for ever does not. One that
goes on behind more tokens than ever before (`rollout.partial`) has grown: its beginnings are counted from nothing."""


ROLLOUTS_REMEMBERED = 128
"""More rollouts than may ever be open at once (rollout.maxStaleness is at most 64)."""


FROZEN_SECONDS = 10.0
"""A poll that comes so late was made by a process that could not receive tokens meanwhile: that time does not count."""


class EngineProgress:
    """One engine's tokens, and the time since the last of them while it has requests.

    One clock for all requests of an engine, none for each: a request that waits for a place in the server's batch, or
    that lost its place to others, makes no token for as long as they take, and must not be begun again for that. One
    that the server has lost for good stands alone in the end, since no rollout is complete without it.

    made = progress.counted(tickets)
    with progress.expecting():      for as long as a request is at the engine
        made(num_tokens)            for all that it makes
        progress.poll()             every second or so; also the seconds of the stall
    """

    def __init__(self, clock: Callable[[], float], tokens_per_ticket: int) -> None:
        """`tokens_per_ticket`: those of all samples of a group, each as long as it may be."""
        self._clock = clock
        self._tokens_per_ticket = tokens_per_ticket
        self._lock = threading.Lock()
        self._requests = 0
        self._pauses = 0
        self._since = self._polled_at = clock()
        self._beginnings: dict[tuple[int, int, int], tuple[int, int]] = {}
        """How many there were since the most tokens were carried, and how many those are."""
        self._newest = -1
        self.tokens = 0
        """Of all requests until now, those that bring the job forward; never goes back."""

    @property
    def last_progress(self) -> float:
        """When, by the clock, the engine last made a token, got something to do, or was done with an update."""
        with self._lock:
            return self._since

    def stalled_seconds(self) -> float:
        """Seconds without a token; 0 where none is to be expected of the engine."""
        with self._lock:
            return self._stalled(self._clock())

    def poll(self) -> float:
        """The same, without the time in which this process was frozen; called again and again during a request."""
        with self._lock:
            now = self._clock()
            late, self._polled_at = now - self._polled_at > FROZEN_SECONDS, now
            if late:
                self._since = now
            return self._stalled(now)

    def restart(self) -> None:
        """The engine was ended. What it had fails by itself; its next incarnation has all its time."""
        with self._lock:
            self._since = self._clock()

    def counted(self, tickets: Sequence[Ticket], carried: Sequence[int] | None = None) -> Callable[[int], None]:
        """The work on these tickets begins; the function counts the tokens that the engine makes for it.

        `carried`: of each, the tokens that its samples go on behind; None: all begin with none.
        """
        left = sum(map(self._credit, tickets, carried or [0] * len(tickets)))

        def made(num_tokens: int) -> None:
            nonlocal left
            counted = min(num_tokens, left)
            left -= counted
            with self._lock:
                self._since = self._clock()
                self.tokens += counted

        return made

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """A request is at the engine: tokens are to be expected of it."""
        with self._lock:
            if not self._requests:
                self._since = self._polled_at = self._clock()
            self._requests += 1
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The engine is paused for an update, which has a deadline of its own."""
        with self._lock:
            self._pauses += 1
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                self._since = self._clock()

    def _stalled(self, now: float) -> float:
        return 0.0 if self._pauses or not self._requests else now - self._since

    def _credit(self, ticket: Ticket, carried: int) -> int:
        name = (ticket.rollout_id, ticket.group, ticket.attempt)
        before, most = self._beginnings.get(name, (0, 0))
        if carried > most:
            before, most = 0, carried
        self._beginnings[name] = before + 1, most
        if ticket.rollout_id > self._newest:
            self._newest = ticket.rollout_id
            self._forget_before(ticket.rollout_id - ROLLOUTS_REMEMBERED)
        return self._tokens_per_ticket if before < CREDITED_BEGINNINGS else 0

    def _forget_before(self, rollout_id: int) -> None:
        self._beginnings = {name: begun for name, begun in self._beginnings.items() if name[0] >= rollout_id}


EXTRA_SECONDS = 60.0
"""Beyond the limit of a start, so that its launcher names a server that does not come up, and not its rank."""


REFUSAL_SECONDS = 30.0
"""An engine that has refused everything for this long (its logits are not finite, for example) will not recover. For a
moment after a restart each refuses."""


FAILED_SEARCHES = 5
"""So many incarnations that died or hung at their first questions are enough: the next one would, too."""


@dataclass(frozen=True, slots=True)
class IdleEngine:
    """What an engine reports of itself once it has nothing to do."""

    max_tokens: int
    """Of prompt and answer together."""
    capacity: int
    """Samples that it runs at once."""


def build_engine(context: RankContext) -> Engine:
    """The client of this pod's engine server. Sends nothing yet: the server may still be starting."""
    if context.engine_url is None or context.engine_identity is None:
        raise ValueError(f"{context.incarnation.key}: this pod has no engine server; only rollout pods have one.")
    spec = context.job.spec
    return backend_of(spec).client(context.engine_url, context.engine_identity, spec)


class Attendance(Protocol):
    """What waits for an engine: a rank's session, or what else may leave before it is up."""

    @property
    def draining(self) -> bool:
        """Whether it shall leave."""

    def busy(self, what: str, seconds: float, /) -> AbstractContextManager[None]:
        """Announces that the block may take so long."""


class RankEngine(EventLoopThread):
    """The engine of one rank: its client, the event loop that the client lives in, and the server's process.

    with closing(RankEngine(build_engine(context), progress, context, session)) as engine:
        found = engine.find_idle()
        engine.call(engine.client.abort_all())
    """

    def __init__(self, client: Engine, progress: EngineProgress, context: RankContext, session: Attendance) -> None:
        """Sends nothing yet: the server may still be starting."""
        super().__init__("generation")
        self.client = client
        self.progress = progress
        self._context = context
        self._session = session
        self._ended_at = float("-inf")
        """When it was last ended for a stall, in monotonic seconds."""
        self._refused_since: float | None = None
        """Since when it has refused everything."""

    def await_up(self) -> bool:
        """Blocks until the server is up; False once the pod drains. Raises as `incarnation.await_engine`."""
        spec, url = self._context.job.spec, self._context.engine_url
        assert url is not None
        return await_engine(
            url,
            backend_of(spec).ready,
            self._identity,
            seconds=self._startup_seconds,
            goes_on=lambda: not self._session.draining,
        )

    def end(self, why: str) -> None:
        """Ends the engine's process, and returns when it has ended; its launcher starts the next incarnation."""
        end_engine(self._identity, why)

    def end_if_stalled(self, errors: Iterable[BaseException | None]) -> EngineStalled | None:
        """Ends an engine that requests have found without a token for too long; gives why, where it is ended now.

        Once for all requests that have found it, also those collected late: the next incarnation works.
        """
        found = (error for error in errors if isinstance(error, EngineStalled))
        stalled = next((error for error in found if error.found_at > self._ended_at), None)
        if stalled is not None:
            self.end(str(stalled))
            self.progress.restart()
            self._ended_at = time.monotonic()
        return stalled

    def answered(self) -> None:
        """It has done something that it was asked for."""
        self._refused_since = None

    def end_if_refusing(self, errors: Iterable[BaseException]) -> None:
        """Ends an engine that only ever refuses, and raises its sentence: it would refuse the next rank, too."""
        refused = next((error for error in errors if isinstance(error, EngineRefused)), None)
        if refused is None:
            return
        now = time.monotonic()
        self._refused_since = self._refused_since or now
        if now - self._refused_since > REFUSAL_SECONDS:
            self.end(str(refused))
            raise refused

    def find_idle(self) -> IdleEngine | None:
        """Blocks until the engine is up and has nothing to do; None once the pod drains.

        An engine that dies or hangs meanwhile is no failure of the rank: its launcher starts the next incarnation.
        One that hangs or refuses is ended. Raises what the last of FAILED_SEARCHES raised.
        """
        # Each incarnation is waited for with a deadline of its own.
        with self._session.busy("waiting for its engine", FAILED_SEARCHES * self._startup_seconds):
            for search in count(1):
                if not self.await_up():
                    return None
                try:
                    self.call(self.client.abort_all())
                    return IdleEngine(self.call(self.client.max_tokens()), self.call(self.client.capacity()))
                except (EngineAway, EngineGone):
                    if search == FAILED_SEARCHES:
                        raise
                except EngineTimeout as error:
                    self.end(str(error))
                    if search == FAILED_SEARCHES:
                        raise
                except EngineRefused as error:
                    self.end(str(error))  # it outlives this rank, and would refuse the next one too
                    raise
        raise AssertionError("count has no end")

    def close(self) -> None:
        """Ends the client, and the loop with all that still runs in it."""
        try:
            self.call(self.client.close())
        finally:
            super().close()

    @property
    def _identity(self) -> Path:
        assert self._context.engine_identity is not None
        return self._context.engine_identity

    @property
    def _startup_seconds(self) -> float:
        return self._context.job.spec.roles.rollout.engine.startup_seconds + EXTRA_SECONDS
