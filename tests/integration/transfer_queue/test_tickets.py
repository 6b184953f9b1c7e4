from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from rljob_api.names import Role
from rljob_api.wire.identity import WeightId
from rljob_workers.transfer_queue.admin import InWork
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import AttemptsExhausted, Fenced, TicketLost
from rljob_workers.transfer_queue.types import Ticket, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.world import make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]


def places(tickets: list[Ticket]) -> list[tuple[int, int, int]]:
    return [(ticket.rollout_id, ticket.group, ticket.prompt_index) for ticket in tickets]


def test_tickets_come_lowest_rollout_first_up_to_the_staleness_of_the_replicas_own_weight(make_job: MakeJob) -> None:
    job = make_job(staleness=1, batch=2)
    assert places(job.tickets(10)) == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)]
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.STALENESS
    assert job.rollout.claim_tickets(weight(1), 1, 0) is Withheld.CAPACITY


def test_nothing_is_given_for_a_dead_weight_or_beyond_the_last_rollout(make_job: MakeJob) -> None:
    job = make_job(rollouts=1, batch=2)
    assert job.rollout.claim_tickets(weight(0, lineage=7), 1, 0) is Withheld.DEAD_WEIGHTS
    job.tickets(2)
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.NONE_OPEN


def test_a_group_is_put_once(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    assert job.put(tickets) == [True, True]
    assert job.put(tickets) == [False, False]


@pytest.mark.parametrize(
    ("oldest", "newest"),
    [
        pytest.param(weight(-1), weight(0), id="a token older than the staleness allows"),
        pytest.param(weight(0), weight(3, lineage=9), id="a token of a weight that is not alive"),
    ],
)
def test_a_group_of_weights_that_do_not_count_is_generated_again(
    make_job: MakeJob, oldest: WeightId, newest: WeightId
) -> None:
    job = make_job(staleness=1, batch=1)
    _, second = job.tickets(2)
    assert second.rollout_id == 1
    assert job.rollout.put_groups([job.group(second, oldest, newest)]) == [None]
    assert places(job.tickets(2)) == places([second])


def test_a_claim_whose_reply_was_lost_is_answered_again_and_issues_nothing_twice(
    make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job()
    incarnation = make_incarnation(Role.ROLLOUT, job.epoch, replica=1)
    job.admin.begin_incarnation(incarnation)
    with closing(LossyLine(job.servers.endpoints.control_redis, tmp_path / "line.sock")) as line:
        endpoints = job.servers.endpoints.model_copy(update={"control_redis": line.url})
        with closing(TransferQueueClient(endpoints, job.shape, incarnation)) as queue:
            line.losses = 2
            tickets = queue.claim_tickets(weight(0), 1, 0)
    assert line.losses == 0
    assert isinstance(tickets, list)
    assert places(tickets) == [(0, 0, 0)]
    assert places(job.tickets(1)) == [(0, 1, 1)]


def test_returned_tickets_keep_place_and_prompt_and_get_a_new_number(make_job: MakeJob) -> None:
    job = make_job()
    first, second = job.tickets(2)
    job.rollout.return_tickets([first], killed=False)
    (again,) = job.tickets(1)
    assert places([again]) == places([first])
    assert again.id not in (first.id, second.id)
    assert job.put([first]) == [False]


def test_an_ended_incarnation_is_fenced_and_its_tickets_come_back(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    job.admin.end_incarnation(job.incarnation(job.rollout))
    with pytest.raises(Fenced, match="not live in epoch 1"):
        job.put(tickets)
    job.rollout = job.client(Role.ROLLOUT)
    assert places(job.tickets(2)) == places(tickets)


def test_work_that_is_taken_back_is_given_to_others_and_refused_of_its_holder(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    assert job.admin.take_back(job.incarnation(job.rollout)) == 2
    assert job.admin.take_back(job.incarnation(job.rollout)) == 0
    assert job.put(tickets) == [False, False]
    assert places(job.tickets(2)) == places(tickets), "its holder lives, and is another's equal"


def test_while_the_queue_drains_nothing_is_taken_back(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    job.admin.withhold_tickets()
    assert job.admin.take_back(job.incarnation(job.rollout)) == 0
    assert job.put(tickets) == [True, True]


def test_a_suspect_stays_with_its_holder(make_job: MakeJob) -> None:
    job = make_job()
    for _ in range(2):
        job.rollout.return_tickets(job.tickets(1), killed=True)
    [alone] = job.tickets(1)
    assert alone.alone
    assert job.admin.take_back(job.incarnation(job.rollout)) == 0
    assert job.put([alone]) == [True]


def test_a_suspect_is_not_given_beside_work_that_is_done_in_vain(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=2)
    [taken], other = job.tickets(1), job.client(Role.ROLLOUT, 1)
    job.admin.take_back(job.incarnation(job.rollout))
    given = other.claim_tickets(weight(0), 2, 0)
    assert isinstance(given, list)
    again, suspect = given
    assert places([again]) == places([taken])
    for _ in range(2):
        other.return_tickets([suspect], killed=True)
        if isinstance(back := other.claim_tickets(weight(0), 1, 0), list):
            [suspect] = back
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.SUSPECT
    job.admin.beats([InWork(job.incarnation(job.rollout), [taken.id], [])])
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.SUSPECT
    job.admin.beats([InWork(job.incarnation(job.rollout), [], [])])
    [alone] = job.tickets(1)
    assert alone.alone


def test_a_new_incarnation_of_the_same_rank_ends_the_earlier_one(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    job.client(Role.ROLLOUT)
    with pytest.raises(Fenced):
        job.put(tickets)


def test_a_ticket_that_two_beats_do_not_list_comes_back(make_job: MakeJob) -> None:
    job = make_job()
    retained, lost = job.tickets(2)
    incarnation = job.incarnation(job.rollout)
    job.admin.beats([InWork(incarnation, [retained.id], [])])
    job.admin.beats([InWork(incarnation, [retained.id, lost.id], [])])
    job.admin.beats([InWork(incarnation, [retained.id], [])])
    assert job.put([lost]) == [True]
    job.admin.beats([InWork(incarnation, [], [])])
    job.admin.beats([InWork(incarnation, [], [])])
    assert job.put([retained]) == [False]


def test_a_rejected_group_is_drawn_again_under_the_same_reservation(make_job: MakeJob) -> None:
    job = make_job(attempts=2)
    first, second = job.tickets(2)
    drawn = job.rollout.redraw(first, "all rewards are equal")
    assert (drawn.rollout_id, drawn.group, drawn.attempt, drawn.prompt_index) == (0, 0, 1, 2)
    with pytest.raises(TicketLost):
        job.rollout.redraw(first, "again")
    with pytest.raises(AttemptsExhausted, match=r"rollout.maxAttempts: group 0 of train_0 was drawn 2 times.*equal"):
        job.rollout.redraw(drawn, "all rewards are equal")
    assert job.admin.stats().groups_issued == 2
    assert job.put([drawn, second]) == [True, True]


def test_a_refused_group_is_drawn_again_and_its_failed_draws_have_a_limit_of_their_own(make_job: MakeJob) -> None:
    job = make_job(attempts=2)
    first, second = job.tickets(2)
    drawn = first
    for refused in (1, 2, 3):
        before, drawn = drawn, job.rollout.refuse(drawn)
        assert (drawn.rollout_id, drawn.group, drawn.prompt_index) == (0, 0, 1 + refused)
        assert (drawn.attempt, drawn.refused) == (refused, refused)
        with pytest.raises(TicketLost):
            job.rollout.refuse(before)
    drawn = job.rollout.redraw(drawn, "the grader is away")
    assert (drawn.attempt, drawn.refused) == (4, 3)
    drawn = job.rollout.refuse(drawn)
    assert (drawn.attempt, drawn.refused) == (5, 4)
    with pytest.raises(AttemptsExhausted, match=r"rollout.maxAttempts: group 0 of train_0 was drawn 2 times.*away"):
        job.rollout.redraw(drawn, "the grader is away")
    assert job.admin.stats().groups_issued == 2
    assert job.put([drawn, second]) == [True, True]


def test_what_was_refused_stays_counted_when_its_replica_dies(make_job: MakeJob) -> None:
    job = make_job()
    first, _ = job.tickets(2)
    drawn = job.rollout.refuse(first)
    job.rollout = job.client(Role.ROLLOUT)
    again = job.tickets(1)[0]
    assert (again.group, again.attempt, again.refused, again.prompt_index) == (0, 1, 1, drawn.prompt_index)


_OF_BEFORE = """
local g = cmsgpack.unpack(redis.call('HGET', KEYS[1], '0'))
table.remove(g, 6)
return redis.call('HSET', KEYS[1], '0', cmsgpack.pack(g))
"""


def test_a_group_of_a_release_that_counted_no_refused_draws_begins_at_none(make_job: MakeJob) -> None:
    job = make_job()
    first, _ = job.tickets(2)
    with job.servers.control.admin() as control:
        control.eval(_OF_BEFORE, 1, "p:0:groups")
    drawn = job.rollout.refuse(first)
    assert (drawn.attempt, drawn.refused) == (1, 1)


def test_a_prompt_that_is_passed_over_is_no_attempt(make_job: MakeJob) -> None:
    job = make_job(attempts=1)
    first, second = job.tickets(2)
    passed = first
    for prompt in (2, 3, 4):
        drawn = job.rollout.pass_over(passed)
        assert (drawn.rollout_id, drawn.group, drawn.attempt, drawn.prompt_index) == (0, 0, 0, prompt)
        with pytest.raises(TicketLost):
            job.rollout.pass_over(passed)
        passed = drawn
    assert job.admin.stats().groups_issued == 2
    assert job.put([passed, second]) == [True, True]


def test_prompts_of_one_death_are_given_again_as_they_were(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=1)
    before = job.tickets(2)
    job.admin.suspect(job.incarnation(job.rollout))
    again = job.tickets(2)
    assert [(ticket.prompt_index, ticket.alone) for ticket in again] == [
        (ticket.prompt_index, False) for ticket in before
    ]
    assert job.put(again) == [True, True]


def test_prompts_that_two_deaths_have_in_common_are_worked_on_alone_until_they_succeed(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=1)
    for _ in range(2):
        assert not any(ticket.alone for ticket in job.tickets(2))
        job.admin.suspect(job.incarnation(job.rollout))
    (first,) = job.tickets(5)
    assert first.alone
    assert job.rollout.claim_tickets(weight(0), 5, 0) is Withheld.SUSPECT
    assert job.put([first]) == [True]
    (second,) = job.tickets(5)
    assert second.alone
    job.rollout.return_tickets([second], killed=False)
    job.put(job.tickets(1))
    assert not any(ticket.alone for ticket in job.tickets(5))


@pytest.mark.parametrize(("kills", "deaths"), [(1, 3), (3, 3), (5, 5)])
def test_a_prompt_that_kills_is_set_aside_and_survives_nothing(make_job: MakeJob, kills: int, deaths: int) -> None:
    job = make_job(batch=1, kills=kills)
    (ticket,) = job.tickets(1)
    for death in range(1, deaths):
        job.admin.suspect(job.incarnation(job.rollout))
        assert job.admin.set_aside() == []
        (ticket,) = job.tickets(1)
        assert (ticket.prompt_index, ticket.attempt, ticket.alone) == (0, 0, death >= 2)
    job.rollout.return_tickets([ticket], killed=True)
    (aside,) = job.admin.set_aside()
    assert job.admin.set_aside() == [aside]
    job.admin.forget_set_aside(1)
    assert job.admin.set_aside() == []
    assert (aside.prompt_index, aside.rollout_id, aside.group, aside.deaths, aside.exhausted) == (
        0,
        0,
        0,
        deaths,
        False,
    )
    (ticket,) = job.tickets(1)
    assert (ticket.prompt_index, ticket.attempt, ticket.alone) == (1, 1, False)


def test_a_prompt_that_was_set_aside_is_not_drawn_again_after_a_restore(make_job: MakeJob) -> None:
    job = make_job(batch=2, kills=1)
    job.tickets(1)
    for _ in range(3):
        job.admin.suspect(job.incarnation(job.rollout))
        job.tickets(1)
    assert len(job.admin.set_aside()) == 1
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    assert [ticket.prompt_index for ticket in job.tickets(4)] == [1, 2, 3, 4]


def test_a_poison_group_without_draws_left_is_named(make_job: MakeJob) -> None:
    job = make_job(batch=1, kills=1, attempts=1)
    for _ in range(3):
        job.tickets(1)
        job.admin.suspect(job.incarnation(job.rollout))
    (aside,) = job.admin.set_aside()
    assert aside.exhausted


def test_kill_counts_survive_a_global_restart(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    for epoch in (2, 3):
        assert not job.tickets(1)[0].alone
        job.admin.suspect(job.incarnation(job.rollout))
        job.raise_epoch(epoch)
        job.rollout = job.client(Role.ROLLOUT)
    (ticket,) = job.tickets(5, weight(0, lineage=3))
    assert (ticket.prompt_index, ticket.alone) == (0, True)


def test_memory_above_the_mark_stops_new_tickets_and_no_put(make_job: MakeJob) -> None:
    job = make_job()
    first, second = job.tickets(2)
    job.admin._calls.change("memory", 1, waiting="a test")
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.MEMORY
    assert job.put([first]) == [True]
    job.rollout.return_tickets([second], killed=False)
    assert places(job.tickets(5)) == places([second])
    job.admin.upkeep.probe()
    assert job.tickets(1)
