"""One client's calls on the servers, blocking: commits, claims, look-ups, clearing.

For `calls`. Bytes go through our data plane (`transfer_queue.storage`), everything that decides through one Lua
function on the control Redis (`control_plane`); between the two nothing is part of the queue. Any thread may call.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rljob_api.failpoints import failpoint
from rljob_transfer_queue.bytes_plane import BytesPlane
from rljob_transfer_queue.columns import Column
from rljob_transfer_queue.control_plane import ControlPlane
from rljob_transfer_queue.metadata import BatchMeta
from rljob_transfer_queue.replies import document_of, make_batch, parse_batch, parse_keyed
from rljob_transfer_queue.rows import (
    Places,
    field_arguments,
    numbers_at,
    pack_documents,
    pack_runs,
    parse_places,
    unpack_documents,
    unpack_runs,
)
from rljob_transfer_queue.samplers import Question
from rljob_transfer_queue.settings import Servers, expected_rows
from rljob_transfer_queue.values import encode_document
from rljob_workers.transfer_queue.control.connection import Argument, BytesSwept, StaleUnit
from rljob_workers.transfer_queue.errors import Mismatch, StorageFull
from rljob_workers.transfer_queue.row_format import ChunkIds, parse_chunk

ORPHAN_SECONDS = 120
"""Older bytes without a commit get none: a put gives up before that, and one that was suspended stores them again."""
TRASH_CHUNKS = 1000
"""Deleted at once."""
_CLEANS = "deletes bytes of cleared rows"
SUSPECTS_AT_ONCE = 1000
"""Condemned in one call: the control Redis serves others in between."""
_SWEEPS = "sweeps"
PAGE_ROWS = 4096
"""Rows that one look-up reads: the control Redis serves others in between."""


class Session:
    """Connections of one client; connects when first used."""

    def __init__(self, name: str, servers: Servers) -> None:
        incarnation = secrets.token_hex(6)
        self.name = name
        self.servers = servers
        self.control = ControlPlane(name, servers.control_redis, incarnation, self._meet)
        self._chunk_ids = ChunkIds(incarnation)
        self._bytes = BytesPlane(servers.storage_units, incarnation, self.control.call)

    def close(self) -> None:
        """Later calls are refused, one under way ends first; may be called twice."""
        self.control.close(also=self._bytes.close)

    def _meet(self) -> None:
        self._bytes.meet(self.control.deadline())

    # --- settings ------------------------------------------------------------------------------------------------

    def configure(self, settings: bytes, owner: str) -> tuple[bytes, bool]:
        """Sets the queue's settings unless it has some; returns those in force, and whether `owner` set them."""
        found, setter = self.control.call("configure", settings, owner, what="sets the queue up")
        return found, setter == owner.encode()

    def settings(self) -> tuple[bytes, str]:
        """Those in force and who set them; empty where there are none."""
        found, owner = self.control.call("settings", what="reads the queue's settings")
        return found, owner.decode()

    def forget_settings(self, owner: str) -> None:
        """If `owner` set them: the next `init` sets its own."""
        self.control.call("forget_settings", owner, what="gives the queue up")

    # --- rows ----------------------------------------------------------------------------------------------------

    def put_new(self, partition: str, columns: Mapping[str, Column]) -> BatchMeta:
        """New rows of a partition, which is made where there is none."""
        num_rows = len(next(iter(columns.values())).kinds)
        numbers, places = self._commit(partition, b"", num_rows, columns, b"")
        return make_batch(partition, numbers, [], places, list(columns))

    def put_rows(
        self, partition: str, numbers: Sequence[int], columns: Mapping[str, Column], documents: Sequence[dict[str, Any]]
    ) -> dict[str, Places]:
        """Fields of rows that are there; what they had in these fields is replaced. Returns where they lie."""
        packed = b"" if not any(documents) else self._documents(documents)
        return self._commit(partition, pack_runs(numbers), len(numbers), columns, packed)[1]

    def insert(self, partition: str, num_rows: int, fields: Sequence[str]) -> BatchMeta:
        """New rows without fields."""
        numbers = self._commit(partition, b"", num_rows, {}, b"")[0]
        return make_batch(partition, numbers, [], {}, fields, placeholders=True)

    def set_documents(self, partition: str, numbers: Sequence[int], documents: Sequence[dict[str, Any]]) -> None:
        """The metadata of each row; replaces the earlier metadata."""
        what = f"sets custom_meta of {len(numbers)} rows of {partition}"
        packed = self._documents(documents)
        self.control.change("set_documents", partition, pack_runs(numbers), len(numbers), packed, what=what)

    def claim(
        self, partition: str, task: str, num_rows: int, fields: Sequence[str], question: Question
    ) -> BatchMeta | int:
        """Rows that have all fields and that the task has not had; else how many there are."""
        rank = "" if question.rank is None else question.rank
        index = "" if question.rank is None else question.index
        arguments: tuple[Argument, ...] = (
            partition,
            task,
            num_rows,
            question.group,
            rank,
            index,
            question.ranks,
            *fields,
        )
        reply = self.control.change("claim", *arguments, what=f"waits for {num_rows} rows of {partition} for {task}")
        if reply[0] == b"N":
            return int(reply[1])
        return parse_batch(partition, reply[1:], fields)

    def locate(self, partition: str, numbers: Sequence[int], fields: Sequence[str]) -> BatchMeta:
        """Rows by their numbers with what they have of `fields`; raises Mismatch where one was cleared."""
        documents: list[bytes] = []
        pages: list[dict[str, Places]] = []
        for first in range(0, len(numbers), PAGE_ROWS):
            page = numbers[first : first + PAGE_ROWS]
            what = f"looks up {len(page)} rows of {partition}"
            reply = self.control.call("locate", partition, pack_runs(page), len(page), *fields, what=what)
            documents += unpack_documents(reply[1]) or [b""] * len(page)
            pages.append(parse_places(fields, reply[2:]))
        places = {name: Places.concat([page[name] for page in pages]) for name in fields}
        return make_batch(partition, numbers, documents, places, fields)

    def changed(self, partitions: Sequence[str]) -> bool:
        """Whether rows of these were replaced or cleared: then a batch in hand may know old places."""
        return bool(self.control.call("changed", *partitions, what="asks whether rows changed"))

    def rows(self, partition: str, fields: Sequence[str]) -> BatchMeta:
        """All rows of a partition, whatever they have."""
        pages, live = self._state(partition, "pages", "live", default=(b"", b""))
        numbers = numbers_at(np.flatnonzero(np.frombuffer(live, np.uint8) == 1), pages)
        return self.locate(partition, numbers, fields) if numbers else BatchMeta.empty()

    def read(self, places: Mapping[str, Places]) -> dict[str, list[Column]]:
        """The rows' values; raises RowsLost where a unit no longer has them."""
        with self.control.turn():
            return self._bytes.read(places, deadline=self.control.deadline(), waiting=f"{self.name} reads rows")

    # --- states --------------------------------------------------------------------------------------------------

    def states(self, partition: str, *names: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]] | None:
        """Numbers of all rows, expected ones too, and [rows, names] of 0 and 1; None where there is no partition."""
        found = self._state(partition, "pages", "live", *names, default=None)
        if found is None:
            return None
        pages, live, *flags = found
        places = np.flatnonzero(np.frombuffer(live, np.uint8))
        columns = [np.frombuffer(each.ljust(len(live), b"\0"), np.uint8)[places] for each in flags]
        table = np.stack(columns, axis=1) if columns else np.zeros((len(places), 0), np.uint8)
        return np.array(numbers_at(places, pages), np.int64), table

    def fields(self, partition: str) -> set[str]:
        """All that any row ever had."""
        return {name.decode() for name in self.control.call("fields", partition, what=f"reads fields of {partition}")}

    def partitions(self) -> list[str]:
        """All that there are."""
        return [name.decode() for name in self.control.call("partitions", what="lists the partitions")]

    def reset(self, partition: str, task: str | None) -> None:
        """The task (None: every task) has had nothing of the partition."""
        self.control.change("reset", partition, task or "", what=f"resets consumption of {partition}")

    # --- keys ----------------------------------------------------------------------------------------------------

    def find_keys(self, partition: str, keys: Sequence[str]) -> BatchMeta:
        """Rows of those keys that there are, with the fields that all of them have."""
        return parse_keyed(
            partition, self.control.call("find_keys", partition, *keys, what=f"looks up keys of {partition}")
        )

    def make_keys(self, partition: str, keys: Sequence[str]) -> BatchMeta:
        """The same, with new rows for keys that are not there."""
        arguments: tuple[Argument, ...] = (partition, expected_rows(os.environ), *keys)
        return parse_keyed(partition, self.control.change("make_keys", *arguments, what=f"makes keys of {partition}"))

    def keys_of(self, partition: str, numbers: Sequence[int]) -> list[str]:
        """'' where a row has none."""
        found = self.control.call("names", partition, pack_runs(numbers), what=f"looks up rows of {partition}")
        return [name.decode() for name in found]

    def list_keys(self, partition: str) -> dict[str, dict[str, Any]] | None:
        """Keys in the order of their rows, with the metadata of each; None where there is no partition."""
        found = self.control.call("list_keys", partition, what=f"lists keys of {partition}")
        if found is None:
            return None
        rows = sorted(zip(found[::3], found[1::3], found[2::3], strict=True), key=lambda row: int(row[0]))
        return {key.decode(): document_of(document) for _, key, document in rows}

    # --- clearing ------------------------------------------------------------------------------------------------

    def clear_rows(self, partition: str, numbers: Sequence[int]) -> None:
        """Rows and their bytes; those that are not there do not matter."""
        self.control.change(
            "clear_rows", partition, pack_runs(numbers), what=f"clears {len(numbers)} rows of {partition}"
        )
        self._bytes_clean()

    def clear_partition(self, partition: str) -> None:
        """All rows and their bytes."""
        self.control.change("clear_partition", partition, what=f"clears {partition}")
        self._bytes_clean()

    def sweep(self, idle_seconds: int) -> int:
        """Deletes chunks that no commit names and no client touched for so long; returns how many.

        Their clients died or gave up. Age alone proves nothing, since a client may sleep: first the control plane
        condemns the chunks, so that no later commit may name them, then it lists what was committed before.
        """
        with self.control.turn():
            suspects = self._bytes.idle(self._committed(), idle_seconds, deadline=self.control.deadline())
            keys = [key for of_unit in suspects.values() for key in of_unit]
            if not keys:
                return 0
            for first in range(0, len(keys), SUSPECTS_AT_ONCE):
                self.control.call("condemn", *keys[first : first + SUSPECTS_AT_ONCE], what=_SWEEPS)
            committed = self._committed()
            orphans = {unit: [key for key in of_unit if key not in committed] for unit, of_unit in suspects.items()}
            return self._bytes.discard(orphans, deadline=self.control.deadline())

    def _committed(self) -> set[str]:
        """Keys of the chunks that a commit names."""
        return {parse_chunk(line).key for line in self.control.call("chunks", what=_SWEEPS)}

    def _bytes_clean(self) -> None:
        """What is in the trash: ours, and of clients that died while they cleared, or of units that were away."""
        away: set[int] = set()
        with self.control.turn():
            for name in self.control.call("trash_names", what=_CLEANS):
                while self._clean_some(name, away):
                    pass

    def _clean_some(self, name: bytes, away: set[int]) -> bool:
        """Whether there may be more; what lies on a unit that is away stays in the trash."""
        found = self.control.call("trash", name, TRASH_CHUNKS, what=_CLEANS)
        gone = self._bytes.delete(found[1::2], away, deadline=self.control.deadline())
        if any(gone):
            self.control.call("drop_trash", name, *itertools.compress(found[::2], gone), what=_CLEANS)
        return any(gone)

    # --- inside --------------------------------------------------------------------------------------------------

    def _commit(
        self, partition: str, rows: bytes, num_rows: int, columns: Mapping[str, Column], documents: bytes
    ) -> tuple[list[int], dict[str, Places]]:
        with self.control.turn():
            until = self.control.deadline()
            while True:
                try:
                    numbers, placed = self._commit_once(partition, rows, num_rows, columns, documents)
                    break
                except BytesSwept:
                    # This client was stopped between bytes and commit; what it stores now is young.
                    until = self.control.deadline()
                except StaleUnit:
                    # A unit came back empty between bytes and commit, or it is not the one that others mean.
                    if time.monotonic() >= until:
                        raise
                    self._meet()
            if rows:
                self._bytes_clean()
            return numbers, placed

    def _commit_once(
        self, partition: str, rows: bytes, num_rows: int, columns: Mapping[str, Column], documents: bytes
    ) -> tuple[list[int], dict[str, Places]]:
        what = f"puts {num_rows} rows of {partition}"
        placed = self._store(columns, f"{self.name} {what}") if columns else {}
        fields = [one for name, each in placed.items() for one in field_arguments(name, each, self._chunk_ids)]
        arguments = (partition, rows, num_rows, expected_rows(os.environ), documents, *fields)
        failpoint("queue.between_bytes_and_commit")
        try:
            reply = self.control.change("put", *arguments, what=what)
        except (BytesSwept, Mismatch, StaleUnit):
            self._bytes.forget(placed, deadline=self.control.deadline())
            raise
        return unpack_runs(reply[0]), placed

    def _store(self, columns: Mapping[str, Column], waiting: str) -> dict[str, Places]:
        try:
            return self._bytes.store(columns, deadline=self.control.deadline(), waiting=waiting)
        except StorageFull:
            if not self.sweep(ORPHAN_SECONDS):
                raise
            return self._bytes.store(columns, deadline=self.control.deadline(), waiting=waiting)

    def _documents(self, documents: Sequence[dict[str, Any]]) -> bytes:
        return pack_documents([encode_document(each, "custom_meta") if each else b"" for each in documents])

    def _state(self, partition: str, *names: str, default: Any) -> Any:  # noqa: ANN401 - bytes, or the default
        found = self.control.call("look", partition, *names, what=f"reads the state of {partition}")
        return found or default
