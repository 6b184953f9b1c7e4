"""Groups that go on over weight versions (order Swap, `rollout.partial`): where they go, and which are made again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rljob_workers.transfer_queue.types import Withheld
from tests.integration.transfer_queue.exchanges import carrying, names, put, train
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]


def test_carried_groups_go_to_any_rollout(make_job: MakeJob) -> None:
    job = make_job(carrying(batch=1, staleness=0, rollouts=4))
    slow, second = job.tickets(2)
    assert put(job, second) == (0, 0)
    train(job, 0)
    (third,) = job.tickets(1, weight(1))
    assert put(job, third, 1) == (1, 0)
    train(job, 1)
    (place,) = job.rollout.put_groups([job.group(slow, weight(0), weight(2))])
    assert place == (2, 0)


def test_a_carried_group_whose_tokens_are_all_too_old_is_generated_again_once(make_job: MakeJob) -> None:
    job = make_job(carrying(batch=1, staleness=0, rollouts=4))
    slow, second = job.tickets(2)
    put(job, second)
    train(job, 0)
    assert put(job, slow, 0) is None
    (again,) = job.tickets(1, weight(1))
    assert names([again]) == [(1, 0, slow.prompt_index)]
    # Made too late once more, it is trained, and no token of it is learnt from: else its rollout had no end.
    assert put(job, again, 0) == (1, 0)


def test_another_prompt_was_never_too_late(make_job: MakeJob) -> None:
    job = make_job(carrying(batch=1, staleness=0, rollouts=4))
    slow, second = job.tickets(2)
    put(job, second)
    train(job, 0)
    assert put(job, slow, 0) is None
    (again,) = job.tickets(1, weight(1))
    drawn = job.rollout.refuse(again)
    assert put(job, drawn, 0) is None


def test_a_group_that_is_finished_too_early_waits_for_weights_that_its_rollout_learns_from(make_job: MakeJob) -> None:
    job = make_job(carrying(batch=1, staleness=0, rollouts=4, more=2))
    first, early, other = job.tickets(3)
    put(job, first)
    assert put(job, early) is None
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.STALENESS
    # It holds nothing up: what is behind it is issued.
    job.rollout.return_tickets([other], killed=False)
    assert job.admin.stats().withheld is None
    (other,) = job.tickets(2)
    assert names([other]) == [(2, 0, other.prompt_index)]
    assert job.admin.stats().withheld == Withheld.CAPACITY
    train(job, 0)
    again, _ = job.tickets(3, weight(1))
    assert names([again]) == [(1, 0, early.prompt_index)]
    assert put(job, again, 1) == (1, 0)


def test_too_early_is_not_too_late_however_often(make_job: MakeJob) -> None:
    job = make_job(carrying(batch=1, staleness=0, rollouts=4))
    first, early = job.tickets(2)
    put(job, first)
    assert put(job, early) is None
    train(job, 0)
    again, third = job.tickets(2, weight(1))
    assert put(job, third, 1) == (1, 0)
    assert put(job, again, 1) is None  # it was moved to rollout 2
    train(job, 1)
    again, _ = job.tickets(2, weight(2))
    assert names([again]) == [(2, 0, early.prompt_index)]
    assert put(job, again, 1) is None  # the first time that it is too late
    again, *_ = job.tickets(2, weight(2))
    assert put(job, again, 1) == (2, 0)


@pytest.mark.parametrize(("staleness", "more"), [(0, 2), (1, 1), (2, 3)])
def test_quick_groups_beyond_the_open_rollouts_are_all_learnt_from(
    make_job: MakeJob, staleness: int, more: int
) -> None:
    rollouts = staleness + 3
    job = make_job(carrying(batch=2, staleness=staleness, rollouts=rollouts, more=more))
    for version in range(rollouts):
        while isinstance(tickets := job.rollout.claim_tickets(weight(version), 100, 0), list):
            places = [put(job, ticket, version) for ticket in tickets]
            assert all(place is None or place.rollout_id - version <= staleness for place in places)
        train(job, version)


@pytest.mark.parametrize("goes_on", [True, False], ids=["carried", "bound"])
def test_a_restart_judges_carried_groups_by_the_order_that_it_has(make_job: MakeJob, goes_on: bool) -> None:
    shape = carrying(batch=1, staleness=1, rollouts=6)
    job = make_job(shape)
    slow, second, third = job.tickets(3)
    for rollout, ticket in enumerate((second, third)):
        put(job, ticket)
        train(job, rollout)
    job.record(2)
    assert job.rollout.put_groups([job.group(slow, weight(0), weight(2))]) == [(2, 0)]
    restore = job.reopen(shape if goes_on else make_shape(batch=1, staleness=1, rollouts=6), 2)
    assert (restore.kept_groups, restore.dropped_groups) == ((1, 0) if goes_on else (0, 1))
    job.prove()
