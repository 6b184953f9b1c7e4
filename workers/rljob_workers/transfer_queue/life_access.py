"""How one life reaches the queue: its connections, and its calls, which are numbered.

For `client`, `claims` and `commits`, from one thread. Knows no call by name.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from rljob_api.failpoints import failpoint
from rljob_api.wire.identity import Endpoints, Life
from rljob_workers.transfer_queue.control.connection import Argument, Clock, ControlConnection, Sleep
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.timing import QueueTiming
from rljob_workers.transfer_queue.types import QueueShape


class LifeAccess:
    """Shared by the parts of one client."""

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        life: Life,
        *,
        checksums: bool,
        counters: MutableMapping[str, float],
        timing: QueueTiming,
        clock: Clock,
        sleep: Sleep,
    ) -> None:
        """Connects when first used."""
        self.shape = shape
        self.life = life
        self.timing = timing
        self.clock = clock
        self.sleep = sleep
        self.control = ControlConnection(
            endpoints.control_redis, library(shape), timing=timing, clock=clock, sleep=sleep
        )
        self.units = StorageUnits(
            endpoints.storage_units,
            life.epoch,
            life.incarnation,
            checksums=checksums,
            timing=timing,
            clock=clock,
            sleep=sleep,
        )
        self.seen_seq = 0
        """Highest seq that any answer has shown."""
        self._counters = counters
        self._calls = 0

    def __str__(self) -> str:
        return str(self.life.key)

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self.control.close()
        self.units.close()

    def deadline(self) -> float:
        """For one change, or one put with its bytes, that begins now."""
        return self.clock() + self.timing.patience_seconds

    def count(self, name: str, number: int) -> None:
        """Adds to a counter of this rank."""
        self._counters[name] = self._counters.get(name, 0) + number

    def change(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        """Calls a function that changes something, in this life's name; repeated until there is an answer."""
        self._calls += 1
        reply = self.control.change(
            name,
            self.life.epoch,
            self.life.incarnation,
            self._calls,
            *args,
            deadline=self.deadline() if deadline is None else deadline,
            waiting=waiting,
        )
        failpoint("queue.after_script")
        self.seen_seq = max(self.seen_seq, reply[0])
        return reply[1:]
