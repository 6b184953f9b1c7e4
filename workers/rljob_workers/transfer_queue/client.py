"""The queue as a rank sees it: tickets and groups in, claims and results, training batches.

For the roles, one per rank, used from one thread. Bytes go through `storage`; every decision is one Lua function on the
control Redis; between the two nothing of this client is part of the queue. Knows no weights, models or coordinator.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import numpy as np

from rljob_api.names import RolloutId, partition_name
from rljob_api.spec.queue import Waiting
from rljob_api.spec.training import ClaimPolicy
from rljob_api.wire.identity import Endpoints, Life, WeightId
from rljob_workers.tensors.jagged import Column, Jagged, join
from rljob_workers.transfer_queue.control.connection import (
    Argument,
    Attempt,
    Clock,
    Notices,
    Polling,
    Sleep,
    Subscription,
    Waits,
)
from rljob_workers.transfer_queue.errors import AttemptsExhausted, ControlUnreachable, LeaseLost, NotOpen, TicketLost
from rljob_workers.transfer_queue.row_format import pack_weights
from rljob_workers.transfer_queue.transactions import Claims, Commits, LifeAccess, Store
from rljob_workers.transfer_queue.types import (
    Batch,
    Claim,
    Exhausted,
    GroupRows,
    NotReady,
    QueueShape,
    QueueTiming,
    Task,
    TaskKind,
    Ticket,
    Withheld,
    parse_tickets,
    table_of_draws,
)


def check_group(group: GroupRows, shape: QueueShape) -> None:
    """Raises ValueError where a field is missing or too many, or a column has not the rows of a group."""
    wanted, found = set(shape.generated_fields), set(group.columns)
    if wanted != found:
        raise ValueError(f"put_groups: fields {sorted(found)} were given, {sorted(wanted)} are needed.")
    num_rows = shape.samples_per_prompt
    counts = {field: len(column) for field, column in group.columns.items()}
    counts |= {"oldest": len(group.oldest), "newest": len(group.newest)}
    for name, count in counts.items():
        if count != num_rows:
            raise ValueError(f"put_groups: {name} has {count} rows, a group has {num_rows} (samplesPerPrompt).")


def by_partition(groups: Sequence[GroupRows]) -> dict[RolloutId, list[GroupRows]]:
    """The groups of each partition, in their order."""
    sections: dict[RolloutId, list[GroupRows]] = {}
    for group in groups:
        sections.setdefault(group.ticket.rollout_id, []).append(group)
    return sections


def joined_columns(groups: Sequence[GroupRows], fields: Sequence[str]) -> Mapping[str, Column]:
    """Per field, the rows of all groups, one group behind the other."""
    return {field: join([group.columns[field] for group in groups]) for field in fields}


def pack_places(groups: Sequence[GroupRows]) -> bytes:
    """Per group, its ticket and its number in the partition."""
    return np.array([(group.ticket.id, group.ticket.group) for group in groups], "<u4").tobytes()


def pack_group_weights(groups: Sequence[GroupRows]) -> bytes:
    """Per row of every group, the weights of its oldest and newest token."""
    return b"".join(pack_weights(group.oldest, group.newest) for group in groups)


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
        counters: MutableMapping[str, float] | None = None,
        timing: QueueTiming = QueueTiming(),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        """Connects when first used. The life must have begun (`QueueAdmin.begin_life`).

        `counters`: where the bytes that were put and got are counted.
        """
        self._shape = shape
        self._timing = timing
        self._tasks = {task.name: task for task in shape.tasks}
        self._access = LifeAccess(
            endpoints,
            shape,
            life,
            checksums=checksums,
            counters={} if counters is None else counters,
            timing=timing,
            clock=clock,
            sleep=sleep,
        )
        self._commits = Commits(self._access)
        self._claims = Claims(self._access)
        self._notices: Notices = (
            Polling(sleep)
            if waiting is Waiting.POLL
            else Subscription(endpoints.control_redis, timing=timing, clock=clock, sleep=sleep)
        )
        self._waits = Waits(self._notices, clock)

    @property
    def seen_seq(self) -> int:
        """Highest seq that any answer has shown; sent with beats."""
        return self._access.seen_seq

    def close(self) -> None:
        """Ends all connections; may be called twice."""
        self._access.close()
        self._notices.close()

    # --- tickets -------------------------------------------------------------------------------------------------

    def claim_tickets(self, holds: WeightId, limit: int, timeout: float) -> list[Ticket] | Withheld:
        """Up to `limit` tickets that a replica holding `holds` may work on, lowest rollout first; else why not."""
        if limit < 1:
            raise ValueError(f"limit: {limit} tickets cannot be claimed. Ask for at least 1.")

        question = (holds.lineage, holds.version, limit)

        def ask(deadline: float) -> Attempt[list[Ticket] | Withheld]:
            try:
                until = deadline + self._timing.claim_patience_seconds
                reply = self._access.change(
                    "claim_tickets", *question, deadline=until, waiting=f"{self} waits for tickets"
                )
            except (ControlUnreachable, NotOpen):
                return Attempt(Withheld.CLOSED, is_final=False, stands=False)
            if reply[0] == b"W":
                return Attempt(Withheld(reply[1].decode()), is_final=False)
            return Attempt(parse_tickets(reply[1]), is_final=True)

        return self._waits.first_final("tickets", question, ask, timeout)

    def put_groups(self, groups: Sequence[GroupRows]) -> list[bool]:
        """Makes whole groups part of the queue, all in one commit.

        False where the ticket was lost, or the group's weights died or are too old: it is generated again by somebody.
        """
        for group in groups:
            check_group(group, self._shape)
        order = sorted(range(len(groups)), key=lambda place: groups[place].ticket.rollout_id)
        sections = by_partition([groups[place] for place in order])
        fields = self._shape.generated_fields

        def arguments(store: Store) -> list[Argument]:
            packed: list[Argument] = [len(sections)]
            for rollout_id, members in sections.items():
                packed += (rollout_id, pack_places(members), pack_group_weights(members))
                packed += store(joined_columns(members, fields), fields, None)
            return packed

        names = ", ".join(partition_name(rollout_id) for rollout_id in sections)
        verdicts = self._commits.commit("put_groups", arguments, f"{self} puts {len(groups)} groups of {names}")[0]
        accepted = [False] * len(groups)
        for place, verdict in zip(order, verdicts.decode(), strict=True):
            accepted[place] = verdict == "1"
        return accepted

    def return_tickets(self, tickets: Sequence[Ticket], *, killed: bool) -> None:
        """Hands tickets back. `killed`: an engine died working on them, so their prompts become suspects."""
        if tickets:
            ids = [ticket.id for ticket in tickets]
            self._access.change("return_tickets", int(killed), *ids, waiting=f"{self} returns {len(ids)} tickets")

    def redraw(self, ticket: Ticket, reason: str) -> Ticket:
        """Closes this attempt and draws the next prompt for the same group.

        Raises TicketLost when the ticket came back meanwhile or the next prompt is for a replica that has nothing else,
        AttemptsExhausted beyond maxAttempts.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self._access.change("redraw", ticket.id, waiting=f"{self} draws {where} anew")
        if reply[0] == b"X":
            raise AttemptsExhausted(
                f"rollout.maxAttempts: {where} was drawn {reply[1]} times, as often as allowed; the last draw (prompt"
                f" {ticket.prompt_index}) was rejected: {reason}. Raise maxAttempts, or let the filter pass more."
            )
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was redrawn.")
        return parse_tickets(reply[1])[0]

    def pass_over(self, ticket: Ticket) -> Ticket:
        """Draws the next prompt for the same group and attempt: this one is none that can be generated for.

        Raises TicketLost as `redraw` does.
        """
        where = f"group {ticket.group} of {partition_name(ticket.rollout_id)}"
        reply = self._access.change("pass_over", ticket.id, waiting=f"{self} passes over a prompt of {where}")
        if reply[0] == b"L":
            raise TicketLost(f"TransferQueue: ticket {ticket.id} of {where} came back before it was passed over.")
        return parse_tickets(reply[1])[0]

    def ticket_table(self) -> bytes:
        """The state of draws, as JSON, for a checkpoint: it is needed only where the control Redis is lost."""
        reply = self._access.control.read(
            "ticket_table", deadline=self._access.deadline(), waiting=f"{self} reads the ticket table"
        )
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

        def ask(deadline: float) -> Attempt[Claim]:
            return self._claims.ask_rows(consumer, partitions, max_rows, deadline, what)

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
        fields = self._written_fields(columns)
        lease, where = batch.lease, partition_name(batch.rollout_id)
        lineage, version = (weight.lineage, weight.version) if weight else (0, -1)

        def arguments(store: Store) -> list[Argument]:
            return [lease, lineage, version, *store(columns, fields, weight)]

        waiting = f"{self} puts {', '.join(columns)} of {len(batch)} rows of {where}"
        if self._commits.commit("put", arguments, waiting)[0] == b"L":
            self._commits.take_back()
            raise LeaseLost(
                f"TransferQueue: lease {lease} on {len(batch)} rows of {where} ended before its results came."
            )

    def release(self, batch: Batch) -> None:
        """Hands a lease back; nothing if it ended already."""
        if batch.lease is not None:
            self._claims.release(batch.lease, len(batch))

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
        arguments = (rollout_id, batch_index, num_rows, dp_rank, dp_size)

        def ask(deadline: float) -> Attempt[Claim]:
            return self._claims.ask_batch(consumer, arguments, deadline, what)

        answer = self._waits.first_final(task, arguments, ask, timeout)
        if isinstance(answer, NotReady) and answer.waiting_for == what:
            return NotReady(what + self._claims.lacking(consumer, rollout_id, what))
        return answer

    def commit_training(self, task: str, rollout_id: RolloutId, batch_indices: Iterable[int]) -> None:
        """The optimizer step on these batches is done; by data-parallel rank 0, once per optimizer step."""
        self._task(task, TaskKind.TRAINING)
        indices = list(batch_indices)
        waiting = f"{self} commits batches {indices} of {partition_name(rollout_id)}"
        self._access.change("commit_training", task, rollout_id, *indices, waiting=waiting)

    # --- inside --------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return str(self._access)

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
