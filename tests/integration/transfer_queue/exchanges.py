"""Jobs whose groups exchange their places, and what their tests do in one call each."""

from __future__ import annotations

from dataclasses import replace

from rljob_api.spec.rollout import GroupOrder
from rljob_workers.transfer_queue.types import GroupPlace, QueueShape, Ticket
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import make_shape
from tests.weights import weight


def swapping(**sizes: int) -> QueueShape:
    return replace(make_shape(**sizes), order=GroupOrder.SWAP)


def carrying(*, more: int = 1, **sizes: int) -> QueueShape:
    return replace(swapping(**sizes), carries=True, more_groups=more)


def put(job: Job, ticket: Ticket, version: int = 0) -> GroupPlace | None:
    made_by = weight(version)
    (place,) = job.rollout.put_groups([job.group(ticket, made_by)])
    assert job.admin.check() == []
    return place


def train(job: Job, rollout: int) -> None:
    """Publishes version rollout + 1."""
    job.derive(rollout, weight(rollout))
    job.train(rollout)
    job.publish(rollout + 1)


def names(tickets: list[Ticket]) -> list[tuple[int, int, int]]:
    return [(int(ticket.rollout_id), ticket.group, ticket.prompt_index) for ticket in tickets]
