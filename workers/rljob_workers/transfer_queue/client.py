"""The queue's interface for a rank: tickets and groups in, claims and results, training batches.

For the roles, one per rank, used from one thread. Every decision is one Lua function on the control Redis, called by
way of `rank_calls`. A claim takes rows, then fetches: rows whose bytes do not arrive are handed back. Knows no weights,
models or coordinator.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from itertools import chain

from rljob_api.names import RolloutId, partition_name
from rljob_api.spec.queue import Waiting
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import Endpoints, Incarnation, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.control.connection import Argument, Wait
from rljob_workers.transfer_queue.curriculum_rows import CurriculumRows
from rljob_workers.transfer_queue.errors import (
    AttemptsExhausted,
    ControlUnreachable,
    CorruptChunk,
    LeaseLost,
    NotOpen,
    RowsLost,
    StorageUnreachable,
    TicketLost,
)
from rljob_workers.transfer_queue.evaluation_samples import EvaluationSamples
from rljob_workers.transfer_queue.group_columns import (
    Elements,
    by_partition,
    check_elements,
    check_group,
    check_rows,
    joined_columns,
    pack_group_weights,
    pack_tickets,
)
from rljob_workers.transfer_queue.pass_rates import UNSCORED, GroupScore
from rljob_workers.transfer_queue.rank_calls import RankCalls, Section
from rljob_workers.transfer_queue.row_format import ClaimedRows, parse_claim
from rljob_workers.transfer_queue.saved_partials import SavedPartials
from rljob_workers.transfer_queue.types import (
    Batch,
    Claim,
    Exhausted,
    GroupPlace,
    GroupRows,
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


LOST_ROWS_PAUSE_SECONDS = 0.1
"""Before a claim is repeated whose bytes are lost; the coordinator has the rows generated again meanwhile."""


class TransferQueueClient:
    """One incarnation's access to the queue.

    tickets = queue.claim_tickets(holds, 32, timeout=0.2)    rollout: then put_groups, redraw, refuse or return_tickets
    batch = queue.claim(task, range(0, 10), 64, timeout=0.2) forward: then put under the lease, or release
    batch = queue.claim_training(task, r, 0, 64, 0, 1, timeout=0.2)    training: then commit_training

    `partials`, `curriculum` and `evaluation` have calls of their own, `calls` what all of them go through.
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
    ) -> None:
        """Connects when first used. The incarnation must have begun (`QueueAdmin.begin_incarnation`).

        `counters`: where the bytes that were put and got are counted.
        """
        self.calls = calls = RankCalls(
            endpoints,
            shape,
            incarnation,
            waiting=waiting,
            checksums=checksums,
            counters={} if counters is None else counters,
            timing=timing,
        )
        self.partials = SavedPartials(calls)
        self.curriculum = CurriculumRows(calls)
        self.evaluation = EvaluationSamples(calls, Wait[bool](calls.notices, "evaluated", time.monotonic))
        self._shape = shape
        self._elements = Elements.of(shape)
        self._tasks = {task.name: task for task in shape.tasks}
        self._ticket_wait = Wait[Withheld](calls.notices, "tickets", time.monotonic)
        self._waits = {task.name: Wait[NotReady](calls.notices, task.name, time.monotonic) for task in shape.tasks}
        self._unconfirmed_leases: list[str] = []
        """Leases that the control Redis may have given without an answer: the next claim ends them."""
        self._explained: tuple[float, str, str] = (float("-inf"), "", "")
        """When, of what, and what was missing for it."""

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self.calls.close()

    # --- tickets -------------------------------------------------------------------------------------------------

    def claim_tickets(self, holds: WeightId, limit: int, timeout: float) -> list[Ticket] | Withheld:
        """Up to `limit` tickets that a replica holding `holds` may work on, lowest rollout first; else why not."""
        if limit < 1:
            raise ValueError(f"limit: {limit} tickets cannot be claimed. Ask for at least 1.")

        question = (holds.lineage, holds.version, limit)
        wait, patience = self._ticket_wait, self.calls.timing.claim_patience_seconds
        for deadline in wait.turns(question, timeout):
            until = deadline + patience
            try:
                reply = self.calls.change(
                    "claim_tickets", *question, deadline=until, waiting=f"{self.calls} waits for tickets"
                )
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
        waiting = f"{self.calls} puts {len(groups)} groups of {names}"
        [packed, *_], _ = self.calls.commit("put_groups", [len(sections)], sections, waiting)
        found: list[GroupPlace | None] = [None] * len(groups)
        for place, where in zip(chain.from_iterable(parts), parse_places(packed), strict=True):
            found[place] = where
        return found

    def _section_of(self, groups: Sequence[GroupRows]) -> Section:
        fields = self._shape.generated_fields
        head: list[Argument] = [groups[0].ticket.rollout_id, pack_tickets(groups), pack_group_weights(groups)]
        if self._shape.has_curriculum:
            head.append(b"".join(group.score.pack() for group in groups))
        return Section(head, joined_columns(groups, fields), fields, None)

    def return_tickets(self, tickets: Sequence[Ticket], *, killed: bool) -> None:
        """Hands tickets back. `killed`: an engine died working on them, and their prompts count it."""
        if tickets:
            ids = [ticket.id for ticket in tickets]
            self.calls.change("return_tickets", int(killed), *ids, waiting=f"{self.calls} returns {len(ids)} tickets")

    def redraw(self, ticket: Ticket, reason: str) -> Ticket:
        """Closes this attempt and draws the next prompt for the same group.

        Raises TicketLost when the ticket came back meanwhile or the next prompt is for a replica that has nothing else,
        AttemptsExhausted beyond maxAttempts.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self.calls.change("redraw", ticket.id, waiting=f"{self.calls} draws {where} anew")
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
        reply = self.calls.change("refuse", ticket.id, score.pack(), waiting=f"{self.calls} draws {where} anew")
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was refused.")
        return parse_tickets(reply[1])[0]

    def pass_over(self, ticket: Ticket) -> Ticket:
        """Draws the next prompt for the same group and attempt: this one is none that can be generated for.

        Raises TicketLost as `redraw` does.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self.calls.change("pass_over", ticket.id, waiting=f"{self.calls} passes over a prompt of {where}")
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was passed over.")
        return parse_tickets(reply[1])[0]

    def ticket_table(self) -> bytes:
        """The state of draws, as JSON, for a checkpoint: it is needed only where the control Redis is lost."""
        reply = self.calls.read("ticket_table", waiting=f"{self.calls} reads the ticket table")
        return table_of_draws(*reply)

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

        waiting = f"{self.calls} puts {', '.join(columns)} of {num_rows} rows of {where}"
        section = Section((lease, lineage, version), columns, fields, weight)
        reply, stored = self.calls.commit("put", [], [section], waiting)
        if reply[0] == b"L":
            self.calls.discard(stored)
            raise LeaseLost(
                f"TransferQueue: lease {lease} on {num_rows} rows of {where} ended before its results came."
            )

    def release(self, batch: Batch) -> None:
        """Hands a lease back; nothing if it ended already."""
        if batch.lease is not None:
            self._release(batch.lease, len(batch.rows), self.calls.deadline())

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
        waiting = f"{self.calls} commits batches {indices} of {partition_name(rollout_id)}"
        self.calls.change("commit_training", task, rollout_id, *indices, waiting=waiting)

    # --- inside --------------------------------------------------------------------------------------------------

    def _claim(self, name: str, task: Task, question: Sequence[Argument], what: str, timeout: float) -> Claim:
        """Asks for rows, which `what` names, until it has some with their bytes."""
        wait, waiting = self._waits[task.name], f"{self.calls} waits for {what}"
        for deadline in wait.turns(question, timeout):
            lease, terms = self._new_lease() if task.kind is TaskKind.FORWARD else (None, [])
            until = deadline + self.calls.timing.claim_patience_seconds
            try:
                reply = self.calls.change(name, task.name, *question, *terms, deadline=until, waiting=waiting)
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
        terms: list[Argument] = [lease, int(self.calls.timing.lease_seconds * 1000), *self._unconfirmed_leases]
        # A server that hangs may grant the lease after this claim has failed.
        self._unconfirmed_leases.append(lease)
        return lease, terms

    def _fetch(self, claimed: ClaimedRows, lease: str | None, waiting: str) -> Batch | NotReady:
        """The claimed rows with their bytes; NotReady where some did not come, and were handed back."""
        try:
            columns = self.calls.units.fetch_undamaged(claimed.fields, deadline=self.calls.deadline(), waiting=waiting)
        except (StorageUnreachable, RowsLost, CorruptChunk) as error:
            if isinstance(error, CorruptChunk) and error.chunk is None:
                raise  # the control state itself is damaged: a second read gives the same
            self._hand_back(claimed, lease, error, waiting)
            # No wait here: the caller beats, and claims again until the unit is back or the rows are generated again.
            time.sleep(LOST_ROWS_PAUSE_SECONDS)
            return NotReady(str(error))
        self.calls.count("queue_got_bytes", sum(column.values.nbytes for column in columns.values()))
        groups = claimed.rows // self._shape.samples_per_prompt
        return Batch(RolloutId(claimed.rollout_id), claimed.rows, groups, claimed.oldest, columns, lease)

    def _hand_back(self, claimed: ClaimedRows, lease: str | None, error: Exception, waiting: str) -> None:
        """Ends a lease whose rows could not be fetched, and reports lost rows."""
        # Where the control Redis does not answer either, the next claim ends the lease.
        if lease is not None:
            self._unconfirmed_leases.append(lease)
        until = self.calls.soon()
        with suppress(ControlUnreachable, NotOpen):
            if isinstance(error, RowsLost):
                # The coordinator finds an empty unit by itself; single lost chunks only their readers report.
                self.calls.change("report_missed", claimed.rollout_id, *error.units, deadline=until, waiting=waiting)
            if lease is not None:
                self._release(lease, len(claimed.rows), until)
                self._unconfirmed_leases.remove(lease)

    def _release(self, lease: str, num_rows: int, deadline: float) -> None:
        self.calls.change("release", lease, deadline=deadline, waiting=f"{self.calls} releases {num_rows} rows")

    def _lacking(self, task: Task, rollout_id: RolloutId, what: str) -> str:
        """Which fields `what` misses; looked up seldom, since it goes over all groups of the partition."""
        since, of, found = self._explained
        now = time.monotonic()
        if of == what and now < since + EXPLAIN_SECONDS:
            return found
        try:
            lacking = self.calls.read("lacking", task.name, rollout_id, deadline=now, waiting="")
        except (ControlUnreachable, NotOpen):
            return ""
        missing = [f"{field} ({count} rows)" for field, count in zip(task.needs, lacking, strict=True) if count]
        found = f"; missing: {', '.join(missing)}" if missing else ""
        self._explained = (time.monotonic(), what, found)
        return found

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
