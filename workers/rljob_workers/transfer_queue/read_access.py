"""How those who only look reach the queue: the queue admin's connections, one question at a time.

For `inspection`, `peeking` and `invariants`; changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rljob_workers.transfer_queue.control.connection import Argument, Clock, ControlConnection
from rljob_workers.transfer_queue.types import QueueShape
from rljob_workers.transfer_queue.units import StorageUnit


@dataclass(frozen=True, slots=True)
class ReadAccess:
    """Shared with the queue admin; the lock is held for one call."""

    control: ControlConnection
    units: Sequence[StorageUnit]
    shape: QueueShape
    lock: threading.RLock
    clock: Clock
    patience_seconds: float

    def deadline(self) -> float:
        """For one call that begins now."""
        return self.clock() + self.patience_seconds

    def read(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        """One read call on the control Redis."""
        with self.lock:
            reply = self.control.read(name, *args, deadline=self.deadline(), waiting=waiting)
        assert isinstance(reply, list)
        return reply
