"""A claim, asked once: the control Redis says which rows, and their bytes are fetched from the storage units.

For `client`, which asks again where nothing was ready (`control.waits`). Rows whose bytes do not come are given back.
"""

from __future__ import annotations

import secrets
from contextlib import suppress

from rljob_api.names import RolloutId
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.control.rows import ClaimedRows, parse_claim
from rljob_workers.transfer_queue.control.waits import Answer
from rljob_workers.transfer_queue.damage import fetch_undamaged
from rljob_workers.transfer_queue.errors import (
    ControlUnreachable,
    CorruptChunk,
    NotOpen,
    RowsLost,
    StorageUnreachable,
)
from rljob_workers.transfer_queue.life_access import LifeAccess
from rljob_workers.transfer_queue.types import Batch, Claim, Exhausted, NotReady, Task

EXPLAIN_SECONDS = 2.0
"""How old the word may be which fields a training batch waits for."""
LOST_ROWS_PAUSE_SECONDS = 0.1
"""Before rows whose bytes are gone are asked for again; the coordinator has them made anew meanwhile."""


class Claims:
    """Those of one client."""

    def __init__(self, access: LifeAccess) -> None:
        self._access = access
        self._explained: tuple[float, str, str] = (float("-inf"), "", "")
        """When, of what, and what was missing for it."""
        self._unheard: list[str] = []
        """Leases that we may have without knowing: the next claim ends them."""

    def ask_rows(self, task: Task, partitions: range, max_rows: int, deadline: float, what: str) -> Answer[Claim]:
        """Rows of a forward task, under a new lease; `what` names them. Tried until `deadline` and a little longer."""
        lease, lease_ms = secrets.token_hex(8), int(self._access.timing.lease_seconds * 1000)
        arguments: tuple[Argument, ...] = (partitions[0], partitions[-1], max_rows, lease, lease_ms, *self._unheard)
        # A server that hangs may do later what we gave up by then.
        self._unheard.append(lease)
        return self._ask("claim", task, arguments, deadline, what, lease)

    def ask_batch(self, task: Task, arguments: tuple[Argument, ...], deadline: float, what: str) -> Answer[Claim]:
        """A share of a training batch, likewise."""
        return self._ask("claim_training", task, arguments, deadline, what, None)

    def _ask(
        self, name: str, task: Task, arguments: tuple[Argument, ...], deadline: float, what: str, lease: str | None
    ) -> Answer[Claim]:
        waiting = f"{self._access} waits for {what}"
        until = self._beyond(deadline)
        try:
            reply = self._access.change(name, task.name, *arguments, deadline=until, waiting=waiting)
        except (ControlUnreachable, NotOpen) as error:
            return Answer(NotReady(str(error)), is_final=False, stands=False)
        if lease is not None:
            self._unheard.clear()
        if reply[0] == b"E":
            return Answer(Exhausted(), is_final=True)
        if reply[0] == b"N":
            return Answer(NotReady(what), is_final=False)
        return self._fetch(parse_claim(reply[2:], reply[1], task.needs), lease, waiting)

    def release(self, lease: str, num_rows: int, deadline: float | None = None) -> None:
        """Hands a lease back; nothing if it ended already."""
        self._access.change("release", lease, deadline=deadline, waiting=f"{self._access} releases {num_rows} rows")

    def lacking(self, task: Task, rollout_id: RolloutId, what: str) -> str:
        """Which fields `what` misses; looked up seldom, since it goes over all groups of the partition."""
        since, of, told = self._explained
        now = self._access.clock()
        if of == what and now < since + EXPLAIN_SECONDS:
            return told
        try:
            lacking = self._access.control.read("lacking", task.name, rollout_id, deadline=now, waiting="")
        except (ControlUnreachable, NotOpen):
            return ""
        missing = [f"{field} ({count} rows)" for field, count in zip(task.needs, lacking, strict=True) if count]
        told = f"; missing: {', '.join(missing)}" if missing else ""
        self._explained = (self._access.clock(), what, told)
        return told

    def _beyond(self, deadline: float) -> float:
        return deadline + self._access.timing.claim_patience_seconds

    def _fetch(self, claimed: ClaimedRows, lease: str | None, waiting: str) -> Answer[Claim]:
        try:
            columns = fetch_undamaged(self._access, claimed.fields, deadline=self._access.deadline(), waiting=waiting)
        except (StorageUnreachable, RowsLost, CorruptChunk) as error:
            if isinstance(error, CorruptChunk) and error.chunk is None:
                raise  # no reading cures what the control state says
            # Not waited for here: the caller beats, and asks again until the unit is back or the rows are made anew.
            # Where the control Redis does not answer either, the next claim ends the lease.
            if lease is not None:
                self._unheard.append(lease)
            with suppress(ControlUnreachable, NotOpen):
                until = self._beyond(self._access.clock())
                if isinstance(error, RowsLost):
                    # An empty unit the coordinator sees by itself; of single chunks it hears from who reads them.
                    self._access.change(
                        "report_missed", claimed.rollout_id, *error.units, deadline=until, waiting=waiting
                    )
                if lease is not None:
                    self.release(lease, len(claimed.rows), until)
                    self._unheard.remove(lease)
            self._access.sleep(LOST_ROWS_PAUSE_SECONDS)
            return Answer(NotReady(str(error)), is_final=False, stands=False)
        self._access.count("queue_got_bytes", sum(column.values.nbytes for column in columns.values()))
        groups = claimed.rows // self._access.shape.samples_per_prompt
        batch = Batch(RolloutId(claimed.rollout_id), claimed.rows, groups, claimed.oldest, columns, lease)
        return Answer(batch, is_final=True)
