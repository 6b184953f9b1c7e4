"""The calls of the coordinator's side on the control Redis: reads, numbered changes, and pages of named chunks.

Shared by `admin`, `upkeep`, `inspection` and `peeking`; the lock is held for one call. A later queue admin fences an
earlier one here. Decides nothing and imports no torch. Thread-safe.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rljob_api.names import RolloutId
from rljob_api.wire.observation import ServerState
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


class AdminAccess:
    """One queue admin as the control Redis knows it; a later one fences it."""

    def __init__(self, access: ReadAccess) -> None:
        self.access = access
        self.lost = False
        """The server lost a tail of its state, and no epoch has been raised since."""
        self.openings = 0
        """How often a server was opened: what an earlier one had committed, a later one may have lost."""
        self._name = f"admin-{secrets.token_hex(6)}"
        self._calls = 0
        self._term = 0
        self._seen_seq = 0

    @property
    def units(self) -> Sequence[StorageUnit]:
        """All storage units of the job."""
        return self.access.units

    def deadline(self) -> float:
        """For one call that begins now."""
        return self.access.deadline()

    def read(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        """Looks; changes nothing."""
        return self.access.read(name, *args, waiting=waiting)

    def change(self, name: str, *args: Argument, waiting: str) -> list[Any]:
        """One numbered change: sent again after a lost answer, it is made once."""
        with self.access.lock:
            self._calls += 1
            reply = self.access.control.change(
                name, self._name, self._calls, *args, deadline=self.deadline(), waiting=waiting
            )
            self._seen_seq = max(self._seen_seq, reply[0])
            return reply[1:]

    def take_over(self, seen_seq: int, lease_milliseconds: int) -> ServerState:
        """Becomes the queue admin; opens the server unless it lost a tail that somebody has seen.

        Raises Fenced where a later queue admin did so since.
        """
        with self.access.lock:
            self._calls += 1
            self.openings += 1
            reply = self.access.control.change(
                "open",
                self._name,
                max(seen_seq, self._seen_seq),
                lease_milliseconds,
                self._term,
                self._calls,
                deadline=self.deadline(),
                waiting="the coordinator opens the control Redis",
            )
            # From here on it counts what this server says: a tail that was lost is lost.
            self._seen_seq = reply[0]
            state, self._term = ServerState(reply[1].decode()), reply[2]
            self.lost = state is ServerState.LOST
            return state

    def run_id(self, waiting: str) -> str:
        """Of the server that answers now."""
        with self.access.lock:
            return self.access.control.run_id(deadline=self.deadline(), waiting=waiting)

    def known_generations(self) -> dict[int, int]:
        """Unit -> the mark that it should have."""
        reply = self.read("units", waiting="the coordinator looks after storage")
        return {int(unit): int(generation) for unit, generation in zip(reply[::2], reply[1::2], strict=True)}


class Named(StrEnum):
    """By which partitions."""

    KEPT = "kept"
    """Those with rows."""
    ALL = "all"
    """Also those that wait to be collected."""


def partitions(access: ReadAccess, which: Named, waiting: str) -> list[RolloutId]:
    """Of this kind, as they are now."""
    return [RolloutId(rollout_id) for rollout_id in access.read("partitions", which.value, waiting=waiting)]


def chunks_of(access: ReadAccess, which: Named, rollout_id: RolloutId, waiting: str) -> Iterator[tuple[bytes, bytes]]:
    """Id and line of every chunk that the partition names, some of them twice; none where it is of another kind."""
    cursor = b"0"
    while True:
        cursor, *listed = access.read("chunks", which.value, rollout_id, cursor, waiting=waiting)
        yield from zip(listed[::2], listed[1::2], strict=True)
        if cursor == b"0":
            return
