"""The one thread in which the coordinator works, the long polls that read from it, and beats carried out in batches.

The HTTP side calls it from the event loop. Turns errors of Redis and of the queue into refusals; a lost connection
closes the gate.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import redis

from rljob_api.wire.ranks import Beat, BeatAnswer
from rljob_workers.dcs.coordinator.context import (
    UNAVAILABLE,
    Notifier,
    Refused,
    Topic,
    dead,
    fenced,
    incomplete,
    not_open,
    wrong_epoch,
)
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.rank_incarnations import Judged
from rljob_workers.transfer_queue import errors as queue_errors

T = TypeVar("T")


OPENING_PATIENCE_SECONDS = 4.0
"""How long a request waits for a restarted control Redis to be opened before it is sent away to ask again."""


class SerialExecutor:
    """Work in order, one after another."""

    def __init__(self, coordinator: Coordinator, notifier: Notifier) -> None:
        self.coordinator = coordinator
        self.notifier = notifier
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordinator")
        self._leaves = False

    async def do(self, work: Callable[[], T]) -> T:
        """Carries out `work` in the thread as it is, also while the control Redis is closed."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def read(self, reading: Callable[[], T]) -> T:
        """What `reading` finds in memory, which it sees before or after each change of the thread."""
        with self.coordinator.store.lock:
            return reading()

    async def do_when_open(self, work: Callable[[], T]) -> T:
        """As `do`, once the control Redis is open; waits a little for it."""
        return await self._do_after(self.coordinator.gate.require_open, work)

    async def do_when_usable(self, work: Callable[[], T]) -> T:
        """As `do`, once the control Redis is open or known to be lost: for what names or cures the loss."""
        return await self._do_after(self.coordinator.gate.require_usable, work)

    async def wait_open(self) -> None:
        """Returns once the control Redis is open; waits a little for it."""
        await self.do_when_open(lambda: None)

    async def _do_after(self, check: Callable[[], None], work: Callable[[], T]) -> T:
        def checked_work() -> T:
            check()
            return work()

        return await self.when_open(partial(self.do, checked_work))

    async def when_open(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Makes the attempt, and again for a little while as long as it is refused since the server is not open."""
        deadline = time.monotonic() + OPENING_PATIENCE_SECONDS
        while True:
            count = self.notifier.count(Topic.SERVER)
            try:
                return await attempt()
            except Refused as refused:
                if refused.status != UNAVAILABLE or self._leaves or time.monotonic() >= deadline:
                    raise
            await self.notifier.wait(Topic.SERVER, count, deadline - time.monotonic())

    async def await_answer(
        self, topic: Topic, reading: Callable[[], T | None], seconds: float, key: str = ""
    ) -> T | None:
        """Reads now and after every notification of the topic; None when there is nothing after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            count = self.notifier.count(topic, key)
            answer = self.read(reading)
            if answer is not None or time.monotonic() >= deadline:
                return answer
            if self._leaves:
                raise not_open("The coordinator ends, or begins anew with another job. Ask again.")
            await self.notifier.wait(topic, count, deadline - time.monotonic(), key)

    def leave(self) -> None:
        """Ends all long polls: each is sent away to ask again, for its connection is about to be closed."""
        self._leaves = True
        for topic in Topic:
            self.notifier.notify(topic)

    def close(self) -> None:
        """Lets the work in progress end."""
        self._thread.shutdown(wait=False)

    def _guarded(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except queue_errors.NotOpen as error:
            self.coordinator.gate.close("it refuses")
            raise not_open(str(error)) from error
        except (redis.ConnectionError, redis.TimeoutError, queue_errors.ControlUnreachable) as error:
            self.coordinator.gate.close("it does not answer")
            raise not_open(f"The control Redis does not answer ({error}). Ask again.") from error
        except queue_errors.Replaced as error:
            # A later coordinator serves the job: any answer of this one would be wrong now.
            os.kill(os.getpid(), signal.SIGTERM)
            raise not_open(str(error)) from error
        except queue_errors.QueueError as error:
            raise _refusal_of(error) from error


def _refusal_of(error: queue_errors.QueueError) -> Refused:
    """What the queue refused, as the coordinator's refusal."""
    match error:
        case queue_errors.Fenced():
            return fenced(str(error))
        case queue_errors.WrongEpoch():
            return wrong_epoch(str(error))
        case queue_errors.DeadWeight():
            return dead(str(error))
        case queue_errors.Incomplete():
            return incomplete(str(error))
        case _:
            return not_open(str(error))


W = TypeVar("W")


CarryOut = Callable[[Sequence[Beat]], Sequence[Judged]]


class Thread(Protocol):
    """Where work is done one after another."""

    async def do(self, work: Callable[[], W]) -> W:
        """Carries out `work`; raises what it raises."""
        ...


class Beats:
    """The beats that wait, and those that are carried out now."""

    def __init__(self, thread: Thread, carry_out: CarryOut) -> None:
        """`carry_out` answers each of some beats, in their order; it raises where none of them could be carried out."""
        self._thread = thread
        self._carry_out = carry_out
        self._waiting: list[tuple[Beat, asyncio.Future[BeatAnswer]]] = []
        self._work: asyncio.Task[None] | None = None

    async def answer(self, beat: Beat) -> BeatAnswer:
        """Once it is carried out; Refused for an incarnation that is over, or until the control Redis is open."""
        answered: asyncio.Future[BeatAnswer] = asyncio.get_running_loop().create_future()
        self._waiting.append((beat, answered))
        if self._work is None:
            self._work = asyncio.create_task(self._carry_out_all())
        return await answered

    async def _carry_out_all(self) -> None:
        try:
            while self._waiting:
                await self._carry_out_waiting()
        finally:
            self._work = None

    async def _carry_out_waiting(self) -> None:
        now, self._waiting = self._waiting, []
        try:
            answers = await self._thread.do(partial(self._carry_out, [beat for beat, _ in now]))
        except Exception as error:  # the requests raise it, each of them
            for _, answered in now:
                _fail(answered, error)
            return
        for (_, answered), answer in zip(now, answers, strict=True):
            if isinstance(answer, Refused):
                _fail(answered, answer)
            elif not answered.done():
                answered.set_result(answer)


def _fail(answered: asyncio.Future[BeatAnswer], error: Exception) -> None:
    if not answered.done():  # else its request was given up
        answered.set_exception(error)
