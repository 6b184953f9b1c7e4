"""What a rank saves of groups that are not finished, and what was saved of those that it goes on with.

For `rollout.partials`, reached through `TransferQueueClient.partials`, in jobs that have `rollout.partial`. Whose a
partial is: `control/lua/partials.lua`. No call waits for a server for long: what it cannot do costs tokens alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from rljob_api.failpoints import failpoint
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.control.connection import Argument, StaleUnit
from rljob_workers.transfer_queue.errors import (
    ControlUnreachable,
    CorruptChunk,
    NotOpen,
    StorageFull,
    StorageUnreachable,
)
from rljob_workers.transfer_queue.rank_calls import RankCalls
from rljob_workers.transfer_queue.row_format import (
    HEADER_BYTES,
    ChunkRef,
    FieldPlacement,
    describe,
    pack_weights,
    parse_chunk,
)
from rljob_workers.transfer_queue.types import GroupSoFar, Ticket


def _bytes_column(data: bytes) -> Jagged:
    """A row of bytes."""
    return Jagged.from_rows([torch.frombuffer(bytearray(data), dtype=torch.uint8)])


@dataclass(frozen=True, slots=True)
class SavedPartials:
    """Saves and reads by ticket."""

    calls: RankCalls
    _unanswered: list[Argument] = field(default_factory=list, init=False, repr=False)
    """Prompt and chunk of each group of a save that had no answer: it may have been made all the same."""

    def save(self, groups: Sequence[GroupSoFar]) -> list[bool]:
        """Saves what was generated of groups, in the place of what was saved of them before.

        False for what was not: the ticket is another's, or a server has no room or is away. That costs tokens where
        the group is interrupted before the next save, and nothing else, so that this waits for no server for long.
        """
        if not groups:
            return []
        deadline, waiting = self.calls.soon(), f"{self.calls} saves what was generated of {len(groups)} groups"
        if not self._are_answered(deadline, waiting):
            return [False] * len(groups)
        columns = {f"partial{group.ticket.id}": _bytes_column(group.data) for group in groups}
        try:
            stored = self.calls.units.store(columns, deadline=deadline, waiting=waiting)
        except (StorageFull, StorageUnreachable):
            return [False] * len(groups)
        chunks = [placement.chunks[0] for placement in stored.values()]
        failpoint("queue.between_bytes_and_commit")
        arguments: list[Argument] = []
        for group, chunk in zip(groups, chunks, strict=True):
            arguments += (group.ticket.id, pack_weights(group.oldest, group.newest), describe(chunk))
        try:
            [verdicts] = self.calls.change("save_partials", *arguments, deadline=deadline, waiting=waiting)
        except StaleUnit:
            self.calls.discard(chunks)
            self.calls.units.close()
            return [False] * len(groups)
        except (ControlUnreachable, NotOpen):
            for group, chunk in zip(groups, chunks, strict=True):
                self._unanswered.extend((group.ticket.prompt_index, describe(chunk)))
            return [False] * len(groups)
        self.calls.count("queue_put_bytes", sum(chunk.num_bytes for chunk in chunks))
        return [verdict == "1" for verdict in verdicts.decode()]

    def _are_answered(self, deadline: float, waiting: str) -> bool:
        """Has the queue discard what a save without an answer did not make; False while it does not answer.

        Nothing is saved before: a long outage would store a copy each time.
        """
        if self._unanswered:
            try:
                self.calls.change("settle_partials", *self._unanswered, deadline=deadline, waiting=waiting)
            except (ControlUnreachable, NotOpen):
                return False
            self._unanswered.clear()
        return True

    def read(self, tickets: Sequence[Ticket]) -> dict[int, bytes]:
        """What was saved of the groups of tickets that this rank holds, by ticket; of most there is nothing.

        Left out, too: what may not be trained with the ticket's rollout, and what a server does not give.
        """
        if not tickets:
            return {}
        deadline, waiting = self.calls.soon(), f"{self.calls} reads what was generated of {len(tickets)} groups"
        ids = [ticket.id for ticket in tickets]
        try:
            lines = self.calls.change("read_partials", *ids, deadline=deadline, waiting=waiting)
        except (ControlUnreachable, NotOpen):
            return {}
        chunks: dict[int, ChunkRef] = {}
        for number, line in zip(ids, lines, strict=True):
            with suppress(CorruptChunk):
                if line:
                    chunks[number] = parse_chunk(line)
        placements = {chunk.field: _whole(chunk) for chunk in chunks.values()}
        columns = self.calls.units.fetch_what_is_there(placements, deadline=deadline, waiting=waiting)
        self.calls.count("queue_got_bytes", sum(column.values.nbytes for column in columns.values()))
        return {
            number: columns[chunk.field].values.numpy().tobytes()
            for number, chunk in chunks.items()
            if chunk.field in columns
        }


def _whole(chunk: ChunkRef) -> FieldPlacement:
    """Its only row."""
    return FieldPlacement((chunk,), np.array([[0, 0, chunk.num_bytes - HEADER_BYTES]], np.uint32))
