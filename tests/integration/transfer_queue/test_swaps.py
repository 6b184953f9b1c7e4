"""Groups that exchange their places when one of them is put: which go where, how far, and what stays with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rljob_api.names import Role
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Withheld
from tests.integration.transfer_queue.exchanges import carrying, names, put, swapping, train
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.world import make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]


def test_a_finished_group_takes_the_lowest_place_that_is_unfinished(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    slow, other, third, fourth = job.tickets(4)
    assert put(job, third) == (0, 0)
    assert put(job, fourth) == (0, 1)
    assert job.admin.inspection.stats("test").swaps == 2
    train(job, 0)
    assert put(job, other) == (1, 1)
    assert put(job, slow) == (1, 0)
    train(job, 1)


def test_groups_of_one_rollout_keep_their_places(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    _, second, *_ = job.tickets(4)
    assert put(job, second) == (0, 1)


def test_no_group_goes_further_than_its_oldest_token_may(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1, rollouts=4))
    first, second, slow, fourth = job.tickets(4)
    put(job, first)
    put(job, second)
    train(job, 0)
    # Those of train_1 were issued under version 0, and version 0 is too old for train_2.
    fifth, _ = job.tickets(2, weight(1))
    assert put(job, fifth, 1) == (2, 0)
    put(job, fourth)
    assert put(job, slow) == (1, 0)


def test_a_group_goes_to_the_front_over_others_that_may_not_go_as_far_as_its_own_place(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=1, staleness=2, rollouts=5))
    of_0, of_1, of_2 = job.tickets(3)
    put(job, of_0)
    train(job, 0)
    (of_3,) = job.tickets(1, weight(1))
    # Version 0 may go to train_2 and not to train_3: train_3 and train_2 cannot be exchanged, and nothing changes.
    assert put(job, of_3, 1) == (3, 0)
    assert put(job, of_2) == (1, 0)
    assert put(job, of_1) == (2, 0)


def test_a_chain_of_exchanges_leads_to_a_lower_place(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=2, rollouts=6))
    tickets = job.tickets(6)
    put(job, tickets[0])
    assert put(job, tickets[2]) == (0, 1)
    train(job, 0)
    # Now train_1 has the slow one of version 0, and under version 1 there are two groups for train_3.
    again = job.tickets(2, weight(1))
    job.rollout.return_tickets([tickets[4]], killed=False)
    (moved,) = job.tickets(1, weight(1))
    assert names([moved]) == [(2, 0, tickets[4].prompt_index)]
    # train_3 takes the place in train_2 of what was issued under version 1, and then that of version 0 in train_1.
    assert put(job, again[0], 1) == (1, 0)
    assert put(job, tickets[1]) == (1, 1)
    assert put(job, tickets[3]) == (2, 0)
    assert put(job, tickets[5]) == (2, 1)
    assert put(job, moved, 1) == (3, 0)


def test_a_group_that_waits_goes_and_is_issued_for_its_new_place(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    first, second, third, _ = job.tickets(4)
    put(job, second)
    job.rollout.return_tickets([first], killed=False)
    assert put(job, third) == (0, 0)
    assert names(job.tickets(1)) == [(1, 0, first.prompt_index)]
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.STALENESS


def test_a_group_that_was_moved_is_drawn_again_for_its_new_place(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    first, _, third, fourth = job.tickets(4)
    put(job, third)
    drawn = job.rollout.redraw(first, "a test")
    assert (int(drawn.rollout_id), drawn.group, drawn.attempt) == (1, 0, 1)
    assert put(job, fourth) == (0, 1)
    assert put(job, drawn) == (1, 0)


def test_a_ticket_states_how_far_its_group_was_put_off_since_it_was_begun(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    first, second, third, fourth = job.tickets(4)
    put(job, third)
    put(job, fourth)
    job.rollout.return_tickets([first, second], killed=False)
    again = job.tickets(2)
    assert [(int(ticket.rollout_id), ticket.put_off) for ticket in (first, *again)] == [(0, 0), (1, 1), (1, 1)]
    assert job.rollout.redraw(again[0], "a test").put_off == 0, "the next prompt is begun for the place that there is"


def test_a_suspect_keeps_its_kills_wherever_it_goes(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    first, _, third, _ = job.tickets(4)
    put(job, third)
    for replica in (1, 2):
        job.admin.suspect(job.incarnation(job.rollout))
        job.admin.end_incarnation(job.incarnation(job.rollout))
        job.rollout = job.client(Role.ROLLOUT, replica)
        if replica == 1:
            assert not any(ticket.alone for ticket in job.tickets(4))
    (alone,) = job.tickets(4)
    assert alone.alone
    assert (int(alone.rollout_id), alone.group) == (0, 1)
    assert put(job, alone) == (0, 1)
    (alone,) = job.tickets(4)
    assert names([alone]) == [(1, 0, first.prompt_index)]


def died_twice(job: Job, holder: TransferQueueClient) -> object:
    """A ticket that is in work when its holder dies for the second time; it is still to be reported."""
    holder.claim_tickets(weight(0), 1, 0)
    job.admin.suspect(job.incarnation(holder))
    return holder.claim_tickets(weight(0), 1, 0)


@pytest.mark.parametrize("carries", [False, True], ids=["bound tokens", "carried tokens"])
def test_a_suspect_that_waits_is_not_put_off_by_what_is_finished(make_job: MakeJob, carries: bool) -> None:
    job = make_job(carrying(batch=2, staleness=1) if carries else swapping(batch=2, staleness=1))
    other = job.client(Role.ROLLOUT, 1)
    held = died_twice(job, other)
    _, third, _ = job.tickets(3)
    job.admin.suspect(job.incarnation(other))
    job.admin.end_incarnation(job.incarnation(other))
    assert put(job, third) == (0, 1)
    job.rollout = job.client(Role.ROLLOUT, 2)
    (alone,) = job.tickets(1)
    assert isinstance(held, list)
    assert (alone.alone, names([alone])) == (True, names(held))


def test_what_is_behind_a_suspect_goes_in_front_of_others(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    other = job.client(Role.ROLLOUT, 1)
    died_twice(job, other)
    second, third, _ = job.tickets(3)
    job.admin.suspect(job.incarnation(other))
    job.admin.end_incarnation(job.incarnation(other))
    job.rollout.return_tickets([second], killed=False)
    assert put(job, third) == (0, 1)


def test_a_restore_draws_what_was_moved_again_and_once(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=2, staleness=1))
    first, second, third, fourth = job.tickets(4)
    put(job, third)
    job.raise_epoch(2)
    assert job.admin.check() == []
    job.rollout = job.client(Role.ROLLOUT)
    lineage = weight(0, lineage=2)
    drawn = job.tickets(4, lineage)
    assert [(int(ticket.rollout_id), ticket.group) for ticket in drawn] == [(0, 1), (1, 0), (1, 1)]
    assert {ticket.prompt_index for ticket in drawn} == {one.prompt_index for one in (first, second, fourth)}


def test_a_restart_with_a_smaller_bound_drops_what_is_too_old_for_it(make_job: MakeJob) -> None:
    job = make_job(make_shape(batch=1, staleness=2, rollouts=6))
    job.put(job.tickets(3))
    restore = job.reopen(make_shape(batch=1, staleness=1, rollouts=6), 2)
    assert (restore.kept_groups, restore.dropped_groups) == (2, 1)
    job.prove()


def test_tickets_end_with_the_epoch_whatever_shape_comes(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=1, staleness=2, rollouts=6))
    job.put(job.tickets(1))
    train(job, 0)
    held = job.tickets(3, weight(1))
    for epoch, shape in enumerate((carrying(batch=1, rollouts=6), make_shape(batch=1, rollouts=6)), start=2):
        job.reopen(shape, epoch)
        job.check()
    assert len(held) == 3


def test_the_check_names_a_ticket_that_is_not_where_exchanges_look_for_it(make_job: MakeJob) -> None:
    job = make_job(swapping(batch=1, staleness=0))
    (ticket,) = job.tickets(1)
    with job.servers.control.admin() as admin:
        admin.zincrby("q:movable:0", 1, str(ticket.id))
        assert job.admin.check() == [f"ticket {ticket.id} is not to be exchanged at its place"]
        admin.zadd("q:movable:0", {str(ticket.id): 0, "77": 0})
        assert job.admin.check() == ["2 tickets may be exchanged, and 1 are in work"]
        admin.zrem("q:movable:0", "77")
    job.check()
