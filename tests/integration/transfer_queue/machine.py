"""The real queue driven beside `model.Model` by hypothesis: what consumers and the trainer do, added to the producers.

For `test_state_machine`. Every rule does one thing on both and compares the answers. `struck` adds the faults.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from rljob_api.names import RolloutId
from rljob_api.spec.training import ClaimPolicy
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Incomplete, LeaseLost
from rljob_workers.transfer_queue.types import Batch, ForwardPolicy, Task
from tests.integration.transfer_queue.members import INDEX, SHAPE, picked
from tests.integration.transfer_queue.model import Row
from tests.integration.transfer_queue.producers import Producers

MOST_LEASES = 6
"""A claim ends at most eight leases that are over."""


class QueueMachine(Producers):
    """Two producers, two consumers, one trainer, one coordinator."""

    # --- consumers ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: sum(len(member.batches) for member in self.members) < MOST_LEASES)
    @rule(who=st.integers(2, 3), which=INDEX, max_rows=st.integers(1, 5))
    def claim_some(self, who: int, which: int, max_rows: int) -> None:
        self.claim(who, self.forward[which % len(self.forward)], max_rows)

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
                if field in ("scores", "ranks", "whites"):
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
        for task in self.forward:
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

    def trains(self, task: Task) -> int:
        """The partition that the task trains: the critic goes on by itself, the actor when it has published."""
        return self.model.published if task.publishes else self.model.next_of(task)

    @rule(who=INDEX, index=st.integers(0, 1))
    def claim_training(self, who: int, index: int) -> None:
        task = self.training[who % len(self.training)]
        r, num_rows = self.trains(task), SHAPE.rows_per_partition // 2
        if r >= SHAPE.num_rollouts:
            return
        known = self.trained[task.name].get(index)
        ready = {row for row in self.model.ready(task) if row[0] == r}
        shares: list[list[Row]] = []
        for rank in range(2):
            answer = self.trainer.queue.claim_training(task.name, RolloutId(r), index, num_rows, rank, 2, timeout=0)
            there = len(ready) >= num_rows if known is None else self.covers(task, known[rank])
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
            self.trained[task.name][index] = shares
            self.model.claim(task, rows, f"{task.name} {index}")

    def covers(self, task: Task, rows: list[Row]) -> bool:
        return all(self.model.fields[row].issuperset(task.needs) for row in rows)

    @precondition(lambda self: any(self.trained.values()))
    @rule(who=INDEX, which=INDEX)
    def commit_training(self, who: int, which: int) -> None:
        task = self.training[who % len(self.training)]
        r, batches = self.trains(task), self.trained[task.name]
        for index in picked(list(batches), [which]):
            self.trainer.queue.commit_training(task.name, RolloutId(r), [index])
            rows = {row for share in batches[index] for row in share}
            self.model.release([f"{task.name} {index}"])
            self.model.done[task.name] |= rows
        if self.trains(task) != r:
            batches.clear()

    @precondition(lambda self: any(self.model.ready(task) for task in self.training))
    @rule(who=INDEX)
    def train_all(self, who: int) -> None:
        for index in range(2):
            self.claim_training(who, index)
        batches = self.trained[self.training[who % len(self.training)].name]
        for place in reversed(range(len(batches))):
            self.commit_training(who, place)

    @precondition(lambda self: self.is_trained())
    @rule(records=st.booleans())
    def publish(self, *, records: bool) -> None:
        weight = self.held_weight(self.model.published + 1)
        self.calls += 1
        self.admin.publish(self.trainer.incarnation, weight, f"p{self.calls}")
        self.model.published += 1
        self.trained[self.train.name].clear()
        if records:
            self.record(0)

    @precondition(lambda self: self.model.published > self.model.recorded)
    @rule(behind=st.integers(0, 1))
    def record(self, behind: int) -> None:
        """As soon as the version is published; refused while a training task is behind it."""
        version = max(self.model.published - behind, self.model.recorded + 1)
        self.calls += 1
        sums: dict[str, str] = {}
        arguments = (self.trainer.incarnation, self.held_weight(version), "folder", sums, f"r{self.calls}")
        if version > self.model.first:
            with pytest.raises(Incomplete, match=f"version {version} cannot be recorded: train_{self.model.first}: "):
                self.admin.record(*arguments)
        else:
            self.admin.record(*arguments)
            self.model.retire(version)

    @precondition(lambda self: sum(len(member.batches) for member in self.members) < MOST_LEASES)
    @rule(who=st.integers(2, 3), trainers=st.integers(1, 2), records=st.booleans())
    def do_a_step(self, who: int, trainers: int, *, records: bool) -> None:
        """One whole rollout, as far as no one else has a part of it in work; the critic may be left behind."""
        self.generate_all(who % 2)
        self.derive_all(who)
        for place in range(min(trainers, len(self.training))):
            self.train_all(place)
        if self.is_trained():
            self.publish(records=records)

    def is_trained(self) -> bool:
        rows = {(self.model.published, row) for row in range(SHAPE.rows_per_partition)}
        return rows <= self.model.done[self.train.name]


def amount(task: Task, max_rows: int, there: int) -> int:
    """How many rows a claim gets where so many are offered in its partition."""
    if task.policy is ClaimPolicy.GROUP:
        num = SHAPE.samples_per_prompt
        return min(max(1, max_rows // num) * num, there)
    if task.policy is ForwardPolicy.PARTITION:
        return SHAPE.rows_per_partition
    return min(max_rows, there)


def put(queue: TransferQueueClient, task: Task, batch: Batch) -> bool:
    """False where the lease was lost."""
    numbers = [row_number((int(batch.rollout_id), row)) for row in batch.rows.tolist()]
    try:
        queue.put(batch, {field: Jagged.scalars(torch.tensor(numbers)) for field in task.writes}, weight=None)
    except LeaseLost:
        return False
    return True


def row_number(row: Row) -> int:
    """What a forward task says of the row, who asks."""
    return row[0] * SHAPE.rows_per_partition + row[1]
