"""The one thread in which the coordinator works, and the long polls that look into it.

Called by `app`. Turns the errors of Redis and of the queue into refusals; a lost connection closes the gate.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import redis

from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.notifier import Notifier, Topic
from rljob_workers.dcs.coordinator.refusals import UNAVAILABLE, Refused, dead, fenced, incomplete, not_open, wrong_epoch
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

    def look(self, reading: Callable[[], T]) -> T:
        """What `reading` finds in memory, which it sees before or after each change of the thread."""
        with self.coordinator.lock:
            return reading()

    async def do_when_open(self, work: Callable[[], T]) -> T:
        """As `do`, once the control Redis is open; waits a little for it."""
        return await self._do_after(self.coordinator.gate.require_open, work)

    async def do_when_usable(self, work: Callable[[], T]) -> T:
        """As `do`, once the control Redis is open or known to be lost: for what names or cures the loss."""
        return await self._do_after(self.coordinator.gate.require_usable, work)

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
        """Looks now and after every notification of the topic; None when there is nothing after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            count = self.notifier.count(topic, key)
            answer = self.look(reading)
            if answer is not None or time.monotonic() >= deadline:
                return answer
            if self._leaves:
                raise not_open("The coordinator ends, or begins anew with another job. Ask again.")
            await self.notifier.wait(topic, count, deadline - time.monotonic(), key)

    def leave(self) -> None:
        """Nobody waits here any more: who does is sent away to ask again, for its connection is about to be closed."""
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
            # A later coordinator serves the job: whatever this one says now would be wrong.
            os.kill(os.getpid(), signal.SIGTERM)
            raise not_open(str(error)) from error
        except queue_errors.QueueError as error:
            raise _refusal_of(error) from error


def _refusal_of(error: queue_errors.QueueError) -> Refused:
    """What the queue refused, in the coordinator's words."""
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
