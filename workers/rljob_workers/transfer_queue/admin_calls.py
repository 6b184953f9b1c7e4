"""The calls of the coordinator's side on the control Redis: reads, numbered changes, and pages of named chunks.

Shared by `admin`, `upkeep`, `inspection` and `peeking`; the lock is held for one call. A later queue admin fences an
earlier one here. Decides nothing and imports no torch. Thread-safe.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from rljob_api.names import RolloutId
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.control.connection import Argument, ControlConnection
from rljob_workers.transfer_queue.resp import Clock
from rljob_workers.transfer_queue.types import QueueShape
from rljob_workers.transfer_queue.units import StorageUnit


class Named(StrEnum):
    """By which partitions."""

    RETAINED = "kept"
    """Those with rows."""
    ALL = "all"
    """Also those that wait to be collected."""


class AdminCalls:
    """The calls of one queue admin, under its name; a later one fences it. `lock` is held for one call."""

    def __init__(
        self,
        control: ControlConnection,
        units: Sequence[StorageUnit],
        shape: QueueShape,
        clock: Clock,
        patience_seconds: float,
    ) -> None:
        self.control = control
        self.units = units
        """All storage units of the job."""
        self.shape = shape
        self.lock = threading.RLock()
        self.lost = False
        """The server lost a tail of its state, and no epoch has been raised since."""
        self.openings = 0
        """How often a server was opened: what an earlier one had committed, a later one may have lost."""
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._name = f"admin-{secrets.token_hex(6)}"
        self._call = 0
        self._term = 0
        self._seen_seq = 0

    def deadline(self) -> float:
        """For one call that begins now."""
        return self._clock() + self._patience_seconds

    def read(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        """Calls a function that changes nothing."""
        with self.lock:
            reply = self.control.read(name, *args, deadline=self.deadline(), waiting=waiting)
        assert isinstance(reply, list)
        return reply

    def change(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        """One numbered change: sent again after a lost answer, it is made once."""
        with self.lock:
            self._call += 1
            reply = self.control.change(name, self._name, self._call, *args, deadline=self.deadline(), waiting=waiting)
            self._seen_seq = max(self._seen_seq, reply[0])
            return reply[1:]

    def take_over(self, seen_seq: int, lease_milliseconds: int) -> ServerState:
        """Becomes the queue admin; opens the server unless it lost a tail whose seq some rank received.

        Raises Fenced where a later queue admin did so since.
        """
        with self.lock:
            self._call += 1
            self.openings += 1
            reply = self.control.change(
                "open",
                self._name,
                max(seen_seq, self._seen_seq),
                lease_milliseconds,
                self._term,
                self._call,
                deadline=self.deadline(),
                waiting="the coordinator opens the control Redis",
            )
            # From here on only the seq of this server counts: a tail that was lost is lost.
            self._seen_seq = reply[0]
            state, self._term = ServerState(reply[1].decode()), reply[2]
            self.lost = state is ServerState.LOST
            return state

    def run_id(self, waiting: str) -> str:
        """Of the server that answers now."""
        with self.lock:
            return self.control.run_id(deadline=self.deadline(), waiting=waiting)

    def known_generations(self, waiting: str) -> dict[int, int]:
        """Unit -> the mark that it should have."""
        reply = self.read("units", waiting=waiting)
        return {int(unit): int(generation) for unit, generation in zip(reply[::2], reply[1::2], strict=True)}

    def partitions(self, which: Named, waiting: str) -> list[RolloutId]:
        """Of this kind, as they are now."""
        return [RolloutId(rollout_id) for rollout_id in self.read("partitions", which.value, waiting=waiting)]

    def chunks(self, which: Named, rollout_id: RolloutId, waiting: str) -> Iterator[tuple[bytes, bytes]]:
        """Id and line of every chunk that the partition names, some twice; none where it is of another kind."""
        cursor = b"0"
        while True:
            cursor, *listed = self.read("chunks", which.value, rollout_id, cursor, waiting=waiting)
            yield from zip(listed[::2], listed[1::2], strict=True)
            if cursor == b"0":
                return
