"""Garbage: what it waits for, and how little of it one call looks at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.admin_calls import AdminCalls, Named
from rljob_workers.transfer_queue.control.connection import Argument
from rljob_workers.transfer_queue.row_format import parse_chunk
from rljob_workers.transfer_queue.upkeep import CHUNKS_AT_ONCE, PAGES_AT_ONCE, Swept
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.proof import breaches
from tests.weights import weight

MakeJob = Callable[..., Job]
NOTHING = Swept(chunks=0, orphans=0, partitions=0, has_more=False)


def discard(job: Job) -> None:
    """Leaves garbage of every kind on both units: of dropped rows, of a partition, of an incarnation that has ended."""
    for rollout_id in range(2):
        held = weight(rollout_id)
        for ticket in job.tickets(job.shape.batch_size, held):
            assert job.put([ticket], held) == [True]
        job.derive(rollout_id, held)
        job.train(rollout_id)
        job.publish(rollout_id + 1)
        if rollout_id == 0:
            assert job.admin.upkeep.drop_retained() is not None
    job.record(2)
    for _ in job.servers.units:
        job.rollout.calls.units.store({"tokens": Jagged.scalars(torch.ones(2))}, deadline=float("inf"))
    job.admin.end_incarnation(job.incarnation(job.rollout))


def chunks_on(job: Job, unit: int) -> set[bytes]:
    with job.servers.units[unit].admin() as admin:
        return set(admin.scan_iter(match="*:*:*"))


def control(job: Job) -> Control:
    return Control(job.servers.control.admin(), job.shape)


@pytest.mark.parametrize("away", [0, 1])
def test_what_lies_on_a_unit_that_is_away_waits_for_it_and_nothing_else_does(make_job: MakeJob, away: int) -> None:
    job = make_job(batch=4)
    discard(job)
    assert chunks_on(job, 0)
    assert chunks_on(job, 1)
    job.servers.units[away].stop()
    try:
        swept = job.admin.sweeper.sweep()
    finally:
        job.servers.units[away].resume()
    assert (swept.chunks > 0, swept.orphans > 0, swept.partitions > 0, swept.has_more) == (True, True, True, False)
    assert chunks_on(job, 1 - away) == set()
    assert control(job).places("q:garbage") == []
    assert {chunk.unit for chunk in control(job).dead} == {away}

    assert job.admin.sweeper.sweep().orphans > 0
    assert chunks_on(job, away) == set()
    assert control(job).dead == []
    assert job.admin.sweeper.sweep() == NOTHING


def test_no_name_of_garbage_stays_when_its_unit_was_replaced(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    discard(job)
    job.servers.units[0].kill()
    try:
        job.admin.sweeper.sweep()
        assert control(job).dead
    finally:
        job.servers.units[0].start()
    assert job.admin.upkeep.probe() == [0]
    job.admin.upkeep.declare_lost(0)
    job.admin.sweeper.sweep()
    assert control(job).dead == []


def leaves(reply: Any) -> int:
    return sum(map(leaves, reply)) if isinstance(reply, list) else 1


def test_much_garbage_is_swept_in_pages(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    num_chunks = 3 * CHUNKS_AT_ONCE + 1
    lines = [f"{index % 2}|1|tokens|1|int32||4|1:abcdefabcdef:{index:x}" for index in range(2 * num_chunks)]
    with job.servers.control.admin() as admin:
        for line in lines[:num_chunks]:
            admin.rpush(f"q:dead:{line[0]}", line)
        admin.hset("p:7:chunks", mapping={f"{index:012d}": line for index, line in enumerate(lines[num_chunks:])})
        admin.zadd("q:garbage", {"7": 7})
    for unit in job.servers.units:
        with unit.admin() as admin:
            admin.mset({parse_chunk(line.encode()).key: b"left" for line in lines})
    largest: dict[str, int] = {}
    read = AdminCalls.read

    def measured(calls: AdminCalls, name: str, *args: Argument, waiting: str) -> list[Any]:
        reply = read(calls, name, *args, waiting=waiting)
        largest[name] = max(largest.get(name, 0), leaves(reply))
        return reply

    monkeypatch.setattr(AdminCalls, "read", measured)
    named = job.admin.sweeper.named(Named.ALL)
    assert sorted(line.decode() for _, line in named) == sorted(lines[num_chunks:])
    swept = job.admin.sweeper.sweep()
    assert (swept.chunks, swept.partitions, swept.has_more) == (2 * num_chunks, 1, False)
    assert control(job).dead == []
    assert breaches(job.servers, job.shape) == []
    # Two values for each chunk; a page of a hash may have a few more than were asked for.
    assert largest["garbage"] <= 2 * CHUNKS_AT_ONCE + 2
    assert largest["chunks"] < 3 * CHUNKS_AT_ONCE


def test_a_sweep_ends_also_where_there_is_more(make_job: MakeJob) -> None:
    job = make_job()
    with job.servers.control.admin() as admin:
        for first in range(0, PAGES_AT_ONCE * CHUNKS_AT_ONCE + 5, 1000):
            admin.rpush("q:dead:1", *(f"1|1|tokens|1|int32||4|1:abcdefabcdef:{first + index}" for index in range(1000)))
    assert job.admin.sweeper.sweep().has_more
    assert len(control(job).dead) == 1000
    assert job.admin.sweeper.sweep() == NOTHING
    assert control(job).dead == []


def test_a_sweep_that_finds_nothing_asks_twice(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job()
    assert job.put(job.tickets(2)) == [True, True]
    asked: list[str] = []
    read = AdminCalls.read

    def noted(calls: AdminCalls, name: str, *args: Argument, waiting: str) -> list[Any]:
        asked.append(name)
        return read(calls, name, *args, waiting=waiting)

    monkeypatch.setattr(AdminCalls, "read", noted)
    monkeypatch.setattr(job.admin._control, "change", None)
    assert job.admin.sweeper.sweep() == NOTHING
    assert asked == ["garbage", "lives"]
    monkeypatch.undo()
