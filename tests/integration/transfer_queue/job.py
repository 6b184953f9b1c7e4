"""A small job on real Redis, for tests that do one thing after another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rljob_api.names import Epoch, Role, RolloutId
from rljob_api.spec.queue import Waiting
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Incarnation, WeightId
from rljob_api.wire.observation import ServerState
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import QueueAdmin, QueueAdminTiming
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, GroupRows, QueueShape, QueueTiming, Task, Ticket
from tests.integration.transfer_queue.proof import breaches
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import ADVANTAGES, LOG_PROBS, REFERENCE, TRAIN, make_incarnation, make_shape
from tests.weights import weight

PATIENT = QueueTiming(unit_silence_seconds=30.0)
"""A unit that answers is waited for, however busy the machine; a put still leaves one that hangs after a moment."""


class Job:
    """A queue admin and one client; epoch 1 is open."""

    def __init__(
        self,
        servers: Servers,
        shape: QueueShape | None = None,
        *,
        timing: QueueTiming = PATIENT,
        checksums: bool = False,
    ) -> None:
        """`timing` and `checksums`: of all clients."""
        self.servers = servers
        self.shape = shape or make_shape()
        self.timing = timing
        self.checksums = checksums
        self.admin_timing = QueueAdminTiming(unlisted_seconds=0)
        self.clients: list[TransferQueueClient] = []
        self.incarnations: dict[TransferQueueClient, Incarnation] = {}
        self.admin = QueueAdmin(servers.endpoints, self.shape, timing=self.admin_timing)
        assert self.admin.open_server(0) is ServerState.OPEN
        self.restore = self.raise_epoch(1)
        self.rollout = self.client(Role.ROLLOUT)
        self.actor = self.client(Role.ACTOR)

    def close(self) -> None:
        self.admin.close()
        for client in self.clients:
            client.close()

    def raise_epoch(self, epoch: int) -> RestorePoint:
        self.epoch = epoch
        return self.admin.raise_epoch(Epoch(epoch), f"d{epoch}", "a test", None)

    def reopen(self, shape: QueueShape, epoch: int) -> RestorePoint:
        """The job started again, with another shape perhaps."""
        self.admin.close()
        self.shape = shape
        self.admin = QueueAdmin(self.servers.endpoints, shape, timing=self.admin_timing)
        assert self.admin.open_server(0) is ServerState.OPEN
        restore = self.raise_epoch(epoch)
        self.rollout = self.client(Role.ROLLOUT)
        self.actor = self.client(Role.ACTOR)
        return restore

    def client(self, role: Role, replica: int = 0, waiting: Waiting = Waiting.NOTIFY) -> TransferQueueClient:
        incarnation = make_incarnation(role, self.epoch, replica)
        self.admin.begin_incarnation(incarnation)
        client = TransferQueueClient(
            self.servers.endpoints,
            self.shape,
            incarnation,
            waiting=waiting,
            checksums=self.checksums,
            timing=self.timing,
        )
        self.clients.append(client)
        self.incarnations[client] = incarnation
        return client

    def incarnation(self, client: TransferQueueClient) -> str:
        return self.incarnations[client].id

    def tickets(self, limit: int, holds: WeightId | None = None) -> list[Ticket]:
        answer = self.rollout.claim_tickets(holds or weight(0), limit, 0)
        assert isinstance(answer, list), answer
        return answer

    def group(self, ticket: Ticket, oldest: WeightId | None = None, newest: WeightId | None = None) -> GroupRows:
        num = self.shape.samples_per_prompt
        tokens = [torch.arange(2 + row, dtype=torch.int32) for row in range(num)]
        columns = {"tokens": Jagged.from_rows(tokens), "rewards": Jagged.scalars(torch.ones(num))}
        if "extra" in self.shape.generated_fields:
            columns["extra"] = Jagged.from_lengths(
                torch.ones(num, dtype=torch.uint8), torch.ones(num, dtype=torch.int64)
            )
        first = oldest or weight(0)
        return GroupRows(
            ticket,
            columns,
            [first] * num,
            [newest or first] * num,
        )

    def put(self, tickets: Sequence[Ticket], made_by: WeightId | None = None) -> list[bool]:
        return [place is not None for place in self.rollout.put_groups([self.group(one, made_by) for one in tickets])]

    def derive(self, rollout: int, made_by: WeightId | None = None) -> None:
        """All forward tasks on all rows of a partition that are ready."""
        for task, role in ((LOG_PROBS, Role.ACTOR_FWD), (REFERENCE, Role.REFERENCE), (ADVANTAGES, Role.ADVANTAGES)):
            if task not in self.shape.tasks:
                continue
            client = self.client(role)
            while isinstance(batch := client.claim(task.name, range(rollout, rollout + 1), 100, timeout=0), Batch):
                self.put_derived(client, batch, task.writes[0], made_by)

    def put_derived(
        self, client: TransferQueueClient, batch: Batch, field: str, made_by: WeightId | None = None
    ) -> None:
        value = Jagged.scalars(torch.zeros(len(batch.rows)))
        client.put(batch, {field: value}, weight=made_by or weight(0))

    def train(self, rollout: int, task: Task = TRAIN) -> None:
        batch = self.claim_training(rollout, task)
        assert isinstance(batch, Batch), batch
        self.actor.commit_training(task.name, RolloutId(rollout), [0])

    def claim_training(self, rollout: int, task: Task = TRAIN) -> object:
        rows = self.shape.rows_per_partition
        return self.actor.claim_training(task.name, RolloutId(rollout), 0, rows, 0, 1, timeout=0)

    def publish(self, version: int, lineage: int = 1) -> None:
        self.admin.publish(self.incarnations[self.actor], weight(version, lineage), f"p{self.epoch}-{version}")

    def record(self, version: int, lineage: int = 1) -> None:
        self.admin.record(
            self.incarnations[self.actor], weight(version, lineage), f"{version}", {}, f"r{self.epoch}-{version}"
        )

    def step(self, rollout: int) -> None:
        """One whole rollout, from tickets to the published weight."""
        held = weight(rollout, self.restore.lineage)
        self.put(self.tickets(self.shape.batch_size, held), held)
        self.derive(rollout, held)
        self.train(rollout)
        self.publish(rollout + 1, self.restore.lineage)

    def check(self) -> None:
        assert self.admin.check() == []

    def prove(self) -> None:
        """Nothing is broken, and after a sweep no byte is left over."""
        while (swept := self.admin.sweeper.sweep()).chunks or swept.orphans:
            pass
        self.check()
        assert breaches(self.servers, self.shape) == []
