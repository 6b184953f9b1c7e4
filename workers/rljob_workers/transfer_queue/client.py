"""The queue's interface for a rank: tickets and groups in, claims and results, training batches.

For the roles, one per rank, used from one thread. Every decision is one Lua function on the control Redis; bytes go
through `storage`. A put stores bytes, then commits: one that dies in between leaves bytes that the coordinator sweeps.
A claim takes rows, then fetches: rows whose bytes do not arrive are handed back. Knows no weights, models or
coordinator.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from rljob_api.failpoints import failpoint
from rljob_api.names import RolloutId, WeightVersion, partition_name
from rljob_api.spec.queue import Waiting
from rljob_api.spec.rollout import GroupOrder
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.tensors.jagged import Column, Jagged, join
from rljob_workers.transfer_queue.chunks import DTYPES
from rljob_workers.transfer_queue.control.connection import (
    Argument,
    ControlConnection,
    Notices,
    Polling,
    StaleUnit,
    Subscription,
    Wait,
)
from rljob_workers.transfer_queue.control.library import library
from rljob_workers.transfer_queue.errors import (
    AttemptsExhausted,
    ControlUnreachable,
    CorruptChunk,
    LeaseLost,
    NotOpen,
    RowsLost,
    StorageFull,
    StorageUnreachable,
    TicketLost,
)
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore, PassRates
from rljob_workers.transfer_queue.resp import Clock, Sleep
from rljob_workers.transfer_queue.row_format import (
    HEADER_BYTES,
    ChunkIds,
    ChunkRef,
    ClaimedRows,
    FieldPlacement,
    describe,
    field_arguments,
    pack_weights,
    parse_chunk,
    parse_claim,
)
from rljob_workers.transfer_queue.storage import StorageUnits
from rljob_workers.transfer_queue.types import (
    Batch,
    Claim,
    EvaluationState,
    EvaluationWaits,
    Exhausted,
    GroupPlace,
    GroupRows,
    GroupSoFar,
    NotReady,
    QueueShape,
    QueueTiming,
    Task,
    TaskKind,
    Ticket,
    Withheld,
    parse_places,
    parse_tickets,
    table_of_draws,
)

EXPLAIN_SECONDS = 2.0
"""For so long the client repeats which fields a training batch waits for, without a call."""


_NO_ROW = 0xFFFFFFFF


LOST_ROWS_PAUSE_SECONDS = 0.1
"""Before a claim is repeated whose bytes are lost; the coordinator has the rows generated again meanwhile."""


def check_group(group: GroupRows, shape: QueueShape) -> None:
    """Raises ValueError where a field is missing or too many, or a column has not the rows of a group."""
    wanted, found = set(shape.generated_fields), set(group.columns)
    if wanted != found:
        raise ValueError(f"put_groups: fields {sorted(found)} were given, {sorted(wanted)} are needed.")
    num_rows = shape.samples_per_prompt
    columns: dict[str, Sized] = {**group.columns, "oldest": group.oldest, "newest": group.newest}
    check_rows("put_groups", columns, num_rows, f"a group has {num_rows} (samplesPerPrompt)")


def check_rows(call: str, columns: Mapping[str, Sized], num_rows: int, wanted: str) -> None:
    """Raises ValueError where a column has not `num_rows` rows, as `wanted` states."""
    for name, column in columns.items():
        if len(column) != num_rows:
            raise ValueError(f"{call}: {name} has {len(column)} rows, {wanted}.")


@dataclass(frozen=True, slots=True)
class Elements:
    """What the elements of a field must be."""

    dtype: torch.dtype
    inner: tuple[int, ...]

    @classmethod
    def of(cls, shape: QueueShape) -> dict[str, Elements]:
        """Of the fields whose kind is known."""
        return {kind.field: cls(DTYPES[kind.dtype], kind.inner) for kind in shape.kinds}


def check_elements(call: str, columns: Mapping[str, Column], wanted: Mapping[str, Elements]) -> None:
    """Raises ValueError where a column's dtype or inner shape is not the field's; all its parts have the same."""
    for name, column in columns.items():
        kind, values = wanted.get(name), column.parts[0].values
        if kind is not None and (values.dtype is not kind.dtype or values.shape[1:] != kind.inner):
            raise ValueError(
                f"{call}: {name} is {_element_name(values.dtype, values.shape[1:])}, the table of columns says"
                f" {_element_name(kind.dtype, kind.inner)}. Convert it before it is put."
            )


def _element_name(dtype: torch.dtype, inner: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(inner) if inner else ''}"


def by_partition(groups: Sequence[GroupRows], order: GroupOrder) -> list[list[int]]:
    """Places in `groups` of those that are stored together: of one partition, where that is known before a put."""
    if order is GroupOrder.SWAP:
        return [[place] for place in range(len(groups))]
    sections: dict[RolloutId, list[int]] = {}
    for place, group in enumerate(groups):
        sections.setdefault(group.ticket.rollout_id, []).append(place)
    return [sections[rollout_id] for rollout_id in sorted(sections)]


def joined_columns(groups: Sequence[GroupRows], fields: Sequence[str]) -> Mapping[str, Column]:
    """Per field, the rows of all groups, one group behind the other."""
    return {field: join([group.columns[field] for group in groups]) for field in fields}


def pack_tickets(groups: Sequence[GroupRows]) -> bytes:
    """Per group, its ticket."""
    return np.array([group.ticket.id for group in groups], "<u4").tobytes()


def pack_group_weights(groups: Sequence[GroupRows]) -> bytes:
    """Per row of every group, the weights of its oldest and newest token."""
    return b"".join(pack_weights(group.oldest, group.newest) for group in groups)


def _bytes_column(data: bytes) -> Jagged:
    """A row of bytes."""
    return Jagged.from_rows([torch.frombuffer(bytearray(data), dtype=torch.uint8)])


@dataclass(frozen=True, slots=True)
class _Section:
    """Columns of one commit: its arguments are `head`, then what was stored of `fields`, made by `weight`."""

    head: Sequence[Argument]
    columns: Mapping[str, Column]
    fields: Sequence[str]
    weight: WeightId | None


class TransferQueueClient:
    """One incarnation's access to the queue.

    tickets = queue.claim_tickets(holds, 32, timeout=0.2)    rollout: then put_groups, redraw, refuse or return_tickets
    batch = queue.claim(task, range(0, 10), 64, timeout=0.2) forward: then put under the lease, or release
    batch = queue.claim_training(task, r, 0, 64, 0, 1, timeout=0.2)    training: then commit_training
    """

    def __init__(
        self,
        endpoints: Endpoints,
        shape: QueueShape,
        incarnation: Incarnation,
        *,
        waiting: Waiting = Waiting.NOTIFY,
        checksums: bool = False,
        counters: MutableMapping[str, float] | None = None,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used. The incarnation must have begun (`QueueAdmin.begin_incarnation`).

        `counters`: where the bytes that were put and got are counted.
        """
        self._shape = shape
        self._elements = Elements.of(shape)
        self._incarnation = incarnation
        self._name = str(incarnation.key)
        self._timing = timing
        self._clock = clock
        self._sleep = sleep
        self._tasks = {task.name: task for task in shape.tasks}
        self._control = ControlConnection(
            endpoints.control_redis, library(shape), timing=timing, clock=clock, sleep=sleep
        )
        self._units = StorageUnits(
            endpoints.storage_units,
            incarnation.epoch,
            incarnation.id,
            checksums=checksums,
            timing=timing,
            clock=clock,
            sleep=sleep,
        )
        self._notices: Notices = (
            Polling(sleep)
            if waiting is Waiting.POLL
            else Subscription(endpoints.control_redis, timing=timing, clock=clock, sleep=sleep)
        )
        self._ticket_wait = Wait[Withheld](self._notices, "tickets", clock)
        self._evaluation_wait = Wait[bool](self._notices, "evaluated", clock)
        self._waits = {task.name: Wait[NotReady](self._notices, task.name, clock) for task in shape.tasks}
        self._counters = {} if counters is None else counters
        self._calls = 0
        self._chunk_ids = ChunkIds(incarnation.id)
        self._unconfirmed_leases: list[str] = []
        """Leases that the control Redis may have given without an answer: the next claim ends them."""
        self._explained: tuple[float, str, str] = (float("-inf"), "", "")
        """When, of what, and what was missing for it."""
        self.seen_seq = 0
        """Highest seq of any reply; sent with beats."""

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._control.close()
        self._units.close()
        self._notices.close()

    # --- tickets -------------------------------------------------------------------------------------------------

    def claim_tickets(self, holds: WeightId, limit: int, timeout: float) -> list[Ticket] | Withheld:
        """Up to `limit` tickets that a replica holding `holds` may work on, lowest rollout first; else why not."""
        if limit < 1:
            raise ValueError(f"limit: {limit} tickets cannot be claimed. Ask for at least 1.")

        question = (holds.lineage, holds.version, limit)
        wait, patience = self._ticket_wait, self._timing.claim_patience_seconds
        for deadline in wait.turns(question, timeout):
            until = deadline + patience
            try:
                reply = self._change("claim_tickets", *question, deadline=until, waiting=f"{self} waits for tickets")
            except (ControlUnreachable, NotOpen):
                wait.failed(Withheld.CLOSED)
                continue
            if reply[0] != b"W":
                return parse_tickets(reply[1])
            wait.answer = Withheld(reply[1].decode())
        return wait.answer

    def put_groups(self, groups: Sequence[GroupRows]) -> list[GroupPlace | None]:
        """Makes whole groups part of the queue, all in one commit, and says where each is.

        With `GroupOrder.SWAP` that need not be the place of its ticket. None where the ticket was lost, or the group's
        weights died or are too old: it is generated again.
        """
        for group in groups:
            check_group(group, self._shape)
        parts = by_partition(groups, self._shape.order)
        sections = [self._section_of([groups[place] for place in part]) for part in parts]
        for section in sections:
            check_elements("put_groups", section.columns, self._elements)
        names = ", ".join(partition_name(r) for r in sorted({group.ticket.rollout_id for group in groups}))
        waiting = f"{self} puts {len(groups)} groups of {names}"
        [packed, *_], _ = self._commit("put_groups", [len(sections)], sections, waiting)
        found: list[GroupPlace | None] = [None] * len(groups)
        for place, where in zip(chain.from_iterable(parts), parse_places(packed), strict=True):
            found[place] = where
        return found

    def _section_of(self, groups: Sequence[GroupRows]) -> _Section:
        fields = self._shape.generated_fields
        head: list[Argument] = [groups[0].ticket.rollout_id, pack_tickets(groups), pack_group_weights(groups)]
        if self._shape.has_curriculum:
            head.append(b"".join(group.score.pack() for group in groups))
        return _Section(head, joined_columns(groups, fields), fields, None)

    def return_tickets(self, tickets: Sequence[Ticket], *, killed: bool) -> None:
        """Hands tickets back. `killed`: an engine died working on them, so their prompts become suspects."""
        if tickets:
            ids = [ticket.id for ticket in tickets]
            self._change("return_tickets", int(killed), *ids, waiting=f"{self} returns {len(ids)} tickets")

    def redraw(self, ticket: Ticket, reason: str) -> Ticket:
        """Closes this attempt and draws the next prompt for the same group.

        Raises TicketLost when the ticket came back meanwhile or the next prompt is for a replica that has nothing else,
        AttemptsExhausted beyond maxAttempts.
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
        return parse_tickets(reply[1])[0]

    def refuse(self, ticket: Ticket, score: GroupScore = UNSCORED) -> Ticket:
        """Closes this attempt, which a filter refuses, and draws the next prompt for the same group: no failed draw.

        `score`: what its samples have earned; only jobs with a curriculum count it.

        The new ticket counts it in `refused`, for any rank that gets it. Raises TicketLost as `redraw` does.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self._change("refuse", ticket.id, score.pack(), waiting=f"{self} draws {where} anew")
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was refused.")
        return parse_tickets(reply[1])[0]

    def pass_over(self, ticket: Ticket) -> Ticket:
        """Draws the next prompt for the same group and attempt: this one is none that can be generated for.

        Raises TicketLost as `redraw` does.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self._change("pass_over", ticket.id, waiting=f"{self} passes over a prompt of {where}")
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was passed over.")
        return parse_tickets(reply[1])[0]

    def ticket_table(self) -> bytes:
        """The state of draws, as JSON, for a checkpoint: it is needed only where the control Redis is lost."""
        reply = self._control.read("ticket_table", deadline=self._deadline(), waiting=f"{self} reads the ticket table")
        return table_of_draws(*reply)

    # --- curriculum ----------------------------------------------------------------------------------------------

    def chosen_rows(self, draws: range) -> list[int | None]:
        """The row of the data of each draw, in jobs with a curriculum; None where none is chosen yet."""
        waiting = f"{self} looks up the rows of {len(draws)} draws"
        (packed,) = self._control.read("chosen", draws.start, len(draws), deadline=self._deadline(), waiting=waiting)
        return [None if row == _NO_ROW else row for row in np.frombuffer(packed, "<u4").tolist()]

    def choose_rows(self, draws: Sequence[int], rows: Sequence[int]) -> list[int]:
        """Chooses a row for each draw, and gives the rows that stand: what was chosen before is not changed."""
        packed = [np.array(numbers, "<u4").tobytes() for numbers in (draws, rows)]
        (chosen,) = self._change("choose", *packed, waiting=f"{self} chooses the rows of {len(draws)} draws")
        return [int(row) for row in np.frombuffer(chosen, "<u4")]

    def pass_rates(self, num_rows: int) -> PassRates:
        """What the samples of each of the data's rows have earned so far."""
        (packed,) = self._control.read("pass_rates", deadline=self._deadline(), waiting=f"{self} reads the pass rates")
        return PassRates.parse(packed, num_rows)

    # --- partials ------------------------------------------------------------------------------------------------

    def save_partials(self, groups: Sequence[GroupSoFar]) -> list[bool]:
        """Saves what was generated of groups, in the place of what was saved of them before.

        False for what was not: the ticket is another's, or a server has no room or is away. That costs tokens where
        the group is interrupted before the next save, and nothing else, so that this waits for no server for long.
        """
        if not groups:
            return []
        deadline, waiting = self._soon(), f"{self} saves what was generated of {len(groups)} groups"
        columns = {f"partial{group.ticket.id}": _bytes_column(group.data) for group in groups}
        try:
            stored = self._units.store(columns, deadline=deadline, waiting=waiting)
        except (StorageFull, StorageUnreachable):
            return [False] * len(groups)
        chunks = [placement.chunks[0] for placement in stored.values()]
        failpoint("queue.between_bytes_and_commit")
        arguments: list[Argument] = []
        for group, chunk in zip(groups, chunks, strict=True):
            arguments += (group.ticket.id, pack_weights(group.oldest, group.newest), describe(chunk))
        try:
            [verdicts] = self._change("save_partials", *arguments, deadline=deadline, waiting=waiting)
        except StaleUnit:
            self._discard(chunks)
            self._units.close()
            return [False] * len(groups)
        except (ControlUnreachable, NotOpen):
            return [False] * len(groups)  # it may have been made all the same: the bytes are left to the sweep
        self._count("queue_put_bytes", sum(chunk.num_bytes for chunk in chunks))
        return [verdict == "1" for verdict in verdicts.decode()]

    def read_partials(self, tickets: Sequence[Ticket]) -> dict[int, bytes]:
        """What was saved of the groups of tickets that this rank holds, by ticket; of most there is nothing.

        Left out, too: what may not be trained with the ticket's rollout, and what a server does not give.
        """
        if not tickets:
            return {}
        waiting = f"{self} reads what was generated of {len(tickets)} groups"
        ids = [ticket.id for ticket in tickets]
        try:
            lines = self._change("read_partials", *ids, deadline=self._soon(), waiting=waiting)
        except (ControlUnreachable, NotOpen):
            return {}
        found: dict[int, bytes] = {}
        for number, line in zip(ids, lines, strict=True):
            with suppress(StorageUnreachable, RowsLost, CorruptChunk):
                if line:
                    found[number] = self._read_partial(parse_chunk(line), waiting)
        return found

    def _read_partial(self, chunk: ChunkRef, waiting: str) -> bytes:
        rows = np.array([[0, 0, chunk.num_bytes - HEADER_BYTES]], np.uint32)
        placement = {chunk.field: FieldPlacement((chunk,), rows)}
        column = self._units.fetch(placement, deadline=self._soon(), waiting=waiting)[chunk.field]
        self._count("queue_got_bytes", column.values.nbytes)
        return bytes(column.values.numpy().tobytes())

    # --- evaluation ----------------------------------------------------------------------------------------------

    def claim_evaluation(
        self, holds: WeightId, digest: str, num_samples: int, limit: int, in_work: Collection[int]
    ) -> list[int] | EvaluationWaits:
        """Up to `limit` numbers of samples to score, of the version that a replica holds; else why there are none.

        The first claim of a version begins its evaluation: `num_samples` in all, of sets that `digest` is of
        (`rljob_workers.evaluation.digest_of`). What this
        rank was given and has neither put nor named in `in_work` comes back: an answer may be lost.
        """
        question: list[Argument] = [holds.lineage, holds.version, digest, num_samples, limit, *in_work]
        until = self._clock() + self._timing.claim_patience_seconds
        try:
            reply = self._change(
                "claim_evaluation", *question, deadline=until, waiting=f"{self} waits for samples to evaluate"
            )
        except (ControlUnreachable, NotOpen):
            return EvaluationWaits.CLOSED
        if reply[0] == b"S":
            return [int(number) for number in reply[1].split()] or EvaluationWaits.TAKEN
        return EvaluationWaits.OVER if reply[0] == b"O" else EvaluationWaits.OTHER_VERSION

    def put_evaluation(self, version: WeightVersion, results: Mapping[int, bytes]) -> int:
        """Keeps results of samples that this rank still has; gives how many of them were kept."""
        listed: Iterable[Argument] = chain.from_iterable(results.items())
        (taken,) = self._change("put_evaluation", version, *listed, waiting=f"{self} puts {len(results)} scores")
        return int(taken)

    def return_evaluation(self, samples: Collection[int], *, killed: bool = False) -> None:
        """Hands samples back. `killed`: an engine died working on them: their prompts become suspects."""
        if samples:
            self._change("return_evaluation", int(killed), *samples, waiting=f"{self} returns {len(samples)} samples")

    def is_evaluated(self, version: WeightVersion, timeout: float) -> bool:
        """Whether the evaluation of `version` is over, at the latest after `timeout`.

        False, too, while the control Redis does not answer.
        """
        wait, patience = self._evaluation_wait, self._timing.claim_patience_seconds
        for deadline in wait.turns(version, timeout):
            try:
                reply = self._control.read(
                    "evaluation", deadline=deadline + patience, waiting=f"{self} waits for an evaluation"
                )
            except (ControlUnreachable, NotOpen):
                wait.failed(False)
                continue
            wait.answer = EvaluationState.parse(reply).is_over_of(version)
            if wait.answer:
                break
        return wait.answer

    # --- forward tasks -------------------------------------------------------------------------------------------

    def claim(self, task: str, partitions: range, max_rows: int, *, timeout: float) -> Claim:
        """Rows of the oldest of `partitions` that has any ready, under a lease that beats renew."""
        consumer = self._task(task, TaskKind.FORWARD)
        if max_rows < 1 or partitions.step != 1:
            raise ValueError(f"claim: max_rows {max_rows} must be positive and {partitions} must have step 1.")
        if not partitions:
            return Exhausted()
        what = f"rows of train_{partitions[0]} to train_{partitions[-1]} for {task}"
        return self._claim("claim", consumer, (partitions[0], partitions[-1], max_rows), what, timeout)

    def put(self, batch: Batch, columns: Mapping[str, Jagged], *, weight: WeightId | None) -> None:
        """Results of a forward task for all rows of `batch`, made by `weight` (None: no weight had a part in them).

        Raises LeaseLost when the lease ended meanwhile: the results are thrown away.
        """
        if batch.lease is None:
            raise ValueError("put: the batch has no lease. Only batches of `claim` take results.")
        num_rows = len(batch.rows)
        check_rows("put", columns, num_rows, f"the batch has {num_rows}")
        fields = self._written_fields(columns)
        check_elements("put", columns, self._elements)
        lease, where = batch.lease, partition_name(batch.rollout_id)
        lineage, version = (weight.lineage, weight.version) if weight else (0, -1)

        waiting = f"{self} puts {', '.join(columns)} of {num_rows} rows of {where}"
        section = _Section((lease, lineage, version), columns, fields, weight)
        reply, stored = self._commit("put", [], [section], waiting)
        if reply[0] == b"L":
            self._discard(stored)
            raise LeaseLost(
                f"TransferQueue: lease {lease} on {num_rows} rows of {where} ended before its results came."
            )

    def release(self, batch: Batch) -> None:
        """Hands a lease back; nothing if it ended already."""
        if batch.lease is not None:
            self._release(batch.lease, len(batch.rows), self._deadline())

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
        if num_rows < 1 or not 0 <= dp_rank < dp_size or num_rows % dp_size:
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
        question = (rollout_id, batch_index, num_rows, dp_rank, dp_size)
        claimed = self._claim("claim_training", consumer, question, what, timeout)
        if isinstance(claimed, NotReady) and claimed.waiting_for == what:
            return NotReady(what + self._lacking(consumer, rollout_id, what))
        return claimed

    def commit_training(self, task: str, rollout_id: RolloutId, batch_indices: Iterable[int]) -> None:
        """The optimizer step on these batches is done; by data-parallel rank 0, once per optimizer step."""
        self._task(task, TaskKind.TRAINING)
        indices = list(batch_indices)
        waiting = f"{self} commits batches {indices} of {partition_name(rollout_id)}"
        self._change("commit_training", task, rollout_id, *indices, waiting=waiting)

    # --- inside --------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return self._name

    def _deadline(self) -> float:
        """For one change, or one put with its bytes, that begins now."""
        return self._clock() + self._timing.patience_seconds

    def _soon(self) -> float:
        """For what is given up rather than waited for."""
        return self._clock() + self._timing.claim_patience_seconds

    def _change(self, name: str, *args: Argument, waiting: str, deadline: float | None = None) -> list[Any]:
        """Calls a function that changes something, in this incarnation's name; repeated until there is an answer."""
        self._calls += 1
        reply = self._control.change(
            name,
            self._incarnation.epoch,
            self._incarnation.id,
            self._calls,
            *args,
            deadline=self._deadline() if deadline is None else deadline,
            waiting=waiting,
        )
        failpoint("queue.after_script")
        self.seen_seq = max(self.seen_seq, reply[0])
        return reply[1:]

    def _commit(
        self, name: str, head: Sequence[Argument], sections: Sequence[_Section], waiting: str
    ) -> tuple[list[Any], list[ChunkRef]]:
        """Stores the columns of all sections, then calls function `name`; its answer, and what was stored.

        All of it again where a unit came back empty in between.
        """
        deadline = self._deadline()
        while True:
            arguments, stored = list(head), list[ChunkRef]()
            try:
                for section in sections:
                    placements = self._units.store(section.columns, deadline=deadline, waiting=waiting)
                    stored += [chunk for placement in placements.values() for chunk in placement.chunks]
                    arguments += section.head
                    for field in section.fields:
                        arguments += field_arguments(placements[field], self._chunk_ids, section.weight)
                failpoint("queue.between_bytes_and_commit")
                reply = self._change(name, *arguments, deadline=deadline, waiting=waiting)
                self._count("queue_put_bytes", sum(chunk.num_bytes for chunk in stored))
                return reply, stored
            except (StaleUnit, StorageFull, StorageUnreachable) as error:
                self._discard(stored)
                if not isinstance(error, StaleUnit) or self._clock() >= deadline:
                    raise
                # The connection to that unit is still the old one; a new one learns the new generation.
                self._units.close()

    def _discard(self, stored: Sequence[ChunkRef]) -> None:
        """Deletes bytes that were not taken; what a unit that is away has of them goes when it is back."""
        self._units.delete(stored, deadline=self._clock() + self._timing.claim_patience_seconds)

    def _claim(self, name: str, task: Task, question: Sequence[Argument], what: str, timeout: float) -> Claim:
        """Asks for rows, which `what` names, until it has some with their bytes."""
        wait, waiting = self._waits[task.name], f"{self} waits for {what}"
        for deadline in wait.turns(question, timeout):
            lease, terms = self._new_lease() if task.kind is TaskKind.FORWARD else (None, [])
            until = deadline + self._timing.claim_patience_seconds
            try:
                reply = self._change(name, task.name, *question, *terms, deadline=until, waiting=waiting)
            except (ControlUnreachable, NotOpen) as error:
                wait.failed(NotReady(str(error)))
                continue
            if lease is not None:
                self._unconfirmed_leases.clear()
            if reply[0] == b"E":
                return Exhausted()
            if reply[0] == b"N":
                wait.answer = NotReady(what)
                continue
            fetched = self._fetch(parse_claim(reply[2:], reply[1], task.needs), lease, waiting)
            if isinstance(fetched, Batch):
                return fetched
            wait.failed(fetched)
        return wait.answer

    def _new_lease(self) -> tuple[str, list[Argument]]:
        """A lease's name, and the last arguments of its claim, which ends the unconfirmed ones."""
        lease = secrets.token_hex(8)
        terms: list[Argument] = [lease, int(self._timing.lease_seconds * 1000), *self._unconfirmed_leases]
        # A server that hangs may grant the lease after this claim has failed.
        self._unconfirmed_leases.append(lease)
        return lease, terms

    def _fetch(self, claimed: ClaimedRows, lease: str | None, waiting: str) -> Batch | NotReady:
        """The claimed rows with their bytes; NotReady where some did not come, and were handed back."""
        try:
            columns = self._units.fetch_undamaged(claimed.fields, deadline=self._deadline(), waiting=waiting)
        except (StorageUnreachable, RowsLost, CorruptChunk) as error:
            if isinstance(error, CorruptChunk) and error.chunk is None:
                raise  # the control state itself is damaged: a second read gives the same
            self._hand_back(claimed, lease, error, waiting)
            # No wait here: the caller beats, and claims again until the unit is back or the rows are generated again.
            self._sleep(LOST_ROWS_PAUSE_SECONDS)
            return NotReady(str(error))
        self._count("queue_got_bytes", sum(column.values.nbytes for column in columns.values()))
        groups = claimed.rows // self._shape.samples_per_prompt
        return Batch(RolloutId(claimed.rollout_id), claimed.rows, groups, claimed.oldest, columns, lease)

    def _hand_back(self, claimed: ClaimedRows, lease: str | None, error: Exception, waiting: str) -> None:
        """Ends a lease whose rows could not be fetched, and reports lost rows."""
        # Where the control Redis does not answer either, the next claim ends the lease.
        if lease is not None:
            self._unconfirmed_leases.append(lease)
        until = self._clock() + self._timing.claim_patience_seconds
        with suppress(ControlUnreachable, NotOpen):
            if isinstance(error, RowsLost):
                # The coordinator finds an empty unit by itself; single lost chunks only their readers report.
                self._change("report_missed", claimed.rollout_id, *error.units, deadline=until, waiting=waiting)
            if lease is not None:
                self._release(lease, len(claimed.rows), until)
                self._unconfirmed_leases.remove(lease)

    def _release(self, lease: str, num_rows: int, deadline: float) -> None:
        self._change("release", lease, deadline=deadline, waiting=f"{self} releases {num_rows} rows")

    def _lacking(self, task: Task, rollout_id: RolloutId, what: str) -> str:
        """Which fields `what` misses; looked up seldom, since it goes over all groups of the partition."""
        since, of, found = self._explained
        now = self._clock()
        if of == what and now < since + EXPLAIN_SECONDS:
            return found
        try:
            lacking = self._control.read("lacking", task.name, rollout_id, deadline=now, waiting="")
        except (ControlUnreachable, NotOpen):
            return ""
        missing = [f"{field} ({count} rows)" for field, count in zip(task.needs, lacking, strict=True) if count]
        found = f"; missing: {', '.join(missing)}" if missing else ""
        self._explained = (self._clock(), what, found)
        return found

    def _count(self, name: str, number: int) -> None:
        self._counters[name] = self._counters.get(name, 0) + number

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
