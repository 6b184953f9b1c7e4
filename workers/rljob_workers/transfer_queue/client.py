"""The queue as a rank sees it: tickets and groups in, claims and results, training batches.

For the roles, one per rank, used from one thread. Bytes go through `storage`, everything that decides goes through one
Lua function on the control Redis; between the two nothing of this client is part of the queue. Knows no weights, no
models and no coordinator.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId, partition_name
from rljob_api.spec import Waiting
from rljob_api.wire.identity import Endpoints, Life, WeightId
from rljob_workers.transfer_queue.control.connection import Argument, Clock, ControlConnection, Sleep, StaleUnit
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.control.notices import Notices, Polling, Subscription
from rljob_workers.transfer_queue.control.rows import ChunkIds, ClaimedRows, field_arguments, pack_weights, parse_claim
from rljob_workers.transfer_queue.control.waits import Answer, Waits
from rljob_workers.transfer_queue.errors import (
    AttemptsExhausted,
    ControlUnreachable,
    LeaseLost,
    NotOpen,
    RowsLost,
    StorageFull,
    StorageUnreachable,
    TicketLost,
)
from rljob_workers.transfer_queue.jagged import Column, Jagged, join
from rljob_workers.transfer_queue.placement import ChunkRef, FieldPlacement
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.types import (
    Batch,
    Claim,
    ClaimPolicy,
    Exhausted,
    GroupRows,
    NotReady,
    QueueShape,
    Task,
    TaskKind,
    Ticket,
    Withheld,
)

PATIENCE_SECONDS = 30.0
"""How long a change waits for Redis: a restart of it takes about a second."""
CLAIM_PATIENCE_SECONDS = 2.0
"""Beyond a claim's own timeout. Shorter: a claim may be asked again, and its caller must beat meanwhile."""
LEASE_SECONDS = 30.0
"""A lease that no beat renews ends after this."""
EXPLAIN_SECONDS = 2.0
"""How old the word may be which fields a training batch waits for."""
LOST_ROWS_PAUSE_SECONDS = 0.1
"""Before rows whose bytes are gone are asked for again; the coordinator has them made anew meanwhile."""

_TICKET = struct.Struct("<6I")


class TransferQueueClient:
    """One life's access to the queue.

    tickets = queue.claim_tickets(holds, 32, timeout=0.2)    rollout: then put_groups, redraw or return_tickets
    batch = queue.claim(task, range(0, 10), 64, timeout=0.2) forward: then put under the lease, or release
    batch = queue.claim_training(task, r, 0, 64, 0, 1, timeout=0.2)    training: then commit_training
    """

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        life: Life,
        *,
        waiting: Waiting = Waiting.NOTIFY,
        checksums: bool = False,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used. The life must have begun (`QueueSteward.begin_life`)."""
        self._shape = shape
        self._life = life
        self._clock = clock
        self._sleep = sleep
        self._tasks = {task.name: task for task in shape.tasks}
        url = endpoints.control_redis
        self._control = ControlConnection(url, library(shape), clock=clock, sleep=sleep)
        self._notices: Notices = (
            Polling(sleep) if waiting is Waiting.POLL else Subscription(url, clock=clock, sleep=sleep)
        )
        self._waits = Waits(self._notices, clock)
        self._units = StorageUnits(
            endpoints.storage_units, life.epoch, life.incarnation, checksums=checksums, clock=clock, sleep=sleep
        )
        self._chunk_ids = ChunkIds(life.incarnation)
        self._stored: list[ChunkRef] = []
        """Chunks of the put in hand."""
        self._explained: tuple[float, str, str] = (float("-inf"), "", "")
        """When, of what, and what was missing for it."""
        self._calls = 0
        self.seen_seq = 0
        """Highest seq that any answer has shown; sent with beats."""

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._control.close()
        self._notices.close()
        self._units.close()

    # --- tickets -------------------------------------------------------------------------------------------------

    def claim_tickets(self, holds: WeightId, limit: int, timeout: float) -> list[Ticket] | Withheld:
        """Up to `limit` tickets that a replica holding `holds` may work on, lowest rollout first; else why not."""
        if limit < 1:
            raise ValueError(f"limit: {limit} tickets cannot be claimed. Ask for at least 1.")

        question = (holds.lineage, holds.version, limit)

        def ask(deadline: float) -> Answer[list[Ticket] | Withheld]:
            try:
                reply = self._change(
                    "claim_tickets",
                    *question,
                    deadline=deadline + CLAIM_PATIENCE_SECONDS,
                    waiting=f"{self} waits for tickets",
                )
            except (ControlUnreachable, NotOpen):
                return Answer(Withheld.CLOSED, is_final=False, stands=False)
            if reply[0] == b"W":
                return Answer(Withheld(reply[1].decode()), is_final=False)
            return Answer([_ticket(raw) for raw in _TICKET.iter_unpack(reply[1])], is_final=True)

        return self._waits.first_final("tickets", question, ask, timeout)

    def put_groups(self, groups: Sequence[GroupRows]) -> list[bool]:
        """Makes whole groups part of the queue, all in one commit.

        False where the ticket was lost, or the group's weights died or are too old: it is generated again by somebody.
        """
        for group in groups:
            self._check_group(group)
        order = sorted(range(len(groups)), key=lambda place: groups[place].ticket.rollout_id)
        sections = _by_partition([groups[place] for place in order])
        waiting = f"{self} puts {len(groups)} groups of {_names(sections)}"
        verdicts = self._store_and_commit(
            "put_groups", lambda deadline: self._sections(sections, deadline, waiting), waiting
        )[0]
        accepted = [False] * len(groups)
        for place, verdict in zip(order, verdicts.decode(), strict=True):
            accepted[place] = verdict == "1"
        return accepted

    def return_tickets(self, tickets: Sequence[Ticket], *, killed: bool) -> None:
        """Hands tickets back. `killed`: an engine died working on them, so their prompts become suspects."""
        if tickets:
            ids = [ticket.id for ticket in tickets]
            self._change("return_tickets", int(killed), *ids, waiting=f"{self} returns {len(ids)} tickets")

    def redraw(self, ticket: Ticket, reason: str) -> Ticket:
        """Closes this attempt and draws the next prompt for the same group.

        Raises TicketLost when the ticket came back meanwhile, AttemptsExhausted beyond maxAttempts.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self._change("redraw", ticket.id, waiting=f"{self} draws {where} anew")
        if reply[0] == b"X":
            raise AttemptsExhausted(
                f"rollout.maxAttempts: {where} was drawn {reply[1]} times, as often as allowed; the last draw (prompt"
                f" {ticket.prompt_index}) was rejected: {reason}. Raise maxAttempts, or let the filter pass more."
            )
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was redrawn.")
        return _ticket(_TICKET.unpack(reply[1]))

    def ticket_table(self) -> bytes:
        """The state of draws, as JSON, for a checkpoint: it is needed only where the control Redis is lost."""
        reply = self._control.read(
            "ticket_table", deadline=self._clock() + PATIENCE_SECONDS, waiting=f"{self} reads the ticket table"
        )
        cursor, front, draws, kills = reply
        counts = {prompt.decode(): int(count) for prompt, count in zip(kills[::2], kills[1::2], strict=True)}
        draws_list = orjson.loads(draws)
        return orjson.dumps(
            {"cursor": cursor, "front": [int(prompt) for prompt in front], "draws": draws_list or [], "kills": counts}
        )

    # --- forward tasks -------------------------------------------------------------------------------------------

    def claim(self, task: str, partitions: range, max_rows: int, *, timeout: float) -> Claim:
        """Rows of the oldest of `partitions` that has any ready, under a lease that beats renew."""
        consumer = self._task(task, TaskKind.FORWARD)
        if max_rows < 1 or partitions.step != 1:
            raise ValueError(f"claim: max_rows {max_rows} must be positive and {partitions} must have step 1.")
        if not partitions:
            return Exhausted()
        what = f"rows of train_{partitions[0]} to train_{partitions[-1]} for {task}"

        def ask(deadline: float) -> Answer[Claim]:
            lease = secrets.token_hex(8)
            arguments = (partitions[0], partitions[-1], max_rows, lease, int(LEASE_SECONDS * 1000))
            return self._batch("claim", consumer, arguments, deadline, what, lease)

        return self._waits.first_final(task, (partitions, max_rows), ask, timeout)

    def put(self, batch: Batch, columns: Mapping[str, Jagged], *, weight: WeightId | None) -> None:
        """Results of a forward task for all rows of `batch`, made by `weight` (None: no weight had a part in them).

        Raises LeaseLost when the lease ended meanwhile: the results are thrown away.
        """
        if batch.lease is None:
            raise ValueError("put: the batch has no lease. Only batches of `claim` take results.")
        for field, column in columns.items():
            if len(column) != len(batch):
                raise ValueError(f"put: {field} has {len(column)} rows, the batch has {len(batch)}.")
        lease, where = batch.lease, partition_name(batch.rollout_id)
        waiting = f"{self} puts {', '.join(columns)} of {len(batch)} rows of {where}"
        lineage, version = (weight.lineage, weight.version) if weight else (0, -1)

        def arguments(deadline: float) -> list[Argument]:
            stored = self._store(columns, deadline, waiting)
            packed = [
                field_arguments(stored[field], self._chunk_ids, weight) for field in self._written_fields(columns)
            ]
            return [lease, lineage, version, *(argument for field in packed for argument in field)]

        reply = self._store_and_commit("put", arguments, waiting)
        if reply[0] == b"L":
            self._take_back()
            raise LeaseLost(
                f"TransferQueue: lease {lease} on {len(batch)} rows of {where} ended before its results came."
            )

    def release(self, batch: Batch) -> None:
        """Hands a lease back; nothing if it ended already."""
        if batch.lease is not None:
            self._change("release", batch.lease, waiting=f"{self} releases {len(batch)} rows")

    # --- training tasks ------------------------------------------------------------------------------------------

    def claim_training(
        self,
        task: str,
        rollout_id: RolloutId,
        batch_index: int,
        num_rows: int,
        dp_rank: int,
        dp_size: int,
        *,
        timeout: float,
    ) -> Claim:
        """This rank's equal share of batch `batch_index`, which has `num_rows` rows over all data-parallel ranks.

        The first rank that asks fixes the batch for all of them; the same question always gets the same rows.
        """
        consumer = self._task(task, TaskKind.TRAINING)
        if num_rows < 1 or num_rows % dp_size or not 0 <= dp_rank < dp_size:
            raise ValueError(
                f"claim_training: {num_rows} rows cannot be dealt evenly to rank {dp_rank} of {dp_size}."
                " Use a positive multiple of the data-parallel size."
            )
        samples = self._shape.samples_per_prompt
        if consumer.policy is ClaimPolicy.GROUP and num_rows % (dp_size * samples):
            raise ValueError(
                f"claim_training: {num_rows} rows are no equal number of whole groups of {samples} for each of"
                f" {dp_size} ranks. Use a multiple of {dp_size * samples}."
            )
        what = f"batch {batch_index} ({num_rows} rows) of {partition_name(rollout_id)} for {task}"
        arguments = (rollout_id, batch_index, num_rows, dp_rank, dp_size)

        def ask(deadline: float) -> Answer[Claim]:
            return self._batch("claim_training", consumer, arguments, deadline, what, None)

        answer = self._waits.first_final(task, arguments, ask, timeout)
        if isinstance(answer, NotReady) and answer.waiting_for == what:
            return NotReady(what + self._lacking(consumer, rollout_id, what))
        return answer

    def commit_training(self, task: str, rollout_id: RolloutId, batch_indices: Iterable[int]) -> None:
        """The optimizer step on these batches is done; by data-parallel rank 0, once per optimizer step."""
        self._task(task, TaskKind.TRAINING)
        indices = list(batch_indices)
        waiting = f"{self} commits batches {indices} of {partition_name(rollout_id)}"
        self._change("commit_training", task, rollout_id, *indices, waiting=waiting)

    # --- inside --------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return str(self._life.key)

    def _task(self, name: str, kind: TaskKind) -> Task:
        task = self._tasks.get(name)
        if task is None or task.kind is not kind:
            known = ", ".join(other.name for other in self._shape.tasks if other.kind is kind)
            raise ValueError(f"task: {name!r} is no {kind.value} task of this job. Known: {known}.")
        return task

    def _written_fields(self, columns: Mapping[str, Jagged]) -> tuple[str, ...]:
        for task in self._shape.tasks:
            if task.writes and set(task.writes) == set(columns):
                return task.writes
        raise ValueError(f"put: no task writes exactly {sorted(columns)}. Give every field that the task writes.")

    def _check_group(self, group: GroupRows) -> None:
        wanted, found = set(self._shape.generated_fields), set(group.columns)
        if wanted != found:
            raise ValueError(f"put_groups: fields {sorted(found)} were given, {sorted(wanted)} are needed.")
        num_rows = self._shape.samples_per_prompt
        counts = {field: len(column) for field, column in group.columns.items()}
        counts |= {"oldest": len(group.oldest), "newest": len(group.newest)}
        for name, count in counts.items():
            if count != num_rows:
                raise ValueError(f"put_groups: {name} has {count} rows, a group has {num_rows} (samplesPerPrompt).")

    def _sections(
        self, sections: Mapping[RolloutId, Sequence[GroupRows]], deadline: float, waiting: str
    ) -> list[Argument]:
        arguments: list[Argument] = [len(sections)]
        for rollout_id, groups in sections.items():
            columns = {
                field: join([group.columns[field] for group in groups]) for field in self._shape.generated_fields
            }
            stored = self._store(columns, deadline, waiting)
            places = np.array([(group.ticket.id, group.ticket.group) for group in groups], "<u4").tobytes()
            weights = b"".join(pack_weights(group.oldest, group.newest) for group in groups)
            arguments += (rollout_id, places, weights)
            for field in self._shape.generated_fields:
                arguments += field_arguments(stored[field], self._chunk_ids, None)
        return arguments

    def _store_and_commit(self, name: str, store: Callable[[float], list[Argument]], waiting: str) -> list[Any]:
        """Stores the bytes and commits them; both again where a unit came back empty in between."""
        deadline = self._clock() + PATIENCE_SECONDS
        while True:
            self._stored.clear()
            try:
                arguments = store(deadline)
                failpoint("queue.between_bytes_and_commit")
                return self._change(name, *arguments, deadline=deadline, waiting=waiting)
            except (StaleUnit, StorageFull, StorageUnreachable) as error:
                self._take_back()
                if not isinstance(error, StaleUnit) or self._clock() >= deadline:
                    raise
                # The connection to that unit is still the old one; a new one learns the new generation.
                self._units.close()

    def _store(self, columns: Mapping[str, Column], deadline: float, waiting: str) -> Mapping[str, FieldPlacement]:
        placements = self._units.store(columns, deadline=deadline, waiting=waiting).fields
        self._stored.extend(chunk for placement in placements.values() for chunk in placement.chunks)
        return placements

    def _take_back(self) -> None:
        """Deletes bytes that were not taken; what a unit that is away keeps of them goes with this life."""
        with suppress(StorageUnreachable):
            self._units.delete(self._stored, deadline=self._clock() + CLAIM_PATIENCE_SECONDS)

    def _batch(
        self, name: str, task: Task, arguments: tuple[Argument, ...], deadline: float, what: str, lease: str | None
    ) -> Answer[Claim]:
        waiting = f"{self} waits for {what}"
        until = deadline + CLAIM_PATIENCE_SECONDS
        try:
            reply = self._change(name, task.name, *arguments, deadline=until, waiting=waiting)
        except (ControlUnreachable, NotOpen) as error:
            return Answer(NotReady(str(error)), is_final=False, stands=False)
        if reply[0] == b"E":
            return Answer(Exhausted(), is_final=True)
        if reply[0] == b"N":
            return Answer(NotReady(what), is_final=False)
        return self._fetch(parse_claim(reply[2:], reply[1], task.needs), lease, waiting)

    def _fetch(self, claimed: ClaimedRows, lease: str | None, waiting: str) -> Answer[Claim]:
        rollout_id = RolloutId(claimed.rollout_id)
        batch = Batch(
            rollout_id, claimed.rows, claimed.rows // self._shape.samples_per_prompt, claimed.oldest, {}, lease
        )
        try:
            columns = self._units.fetch(claimed.fields, deadline=self._clock() + PATIENCE_SECONDS, waiting=waiting)
        except StorageUnreachable as error:
            # Not waited for here: the caller beats, and asks again until the unit is back or was started anew.
            self.release(batch)
            self._sleep(LOST_ROWS_PAUSE_SECONDS)
            return Answer(NotReady(str(error)), is_final=False, stands=False)
        except RowsLost as error:
            self.release(batch)
            self._sleep(LOST_ROWS_PAUSE_SECONDS)
            return Answer(NotReady(str(error)), is_final=False, stands=False)
        return Answer(Batch(rollout_id, batch.rows, batch.groups, batch.oldest_versions, columns, lease), is_final=True)

    def _lacking(self, task: Task, rollout_id: RolloutId, what: str) -> str:
        """Which fields are missing; looked up seldom, since the control Redis counts all rows of the partition."""
        since, of, told = self._explained
        if of == what and self._clock() < since + EXPLAIN_SECONDS:
            return told
        try:
            lacking = self._control.read("lacking", task.name, rollout_id, deadline=self._clock(), waiting="")
        except (ControlUnreachable, NotOpen):
            return ""
        missing = [f"{field} ({count} rows)" for field, count in zip(task.needs, lacking, strict=True) if count]
        told = f"; missing: {', '.join(missing)}" if missing else ""
        self._explained = (self._clock(), what, told)
        return told

    def _change(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        self._calls += 1
        reply = self._control.change(
            name,
            self._life.epoch,
            self._life.incarnation,
            self._calls,
            *args,
            deadline=self._clock() + PATIENCE_SECONDS if deadline is None else deadline,
            waiting=waiting,
        )
        failpoint("queue.after_script")
        self.seen_seq = max(self.seen_seq, reply[0])
        return reply[1:]


def _ticket(raw: tuple[int, ...]) -> Ticket:
    number, rollout_id, group, attempt, prompt_index, alone = raw
    return Ticket(number, RolloutId(rollout_id), group, attempt, prompt_index, bool(alone))


def _by_partition(groups: Sequence[GroupRows]) -> dict[RolloutId, list[GroupRows]]:
    sections: dict[RolloutId, list[GroupRows]] = {}
    for group in groups:
        sections.setdefault(group.ticket.rollout_id, []).append(group)
    return sections


def _names(rollout_ids: Iterable[RolloutId]) -> str:
    return ", ".join(partition_name(rollout_id) for rollout_id in rollout_ids)
