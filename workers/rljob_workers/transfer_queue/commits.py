"""Bytes first, then the one call that makes them part of the queue.

For `client`. Between the two nothing is visible: who dies there leaves bytes that the coordinator sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_api.failpoints import failpoint
from rljob_api.wire.identity import WeightId
from rljob_workers.transfer_queue.control.connection import Argument, StaleUnit
from rljob_workers.transfer_queue.control.rows import ChunkIds, field_arguments
from rljob_workers.transfer_queue.errors import StorageFull, StorageUnreachable
from rljob_workers.transfer_queue.jagged import Column
from rljob_workers.transfer_queue.life_access import LifeAccess
from rljob_workers.transfer_queue.placement import ChunkRef

Store = Callable[[Mapping[str, Column], Sequence[str], WeightId | None], list[Argument]]
"""Stores columns and gives what a commit says of these fields of them, made by this weight (None: by none)."""


class Commits:
    """Those of one client.

    reply = commits.commit("put", lambda store: [lease, *store(columns, fields, weight)], "who waits for what")
    """

    def __init__(self, access: LifeAccess) -> None:
        self._access = access
        self._chunk_ids = ChunkIds(access.life.incarnation)
        self._stored: list[ChunkRef] = []
        """Chunks of the put in hand."""

    def commit(self, name: str, arguments: Callable[[Store], list[Argument]], waiting: str) -> list[Any]:
        """Calls function `name` with `arguments`; all of it again where a unit came back empty in between."""
        deadline = self._access.deadline()

        def store(columns: Mapping[str, Column], fields: Sequence[str], weight: WeightId | None) -> list[Argument]:
            placements = self._access.units.store(columns, deadline=deadline, waiting=waiting).fields
            self._stored.extend(chunk for placement in placements.values() for chunk in placement.chunks)
            packed = [field_arguments(placements[field], self._chunk_ids, weight) for field in fields]
            return [argument for field in packed for argument in field]

        while True:
            self._stored.clear()
            try:
                packed = arguments(store)
                failpoint("queue.between_bytes_and_commit")
                reply = self._access.change(name, *packed, deadline=deadline, waiting=waiting)
                self._access.count("queue_put_bytes", sum(chunk.num_bytes for chunk in self._stored))
                return reply
            except (StaleUnit, StorageFull, StorageUnreachable) as error:
                self.take_back()
                if not isinstance(error, StaleUnit) or self._access.clock() >= deadline:
                    raise
                # The connection to that unit is still the old one; a new one learns the new generation.
                self._access.units.close()

    def take_back(self) -> None:
        """Deletes bytes that were not taken; what a unit that is away keeps of them goes when it is back."""
        deadline = self._access.clock() + self._access.timing.claim_patience_seconds
        self._access.units.delete(self._stored, deadline=deadline)
