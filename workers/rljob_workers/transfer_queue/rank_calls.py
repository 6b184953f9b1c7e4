"""The calls of one incarnation on control Redis and storage units: reads, numbered changes, commits of bytes.

Shared by `client`, `saved_partials`, `curriculum_rows` and `evaluation_samples`, from one thread. A commit stores
bytes, then calls: one that dies in between leaves bytes that the coordinator sweeps. Knows no task and no ticket.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api.failpoints import failpoint
from rljob_api.spec.queue import Waiting
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.tensors.jagged import Column
from rljob_workers.transfer_queue.control.connection import (
    Argument,
    ControlConnection,
    Notices,
    Polling,
    StaleUnit,
    Subscription,
)
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.errors import StorageFull, StorageUnreachable
from rljob_workers.transfer_queue.row_format import ChunkIds, ChunkRef, field_arguments
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.types import QueueShape, QueueTiming


@dataclass(frozen=True, slots=True)
class Section:
    """Columns of one commit: its arguments are `head`, then what was stored of `fields`, made by `weight`."""

    head: Sequence[Argument]
    columns: Mapping[str, Column]
    fields: Sequence[str]
    weight: WeightId | None


class RankCalls:
    """The connections of one incarnation, and what it calls by them in its name."""

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        incarnation: Incarnation,
        *,
        waiting: Waiting,
        checksums: bool,
        counters: MutableMapping[str, float],
        timing: QueueTiming,
    ) -> None:
        """Connects when first used. `counters`: where the bytes that were put and got are counted."""
        self.timing = timing
        self.units = StorageUnits(
            endpoints.storage_units, incarnation.epoch, incarnation.id, checksums=checksums, timing=timing
        )
        self.notices: Notices = (
            Polling() if waiting is Waiting.POLL else Subscription(endpoints.control_redis, timing=timing)
        )
        self.seen_seq = 0
        """Highest seq of any reply; sent with beats."""
        self._control = ControlConnection(endpoints.control_redis, library(shape), timing=timing)
        self._incarnation = incarnation
        self._name = str(incarnation.key)
        self._counters = counters
        self._calls = 0
        self._chunk_ids = ChunkIds(incarnation.id)

    def __str__(self) -> str:
        """The rank's name."""
        return self._name

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._control.close()
        self.units.close()
        self.notices.close()

    def deadline(self) -> float:
        """For one change, or one put with its bytes, that begins now."""
        return time.monotonic() + self.timing.patience_seconds

    def soon(self) -> float:
        """For what is given up rather than waited for."""
        return time.monotonic() + self.timing.claim_patience_seconds

    def read(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        """Calls a function that changes nothing."""
        until = self.deadline() if deadline is None else deadline
        reply: list[Any] = self._control.read(name, *args, deadline=until, waiting=waiting)
        return reply

    def change(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        """Calls a function that changes something, in this incarnation's name; repeated until there is an answer."""
        self._calls += 1
        reply = self._control.change(
            name,
            self._incarnation.epoch,
            self._incarnation.id,
            self._calls,
            *args,
            deadline=self.deadline() if deadline is None else deadline,
            waiting=waiting,
        )
        failpoint("queue.after_script")
        self.seen_seq = max(self.seen_seq, reply[0])
        return reply[1:]

    def commit(
        self, name: str, head: Sequence[Argument], sections: Sequence[Section], waiting: str
    ) -> tuple[list[Any], list[ChunkRef]]:
        """Stores the columns of all sections, then calls function `name`; its answer, and what was stored.

        All of it again where a unit came back empty in between.
        """
        deadline = self.deadline()
        while True:
            arguments, stored = list(head), list[ChunkRef]()
            try:
                for section in sections:
                    placements = self.units.store(section.columns, deadline=deadline, waiting=waiting)
                    stored += [chunk for placement in placements.values() for chunk in placement.chunks]
                    arguments += section.head
                    for field in section.fields:
                        arguments += field_arguments(placements[field], self._chunk_ids, section.weight)
                failpoint("queue.between_bytes_and_commit")
                reply = self.change(name, *arguments, deadline=deadline, waiting=waiting)
                self.count("queue_put_bytes", sum(chunk.num_bytes for chunk in stored))
                return reply, stored
            except (StaleUnit, StorageFull, StorageUnreachable) as error:
                self.discard(stored)
                if not isinstance(error, StaleUnit) or time.monotonic() >= deadline:
                    raise
                # The connection to that unit is still the old one; a new one learns the new generation.
                self.units.close()

    def discard(self, stored: Sequence[ChunkRef]) -> None:
        """Deletes bytes that were not taken; what a unit that is away has of them goes when it is back."""
        self.units.delete(stored, deadline=self.soon())

    def count(self, name: str, number: int) -> None:
        """Adds to a counter."""
        self._counters[name] = self._counters.get(name, 0) + number
