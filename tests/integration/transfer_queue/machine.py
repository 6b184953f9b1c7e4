"""The real queue driven beside `model.Model` by hypothesis: one control Redis on a lossy line, two units.

For `test_state_machine`. Every rule does one thing on both and compares the answers; after every rule each row must be
in the same state on both. `struck` adds the faults.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljob_api.names import Epoch, Lineage, Role, RolloutId, WeightVersion
from rljob_api.wire.identity import Endpoints, Life, WeightId
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import LeaseLost
from rljob_workers.transfer_queue.jagged import Jagged
from rljob_workers.transfer_queue.steward import QueueSteward, StewardTiming
from rljob_workers.transfer_queue.types import (
    Batch,
    ClaimPolicy,
    GroupRows,
    QueueShape,
    Task,
    TaskKind,
    Ticket,
)
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.model import Group, Model, Place, Row
from tests.integration.transfer_queue.proof import Control, breaches
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import make_life

FIFO = Task("score", TaskKind.FORWARD, ("tokens",), ("scores",))
GROUP = Task("rank", TaskKind.FORWARD, ("rewards", "scores"), ("ranks",), ClaimPolicy.GROUP)
TRAIN = Task("train", TaskKind.TRAINING, ("tokens", "scores", "ranks"))
SHAPE = QueueShape(
    batch_size=4,
    samples_per_prompt=2,
    max_staleness=1,
    num_rollouts=8,
    max_prompt_kills=9,
    max_attempts=1000,
    generated_fields=("tokens", "rewards"),
    tasks=(FIFO, GROUP, TRAIN),
)
MOST_LEASES = 6
"""A claim ends at most eight leases that are over."""
INDEX = st.integers(0, 7)
T = TypeVar("T")


class Names:
    """In the place of `secrets.token_hex`: different every time, and the same in every replay of an example."""

    def begin_again(self) -> None:
        self._count = 0

    def __call__(self, num_bytes: int) -> str:
        self._count += 1
        return hashlib.sha256(b"%d" % self._count).hexdigest()[: 2 * num_bytes]


@dataclass
class Member:
    """One rank: its life, its client, and what it has in work."""

    life: Life
    queue: TransferQueueClient
    tickets: list[Ticket]
    batches: list[tuple[Task, Batch]]


class QueueMachine(RuleBasedStateMachine):
    """Two producers, two consumers, one trainer, one coordinator."""

    def __init__(self, servers: Servers, line: LossyLine, names: Names, dealing: ClaimPolicy) -> None:
        super().__init__()
        self.train = replace(TRAIN, policy=dealing)
        self.shape = replace(SHAPE, tasks=(FIFO, GROUP, self.train))
        names.begin_again()
        self.servers, self.line = servers, line
        servers.wipe()
        line.losses = 0
        self.admin = servers.control.admin()
        endpoints = servers.endpoints
        self.endpoints: Endpoints = endpoints.model_copy(update={"control_redis": line.url})
        self.model = Model(self.shape)
        self.steward = QueueSteward(self.endpoints, self.shape, timing=StewardTiming(unlisted_seconds=0))
        self.epoch = self.calls = self.steps = self.struck_at = 0
        self.trained: dict[int, list[list[Row]]] = {}
        """Batches of the partition that is trained: the rows of each rank."""
        self.over: set[str] = set()
        """Leases whose time is over, and that no claim has met yet."""
        self.zombies: list[Member] = []
        self.members: list[Member] = []

    def teardown(self) -> None:
        try:
            self.line.losses = 0
            while (swept := self.steward.sweep()).chunks or swept.orphans:
                pass
            assert self.steward.check() == []
            assert breaches(self.servers, self.shape) == []
        finally:
            self.admin.close()
            self.steward.close()
            for member in [*self.members, *self.zombies]:
                member.queue.close()

    # --- members -----------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        assert self.steward.open_server(0) is ServerState.OPEN
        self.next_epoch()

    def next_epoch(self) -> None:
        self.epoch += 1
        self.over.clear()
        self.trained.clear()
        self.zombies += self.members
        self.model.restore()
        point = self.steward.raise_epoch(Epoch(self.epoch), f"d{self.epoch}", "a rule", None)
        assert point.version == self.model.recorded
        kept = sum(group.state == "put" for group in self.model.groups.values())
        assert point.kept_groups == kept
        roles = (Role.ROLLOUT, Role.ROLLOUT, Role.ACTOR_FWD, Role.ACTOR_FWD, Role.ACTOR)
        self.members = [self.new_member(role, place) for place, role in enumerate(roles)]

    def new_member(self, role: Role, replica: int) -> Member:
        life = make_life(role, self.epoch, replica)
        self.steward.begin_life(life)
        return Member(life, TransferQueueClient(self.endpoints, self.shape, life), [], [])

    @property
    def trainer(self) -> Member:
        return self.members[4]

    def held_weight(self, version: int) -> WeightId:
        return WeightId(lineage=Lineage(self.epoch), version=WeightVersion(max(version, 0)))

    # --- producers ---------------------------------------------------------------------------------------------------

    @rule(who=st.integers(0, 1), limit=st.integers(1, 4), behind=st.integers(0, 1))
    def claim_tickets(self, who: int, limit: int, behind: int) -> None:
        member, held = self.members[who], self.held_weight(self.model.published - behind)
        answer = member.queue.claim_tickets(held, limit, 0)
        tickets = answer if isinstance(answer, list) else []
        places = [(int(ticket.rollout_id), ticket.group) for ticket in tickets]
        assert places == self.model.next_places(held.version, limit), answer
        for place, ticket in zip(places, tickets, strict=True):
            self.take(place, ticket)
        member.tickets += tickets

    def take(self, place: Place, ticket: Ticket) -> None:
        known = self.model.groups.get(place)
        if known is None:
            assert ticket.prompt_index not in {group.prompt for group in self.model.groups.values()}
            known = self.model.groups[place] = Group(ticket.attempt, ticket.prompt_index, "work")
            assert ticket.attempt == 0
        assert (ticket.attempt, ticket.prompt_index) == (known.attempt, known.prompt)
        known.state = "work"

    @precondition(lambda self: any(member.tickets for member in self.members))
    @rule(who=st.integers(0, 1), which=st.lists(INDEX, min_size=1, max_size=3), behind=st.integers(0, 1))
    def put_groups(self, who: int, which: list[int], behind: int) -> None:
        member, version = self.members[who], max(self.model.published - behind, 0)
        tickets = picked(member.tickets, which)
        verdicts = member.queue.put_groups([self.group(ticket, version) for ticket in tickets])
        expected = [ticket.rollout_id - version <= SHAPE.max_staleness for ticket in tickets]
        assert verdicts == expected
        for ticket, accepted in zip(tickets, verdicts, strict=True):
            place = (int(ticket.rollout_id), ticket.group)
            member.tickets.remove(ticket)
            self.model.groups[place].state = "waiting"
            if accepted:
                self.model.generate(place, version, ticket.id)

    def group(self, ticket: Ticket, version: int) -> GroupRows:
        num = SHAPE.samples_per_prompt
        tokens = [torch.full((1 + index,), ticket.id, dtype=torch.int32) for index in range(num)]
        columns = {"tokens": Jagged.from_rows(tokens), "rewards": Jagged.scalars(torch.ones(num))}
        made_by = [self.held_weight(version)] * num
        return GroupRows(ticket, columns, made_by, made_by)

    @rule(who=st.integers(0, 1))
    def generate_all(self, who: int) -> None:
        """Several rules at once, so that random orders come far."""
        self.claim_tickets(who, 4, 0)
        self.put_groups(who, [0, 1, 2, 3], 0)

    @precondition(lambda self: any(member.tickets for member in self.members))
    @rule(who=st.integers(0, 1), which=INDEX, how=st.sampled_from(["return", "redraw", "unlisted"]))
    def let_go(self, who: int, which: int, how: str) -> None:
        member = self.members[who]
        for ticket in picked(member.tickets, [which]):
            place = (int(ticket.rollout_id), ticket.group)
            member.tickets.remove(ticket)
            self.model.groups[place].state = "waiting"
            if how == "return":
                member.queue.return_tickets([ticket], killed=False)
            elif how == "unlisted":
                for _ in range(2):
                    self.beat(member)
            else:
                drawn = member.queue.redraw(ticket, "a rule")
                assert drawn.prompt_index not in {group.prompt for group in self.model.groups.values()}
                self.model.groups[place] = Group(ticket.attempt + 1, drawn.prompt_index, "work")
                self.take(place, drawn)
                member.tickets.append(drawn)

    def beat(self, member: Member) -> None:
        leases = [batch.lease for _, batch in member.batches if batch.lease is not None]
        self.steward.beat(member.life.incarnation, [ticket.id for ticket in member.tickets], leases)
        self.over -= set(leases)

    # --- consumers ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: sum(len(member.batches) for member in self.members) < MOST_LEASES)
    @rule(who=st.integers(2, 3), task=st.sampled_from([FIFO, GROUP]), max_rows=st.integers(1, 5))
    def claim(self, who: int, task: Task, max_rows: int) -> None:
        answer = self.members[who].queue.claim(task.name, range(SHAPE.num_rollouts), max_rows, timeout=0)
        self.model.release(self.over)
        self.over.clear()
        offered = self.model.ready(task)
        if not isinstance(answer, Batch):
            assert not offered, answer
            return
        rows = self.rows_of(answer)
        first = min(r for r, _ in offered)
        there = [row for row in offered if row[0] == first]
        assert set(rows) <= set(there)
        assert len(rows) == amount(task, max_rows, len(there))
        assert answer.lease is not None
        self.model.claim(task, rows, answer.lease)
        self.members[who].batches.append((task, answer))
        self.check_values(answer, rows)

    def check_values(self, batch: Batch, rows: Sequence[Row]) -> None:
        for place, row in enumerate(rows):
            group = self.model.groups[self.model.group_of(row)]
            index = row[1] % SHAPE.samples_per_prompt
            for field, column in batch.columns.items():
                wanted = [group.serial] * (1 + index) if field == "tokens" else None
                assert wanted is None or column.row(place).tolist() == wanted
                if field in ("scores", "ranks"):
                    assert column.row(place).tolist() == [row_number(row)]

    @precondition(lambda self: any(member.batches for member in self.members))
    @rule(who=st.integers(2, 3), which=INDEX, gives_back=st.booleans())
    def finish(self, who: int, which: int, *, gives_back: bool) -> None:
        member = self.members[who]
        for task, batch in picked(member.batches, [which]):
            assert batch.lease is not None
            rows = self.model.holding(task, batch.lease)
            member.batches.remove((task, batch))
            self.over.discard(batch.lease)
            if gives_back:
                member.queue.release(batch)
                self.model.release([batch.lease])
                continue
            assert put(member.queue, task, batch) is bool(rows)
            self.model.put(task, batch.lease)

    @precondition(lambda self: sum(len(member.batches) for member in self.members) < MOST_LEASES)
    @rule(who=st.integers(2, 3))
    def derive_all(self, who: int) -> None:
        """Until no task has anything to claim."""
        for task in (FIFO, GROUP):
            while self.derive_one(who, task):
                pass

    def derive_one(self, who: int, task: Task) -> bool:
        num_batches = len(self.members[who].batches)
        self.claim(who, task, SHAPE.rows_per_partition)
        if len(self.members[who].batches) == num_batches:
            return False
        self.finish(who, num_batches, gives_back=False)
        return True

    # --- the trainer -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.published < SHAPE.num_rollouts)
    @rule(index=st.integers(0, 1))
    def claim_training(self, index: int) -> None:
        r, num_rows = self.model.published, SHAPE.rows_per_partition // 2
        known = self.trained.get(index)
        ready = {row for row in self.model.ready(self.train) if row[0] == r}
        shares: list[list[Row]] = []
        for rank in range(2):
            answer = self.trainer.queue.claim_training(
                self.train.name, RolloutId(r), index, num_rows, rank, 2, timeout=0
            )
            there = len(ready) >= num_rows if known is None else self.covers(known[rank])
            assert isinstance(answer, Batch) is there, answer
            if isinstance(answer, Batch):
                shares.append(self.rows_of(answer))
                self.check_values(answer, shares[-1])
                assert known is None or known[rank] == shares[-1]
        if known is None and shares:
            rows = [row for share in shares for row in share]
            assert len(set(rows)) == num_rows
            assert set(rows) <= ready
            assert len(shares[0]) == len(shares[1])
            self.trained[index] = shares
            self.model.claim(self.train, rows, f"batch {index}")

    def covers(self, rows: list[Row]) -> bool:
        return all(self.model.fields[row].issuperset(self.train.needs) for row in rows)

    @precondition(lambda self: bool(self.trained))
    @rule(which=INDEX)
    def commit_training(self, which: int) -> None:
        for index in picked(list(self.trained), [which]):
            self.trainer.queue.commit_training(self.train.name, RolloutId(self.model.published), [index])
            rows = {row for share in self.trained[index] for row in share}
            self.model.release([f"batch {index}"])
            self.model.done[self.train.name] |= rows

    @precondition(lambda self: bool(self.model.ready(self.train)) and self.model.published < SHAPE.num_rollouts)
    @rule()
    def train_all(self) -> None:
        for index in range(2):
            self.claim_training(index)
        for place in range(len(self.trained)):
            self.commit_training(place)

    @precondition(lambda self: self.is_trained())
    @rule(records=st.booleans())
    def publish(self, *, records: bool) -> None:
        weight = self.held_weight(self.model.published + 1)
        self.calls += 1
        self.steward.publish(self.trainer.life, weight, f"p{self.calls}")
        self.model.published += 1
        self.trained.clear()
        if records:
            self.steward.record(self.trainer.life, weight, "folder", {}, f"r{self.calls}")
            self.model.retire(self.model.published)

    @precondition(lambda self: sum(len(member.batches) for member in self.members) < MOST_LEASES)
    @rule(who=st.integers(2, 3), records=st.booleans())
    def do_a_step(self, who: int, *, records: bool) -> None:
        """One whole rollout, as far as nobody else has a part of it in work."""
        self.generate_all(who % 2)
        self.derive_all(who)
        if self.model.published < SHAPE.num_rollouts:
            self.train_all()
        if self.is_trained():
            self.publish(records=records)

    def is_trained(self) -> bool:
        rows = {(self.model.published, row) for row in range(SHAPE.rows_per_partition)}
        return rows <= self.model.done[self.train.name]

    # --- what must agree ---------------------------------------------------------------------------------------------

    @invariant()
    def every_row_is_where_the_model_has_it(self) -> None:
        self.steps += 1
        control = Control(self.admin, self.shape)
        for task in self.shape.tasks:
            found: dict[str, set[Row]] = {letter: set() for letter in ("ready", "u", "r", "c", "d")}
            for r in control.partitions:
                found["ready"] |= {(r, row) for row in control.listed(r, task)}
                for row, letter in enumerate(control.string(f"p:{r}:s:{task.name}").decode()):
                    found[letter].add((r, row))
            assert found["ready"] == self.model.ready(task), task.name
            assert found["r"] == self.model.complete(task), task.name
            assert found["c"] == set(self.model.held[task.name]), task.name
            assert found["d"] == self.model.done[task.name], task.name

    def rows_of(self, batch: Batch) -> list[Row]:
        return [(int(batch.rollout_id), row) for row in batch.rows.tolist()]


def amount(task: Task, max_rows: int, there: int) -> int:
    """How many rows a claim gets where so many are offered in its partition."""
    if task.policy is ClaimPolicy.GROUP:
        num = SHAPE.samples_per_prompt
        return min(max(1, max_rows // num) * num, there)
    return min(max_rows, there)


def put(queue: TransferQueueClient, task: Task, batch: Batch) -> bool:
    """False where the lease was lost."""
    numbers = [row_number((int(batch.rollout_id), row)) for row in batch.rows.tolist()]
    try:
        queue.put(batch, {task.writes[0]: Jagged.scalars(torch.tensor(numbers))}, weight=None)
    except LeaseLost:
        return False
    return True


def row_number(row: Row) -> int:
    """What a forward task says of the row, whoever asks."""
    return row[0] * SHAPE.rows_per_partition + row[1]


def picked(things: list[T], indices: Sequence[int]) -> list[T]:
    """The things at `indices`, counted around, each once."""
    return [things[index] for index in sorted({index % len(things) for index in indices})] if things else []
