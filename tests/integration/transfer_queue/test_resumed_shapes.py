"""A job that is started again with a storage unit less, or a role more or less: what is unreadable is made again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rljob_api.names import Epoch
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.admin_calls import Named
from rljob_workers.transfer_queue.types import QueueShape
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import REFERENCE, TRAIN, make_shape

MakeJob = Callable[..., Job]


def test_rows_of_a_unit_that_is_no_part_of_the_job_any_more_are_generated_again(make_job: MakeJob) -> None:
    job = make_job(batch=4)
    for ticket in job.tickets(4):
        job.put([ticket])
    endpoints = job.servers.endpoints
    fewer = endpoints.model_copy(update={"storage_units": endpoints.storage_units[:1]})
    admin = QueueAdmin(fewer, job.shape, timing=job.admin_timing)
    assert admin.open_server(0) is ServerState.OPEN
    restore = admin.raise_epoch(Epoch(2), "d2", "resumed with a unit less", None)
    assert restore.kept_groups == 2
    admin.sweeper.sweep()
    assert admin.check() == []
    named = [line for _, line in admin.sweeper.named(Named.ALL)]
    assert all(line.startswith(b"0|") for line in named)
    admin.close()


def without_reference() -> QueueShape:
    shape = make_shape(batch=2)
    train = replace(TRAIN, needs=tuple(field for field in TRAIN.needs if field not in REFERENCE.writes))
    return replace(shape, tasks=tuple(train if task == TRAIN else task for task in shape.tasks if task != REFERENCE))


@pytest.mark.parametrize("comes", [True, False], ids=["a reference comes", "a reference goes"])
def test_rows_of_another_layout_are_generated_again_from_the_same_prompts(make_job: MakeJob, comes: bool) -> None:
    job = make_job(batch=2)
    before, after = make_shape(batch=2), without_reference()
    if comes:
        before, after = after, before
    job.reopen(before, 2)
    job.put(job.tickets(2))
    held = job.tickets(1)
    restore = job.reopen(after, 3)
    assert (restore.kept_groups, job.admin.check()) == (0, [])
    again = job.tickets(2)
    assert [(ticket.group, ticket.prompt_index) for ticket in again] == [(0, 0), (1, 1)]
    assert job.put(again) == [True, True]
    assert held[0].prompt_index == job.tickets(1)[0].prompt_index
    job.admin.sweeper.sweep()
    assert job.admin.check() == []
