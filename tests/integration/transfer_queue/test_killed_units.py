"""Storage units that are killed, or hang, as processes: clients go on or give up by name, and read no wrong byte."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from rljob_api.names import Role
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin_calls import Named
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import LeaseLost, StorageUnreachable
from rljob_workers.transfer_queue.row_format import parse_chunk
from rljob_workers.transfer_queue.types import Batch, GroupRows, NotReady, QueueTiming, Ticket
from rljob_workers.transfer_queue.upkeep import LostRows
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import LOG_PROBS, REFERENCE, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]
BIG_ELEMENTS = 1 << 18
"""1 MiB a row: a group of two is spread over both units."""


IMPATIENT = QueueTiming(patience_seconds=4.0)
KEEPING = ("--appendonly", "yes", "--appenddirname", "unit", "--appendfsync", "no")
"""Without a sync that is under way, behind which writes would wait while they are answered already."""


@contextmanager
def hung(servers: Servers, *indices: int) -> Iterator[None]:
    for index in indices:
        servers.units[index].stop()
    try:
        yield
    finally:
        for index in indices:
            servers.units[index].resume()


def big_group(job: Job, ticket: Ticket) -> GroupRows:
    num = job.shape.samples_per_prompt
    rows = [torch.full((BIG_ELEMENTS,), token_of(ticket.group, index), dtype=torch.int32) for index in range(num)]
    columns = {"tokens": Jagged.from_rows(rows), "rewards": Jagged.scalars(torch.ones(num))}
    return GroupRows(ticket, columns, [weight(0)] * num, [weight(0)] * num)


def token_of(group: int, index: int) -> int:
    return 100 * group + index + 1


def put_big(job: Job, tickets: list[Ticket]) -> list[bool]:
    return [place is not None for place in job.rollout.put_groups([big_group(job, ticket) for ticket in tickets])]


def assert_right(job: Job, batch: object) -> None:
    """Every row has its own tokens, all of them."""
    assert isinstance(batch, Batch), batch
    for row, tokens in zip(batch.rows.tolist(), batch.columns["tokens"].rows(), strict=True):
        group, index = divmod(row, job.shape.samples_per_prompt)
        assert tokens.numel() == BIG_ELEMENTS
        assert bool((tokens == token_of(group, index)).all())


def claim(client: TransferQueueClient, task: str = LOG_PROBS.name) -> object:
    return client.claim(task, range(1), 100, timeout=0)


def test_rows_of_a_killed_unit_are_made_again(make_job: MakeJob) -> None:
    job = make_job(batch=2, timing=QueueTiming())
    assert put_big(job, job.tickets(2)) == [True, True]
    forward = job.client(Role.ACTOR_FWD)
    held = claim(forward)
    assert isinstance(held, Batch)
    job.servers.units[1].kill()
    reference = job.client(Role.REFERENCE)
    answer = claim(reference, REFERENCE.name)
    assert isinstance(answer, NotReady)
    assert "storage unit 1" in answer.waiting_for
    job.servers.units[1].start()
    assert job.admin.upkeep.probe() == [1]
    assert job.admin.upkeep.declare_lost(1).reissued == 2
    with pytest.raises(LeaseLost):
        job.put_derived(forward, held, "log_probs")
    job.prove()
    again = job.tickets(2)
    assert [(ticket.group, ticket.prompt_index) for ticket in again] == [(0, 0), (1, 1)]
    assert put_big(job, again) == [True, True]
    assert_right(job, claim(reference, REFERENCE.name))


@pytest.mark.parametrize("num_units", [1, 2])
def test_a_unit_that_was_away_when_the_job_began_is_used_once_it_is_there(num_units: int) -> None:
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        servers = Servers(Path(folder), num_units)
        servers.start()
        late = servers.units[-1]
        late.kill()
        job = Job(servers, make_shape(batch=2))
        try:
            late.start()
            assert job.admin.upkeep.probe() == [num_units - 1]
            reported: list[LostRows] = []
            assert job.admin.upkeep.declare_lost(num_units - 1, reported.append) == LostRows()
            assert reported == []
            assert job.admin.upkeep.probe() == []
            assert put_big(job, job.tickets(2)) == [True, True]
            with late.admin() as admin:
                assert admin.dbsize() > 1
            job.prove()
        finally:
            job.close()
            servers.stop()


def test_a_unit_that_retained_its_rows_has_lost_none() -> None:
    """Ours keep nothing on disk; where one does, its mark is there after a kill, and so are the rows."""
    with tempfile.TemporaryDirectory(prefix="rlj-") as folder:
        keeping = Servers(Path(folder), 1, unit_options=KEEPING)
        keeping.start()
        try:
            job = Job(keeping, make_shape(batch=2))
            put_big(job, job.tickets(2))
            keeping.units[0].kill()
            keeping.units[0].start()
            assert job.admin.upkeep.probe() == []
            assert_right(job, claim(job.client(Role.ACTOR_FWD)))
            job.prove()
            job.close()
        finally:
            keeping.stop()


def test_a_put_goes_to_the_unit_that_answers(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    tickets = job.tickets(2)
    with hung(job.servers, 0):
        assert put_big(job, tickets) == [True, True]
        assert_right(job, claim(job.client(Role.ACTOR_FWD)))
    # What the hung unit does later is named by nothing.
    job.admin.end_incarnation(job.incarnation(job.rollout))
    job.prove()


def test_what_a_hung_unit_took_after_all_is_deleted_by_the_next_put(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    tickets = job.tickets(4)
    with hung(job.servers, 0):
        assert put_big(job, tickets[:2]) == [True, True]
    job.rollout.calls.units._shunned_until[0] = 0.0
    assert put_big(job, tickets[2:]) == [True, True]
    named = {parse_chunk(line).key for _, line in job.admin.sweeper.named(Named.ALL)}
    assert {key.decode() for key in job.servers.unit_keys() if key.count(b":") == 2} == named


def test_rows_of_a_hung_unit_are_waited_for_by_name_and_are_right_afterwards(make_job: MakeJob) -> None:
    job = make_job(batch=2, timing=QueueTiming())
    put_big(job, job.tickets(2))
    forward, reference = job.client(Role.ACTOR_FWD), job.client(Role.REFERENCE)
    with hung(job.servers, 1):
        for client, task in ((forward, LOG_PROBS), (reference, REFERENCE)):
            answer = claim(client, task.name)
            assert isinstance(answer, NotReady)
            assert "unit1.sock) has not answered for" in answer.waiting_for
            assert f"waits for rows of train_0 to train_0 for {task.name}" in answer.waiting_for
        assert job.admin.stats().rows_ready["actor_log_probs"] == 4
    for client, task in ((forward, LOG_PROBS), (reference, REFERENCE)):
        assert_right(job, claim(client, task.name))


def test_a_put_gives_up_by_name_when_no_unit_answers_and_may_be_tried_again(make_job: MakeJob) -> None:
    job = make_job(batch=2, timing=IMPATIENT)
    tickets = job.tickets(2)
    with hung(job.servers, 0, 1):
        with pytest.raises(StorageUnreachable, match=r"unit \d .*rollout-0.0 puts 2 groups of train_0.*Given up"):
            put_big(job, tickets)
        assert job.admin.stats().rows_ready["actor_log_probs"] == 0
    assert put_big(job, tickets) == [True, True]
    assert_right(job, claim(job.client(Role.ACTOR_FWD)))
    job.admin.end_incarnation(job.incarnation(job.rollout))
    job.prove()
