"""A rollout streams from the real queue into two data-parallel ranks' datasets while it is being written."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch

from rljob_api.names import Epoch, Role, RolloutId
from rljob_api.wire.epochs import RestorePoint
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.dataset import Slicing, StreamingDataLoader, StreamingDataset
from rljob_workers.transfer_queue.types import GroupRows, QueueShape, Task, TaskKind, Ticket
from tests.integration.transfer_queue.servers import Servers

TRAIN = Task("actor_train", TaskKind.TRAINING, ("tokens", "rewards"))
SHAPE = QueueShape(
    batch_size=4,
    samples_per_prompt=2,
    max_staleness=1,
    num_rollouts=2,
    max_prompt_kills=2,
    max_attempts=2,
    generated_fields=("tokens", "rewards"),
    tasks=(TRAIN,),
)
NUM_RANKS = 2


class Job:
    """One replica, two actor ranks, the coordinator's queue admin."""

    def __init__(self, servers: Servers, stack: ExitStack) -> None:
        self._servers = servers
        self._stack = stack
        self._admin = stack.enter_context(closing(QueueAdmin(servers.endpoints, SHAPE)))
        self._admin.open_server(0)
        point: RestorePoint = self._admin.raise_epoch(Epoch(1), "d1", "first start", None)
        self._held = WeightId(lineage=point.lineage, version=point.version)
        self.replica = self._client(Role.ROLLOUT, 0)
        self.ranks = [self._client(Role.ACTOR, replica) for replica in range(NUM_RANKS)]

    def generate(self, num_groups: int) -> None:
        """Writes so many groups, oldest rollout first."""
        tickets = self.replica.claim_tickets(self._held, num_groups, 10)
        assert isinstance(tickets, list)
        assert all(self.replica.put_groups([self._group(ticket) for ticket in tickets]))

    def _group(self, ticket: Ticket) -> GroupRows:
        rows = [torch.full((1 + index,), 10 * ticket.rollout_id + ticket.group) for index in range(2)]
        columns = {"tokens": Jagged.from_rows(rows), "rewards": Jagged.scalars(torch.tensor([0.0, 1.0]))}
        return GroupRows(ticket, columns, [self._held] * 2, [self._held] * 2)

    def _client(self, role: Role, replica: int) -> TransferQueueClient:
        key = RankKey(role=role, replica=replica)
        incarnation = Incarnation(key=key, epoch=Epoch(1), generation=0, id=secrets.token_hex(6))
        self._admin.begin_incarnation(incarnation)
        return self._stack.enter_context(closing(TransferQueueClient(self._servers.endpoints, SHAPE, incarnation)))


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder, ExitStack() as stack:
        servers = Servers(Path(folder))
        stack.callback(servers.stop)
        servers.start()
        yield Job(servers, stack)


def make_loader(job: Job, rank: int, waited: list[str]) -> StreamingDataLoader:
    slicing = Slicing(TRAIN.name, SHAPE.rows_per_partition, 8, 2, dp_rank=rank, dp_size=NUM_RANKS)

    def generate_more(waiting_for: str) -> None:
        waited.append(waiting_for)
        job.generate(2)

    return StreamingDataLoader(StreamingDataset(job.ranks[rank], slicing, RolloutId(0), on_wait=generate_more))


def test_ranks_share_every_slice_and_passes_repeat_it(job: Job) -> None:
    waited: list[str] = []
    loaders = [make_loader(job, rank, waited) for rank in range(NUM_RANKS)]
    for rollout_id in (RolloutId(0), RolloutId(1)):
        for loader in loaders:
            loader.step(rollout_id)
        seen: list[int] = []
        for parts in zip(*loaders, strict=True):
            assert [len(part.batch.rows) for part in parts] == [2, 2]
            seen += [row for part in parts for row in part.batch.rows.tolist()]
            for part in parts:
                groups = part.batch.groups.tolist()
                expected = [10 * rollout_id + group for group in groups]
                assert [row[0].item() for row in part.batch.columns["tokens"].rows()] == expected
            if parts[0].ends_step:
                job.ranks[0].commit_training(TRAIN.name, rollout_id, parts[0].step)
        assert sorted(seen) == list(range(SHAPE.rows_per_partition))
        again = [row for loader in loaders for part in loader for row in part.batch.rows.tolist()]
        assert sorted(again) == sorted(seen)
    assert len(waited) == 4
    assert all("train_" in text for text in waited)
