"""Storage units without room: what goes first, who waits, and the name of the last failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from rljob_api.names import Role
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import StorageFull
from rljob_workers.transfer_queue.jagged import Jagged
from rljob_workers.transfer_queue.types import Batch, GroupRows, Ticket
from tests.integration.transfer_queue.job import Job, weight
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import LOG_PROBS

MakeJob = Callable[..., Job]
UNIT_BYTES = 64 << 20
GROUP_BYTES = 4 << 20
PER_UNIT = 2
"""A group of two rows of 2 MiB is spread over two units."""


@pytest.fixture
def narrow(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Leaves room for so many more groups; a put that finds none gives up soon."""
    monkeypatch.setattr("rljob_workers.transfer_queue.client.PATIENCE_SECONDS", 0.3)

    def leave(groups: float) -> None:
        for unit in servers.units:
            with unit.admin() as admin:
                used = int(admin.info("memory")["used_memory"])
                admin.config_set("maxmemory", used + int(groups * GROUP_BYTES / PER_UNIT))

    yield leave
    for unit in servers.units:
        with unit.admin() as admin:
            admin.config_set("maxmemory", UNIT_BYTES)


def big_group(job: Job, ticket: Ticket) -> GroupRows:
    num = job.shape.samples_per_prompt
    rows = [torch.full((GROUP_BYTES // num // 4,), ticket.group, dtype=torch.int32) for _ in range(num)]
    columns = {"tokens": Jagged.from_rows(rows), "rewards": Jagged.scalars(torch.ones(num))}
    held = weight(job.steward.published())
    return GroupRows(ticket, columns, [held] * num, [held] * num)


def put(job: Job, tickets: list[Ticket]) -> list[bool]:
    return [verdict for ticket in tickets for verdict in job.rollout.put_groups([big_group(job, ticket)])]


def big_log_probs(client: TransferQueueClient, batch: Batch, held: int) -> None:
    rows = [torch.zeros(GROUP_BYTES // 8) for _ in range(len(batch))]
    client.put(batch, {"log_probs": Jagged.from_rows(rows)}, weight=weight(held))


def claim(client: TransferQueueClient, task: str, rollout: int, rows: int = 100) -> Batch:
    answer = client.claim(task, range(rollout, rollout + 1), rows, timeout=0)
    assert isinstance(answer, Batch), answer
    return answer


def make_room(job: Job) -> str | None:
    relief = job.steward.relieve()
    job.steward.sweep()
    job.prove()
    return relief


def test_retained_rows_go_first_then_the_newest_groups_then_a_put_fails_by_name(
    make_job: MakeJob, narrow: Callable[[float], None]
) -> None:
    job = make_job(batch=2, staleness=1)
    first = job.tickets(2)
    put(job, first)
    job.derive(0)
    job.train(0)
    job.publish(1)
    older, newer = (tickets := job.tickets(4, weight(1)))[:2], tickets[2:]
    assert [ticket.rollout_id for ticket in tickets] == [1, 1, 2, 2]

    narrow(2.5)
    assert put(job, older) == [True, True]
    with pytest.raises(StorageFull, match=r"has no room for \d+ bytes; rollout-0.0 puts 1 groups of train_2"):
        put(job, newer[:1])
    assert make_room(job) == "rows of train_0, kept for a restore, were dropped"
    assert put(job, newer) == [True, True]

    forward = job.client(Role.ACTOR_FWD)
    rows = claim(forward, LOG_PROBS.name, 1)
    with pytest.raises(StorageFull, match=r"actor_fwd-0.0 puts log_probs of 4 rows of train_1"):
        big_log_probs(forward, rows, 1)
    assert make_room(job) == "2 groups of train_2 were dropped and are generated again"
    big_log_probs(forward, rows, 1)

    # The trainer's own partition is never dropped: what finds no room now is told, and nothing is waited for.
    narrow(0.1)
    assert make_room(job) is None
    reissued = job.tickets(2, weight(1))
    assert [ticket.rollout_id for ticket in reissued] == [2, 2]
    with pytest.raises(StorageFull, match=r"Raise transferQueue\.storageBytes or storageUnits"):
        put(job, reissued)

    # And the job goes on with what it has.
    job.derive(1, weight(1))
    job.train(1)
    job.publish(2)
    assert make_room(job) == "rows of train_1, kept for a restore, were dropped"
    assert put(job, reissued) == [True, True]
