"""What the queue has of a curriculum: a row for each draw, once and durably, and what samples of each row earned."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.spec.rollout import GroupOrder
from rljob_api.wire.observation import ServerState
from rljob_workers.data.curriculum import Curriculum, CurriculumPrompts
from rljob_workers.data.prompts import Prompt
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.pass_rates import GroupScore, PassRates
from rljob_workers.transfer_queue.types import QueueShape, Ticket
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.world import make_incarnation, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]

ROWS = 6


def with_curriculum(**fields: int) -> QueueShape:
    return replace(make_shape(**fields), has_curriculum=True)


def put(queue: TransferQueueClient, job: Job, tickets: Sequence[Ticket], score: GroupScore) -> list[bool]:
    """As made by the newest weight; of each group whether it is there."""
    made_by = weight(job.admin.published(), job.epoch)
    places = queue.put_groups([replace(job.group(ticket, made_by), score=score) for ticket in tickets])
    return [place is not None for place in places]


def counted(queue: TransferQueueClient) -> dict[int, tuple[int, int, int, float]]:
    """Draws, samples, passed and total reward of each row that was drawn."""
    rates = queue.curriculum.pass_rates(ROWS)
    columns = (rates.draws, rates.samples, rates.passed, rates.total_reward)
    found = {row: tuple(column[row].item() for column in columns) for row in range(ROWS)}
    return {row: numbers for row, numbers in found.items() if numbers != (0, 0, 0, 0.0)}


def test_the_first_choice_stands_for_all_ranks_and_after_a_restart(make_job: MakeJob) -> None:
    job = make_job(with_curriculum())
    other = job.client(Role.ROLLOUT, replica=1)
    assert job.rollout.curriculum.chosen(range(4)) == [None] * 4
    assert job.rollout.curriculum.choose([0, 1, 2], [5, 5, 3]) == [5, 5, 3]
    assert other.curriculum.choose([2, 3], [0, 1]) == [3, 1]
    job.servers.sync_control()
    job.servers.restart_control()
    assert job.admin.open_server(job.rollout.calls.seen_seq) is ServerState.OPEN
    assert other.curriculum.chosen(range(5)) == [5, 5, 3, 1, None]
    job.raise_epoch(2)
    assert job.client(Role.ROLLOUT).curriculum.chosen(range(1, 4)) == [5, 3, 1]
    assert job.admin.chosen_row(2) == 3
    assert job.admin.chosen_row(9) is None


def test_a_choice_of_thousands_is_found_again(make_job: MakeJob) -> None:
    job = make_job(with_curriculum())
    rows = [draw * 7 % 5003 for draw in range(2500)]
    job.rollout.curriculum.choose(range(2500), rows)
    assert job.rollout.curriculum.chosen(range(2501)) == [*rows, None]


def test_every_end_of_a_draw_is_counted_for_its_row(make_job: MakeJob) -> None:
    job = make_job(with_curriculum(batch=2, kills=1))
    job.rollout.curriculum.choose(range(8), [4, 1, 4, 2, 3, 0, 5, 5])
    first, second = job.tickets(2)
    drawn = job.rollout.refuse(first, GroupScore(2, 2, 2.5))
    assert put(job.rollout, job, [drawn, second], GroupScore(2, 1, 0.25)) == [True, True]
    assert counted(job.rollout) == {4: (2, 4, 3, 2.75), 1: (1, 2, 1, 0.25)}
    third, fourth = job.tickets(2)
    job.rollout.pass_over(third)
    job.rollout.redraw(fourth, "its grader is away")
    assert counted(job.rollout) == {4: (2, 4, 3, 2.75), 1: (1, 2, 1, 0.25), 2: (1, 0, 0, 0.0), 3: (1, 0, 0, 0.0)}


def test_a_prompt_that_is_set_aside_is_a_draw_without_samples(make_job: MakeJob) -> None:
    job = make_job(with_curriculum(batch=1, kills=1))
    job.rollout.curriculum.choose(range(2), [4, 1])
    job.tickets(1)
    for _ in range(3):  # twice among others, and then alone
        job.admin.suspect(job.incarnation(job.rollout))
        job.rollout = job.client(Role.ROLLOUT)
        job.tickets(1)
    assert counted(job.rollout) == {4: (1, 0, 0, 0.0)}


def test_a_put_whose_answer_is_lost_counts_once(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(with_curriculum())
    job.rollout.curriculum.choose(range(2), [2, 2])
    incarnation = make_incarnation(Role.ROLLOUT, job.epoch, replica=1)
    job.admin.begin_incarnation(incarnation)
    with closing(LossyLine(job.servers.endpoints.control_redis, tmp_path / "line.sock")) as line:
        endpoints = job.servers.endpoints.model_copy(update={"control_redis": line.url})
        with closing(TransferQueueClient(endpoints, job.shape, incarnation)) as queue:
            tickets = queue.claim_tickets(weight(0), 2, 0)
            assert isinstance(tickets, list)
            line.losses = 1
            assert put(queue, job, tickets, GroupScore(2, 1, 1.0)) == [True, True]
            assert line.losses == 0
            assert counted(queue) == {2: (2, 4, 2, 2.0)}


def test_what_was_put_in_vain_is_not_counted_and_what_a_restore_voids_stays(make_job: MakeJob) -> None:
    job = make_job(with_curriculum(batch=2))
    job.rollout.curriculum.choose(range(2), [2, 3])
    tickets = job.tickets(2)
    job.admin.take_back(job.incarnation(job.rollout))
    assert put(job.rollout, job, tickets, GroupScore(2, 2, 2.0)) == [False, False]
    assert counted(job.rollout) == {}
    job.tickets(2)
    job.raise_epoch(2)
    job.rollout = job.client(Role.ROLLOUT)
    again = job.tickets(2, weight(0, 2))
    assert job.rollout.curriculum.chosen(range(again[0].prompt_index, 2)) == [2, 3]
    assert put(job.rollout, job, again, GroupScore(2, 0, 0.0)) == [True, True]
    wiped = {chunk for unit in job.servers.units for chunk in unit.admin().keys("*")}
    assert wiped
    for unit in job.servers.units:
        unit.admin().flushall()
    job.admin.raise_epoch(Epoch(3), "d3", "its bytes are lost", None)
    job.epoch = 3
    job.rollout = job.client(Role.ROLLOUT)
    assert counted(job.rollout) == {2: (1, 2, 0, 0.0), 3: (1, 2, 0, 0.0)}


def test_a_server_that_lost_everything_goes_on_with_what_the_checkpoint_states(make_job: MakeJob) -> None:
    job = make_job(with_curriculum(batch=2, staleness=0))
    job.rollout.curriculum.choose(range(6), [5, 4, 3, 2, 1, 0])
    assert put(job.rollout, job, job.tickets(2), GroupScore(2, 1, 0.1)) == [True, True]
    job.derive(0)
    job.train(0)
    job.publish(1)
    table = job.rollout.ticket_table()
    assert json.loads(table)["curriculum"] == {
        "chosen": [[0, 5], [1, 4], [2, 3], [3, 2], [4, 1], [5, 0]],
        "rates": [[4, 1, 2, 1, 0.1], [5, 1, 2, 1, 0.1]],
    }
    record = job.admin.record(job.incarnations[job.actor], weight(1), "1-e1", {}, "r")
    assert job.rollout.curriculum.chosen(range(6)) == [None, None, 3, 2, 1, 0]  # draws that are recorded never return
    job.rollout.curriculum.choose([6], [5])
    put(job.rollout, job, job.tickets(1, weight(1)), GroupScore(2, 2, 9.0))
    job.servers.wipe()
    job.admin.close()
    job.admin = QueueAdmin(job.servers.endpoints, job.shape, timing=job.admin_timing)
    assert job.admin.open_server(job.rollout.calls.seen_seq) is ServerState.LOST
    job.admin.raise_epoch(Epoch(2), "d2", "wiped", record, tickets=table)
    job.admin.open_server(0)
    job.epoch = 2
    job.rollout = job.client(Role.ROLLOUT)
    assert job.rollout.curriculum.chosen(range(7)) == [5, 4, 3, 2, 1, 0, None]
    assert counted(job.rollout) == {5: (1, 2, 1, 0.1), 4: (1, 2, 1, 0.1)}
    assert [ticket.prompt_index for ticket in job.tickets(2, weight(1))] == [2, 3]


@pytest.mark.long
def test_the_rates_of_a_million_rows_are_restored(make_job: MakeJob) -> None:
    job = make_job(with_curriculum(batch=2, staleness=0))
    job.step(0)
    packed = b"".join(struct.pack("<IIIId", 1 + row % 7, 16, row % 16, 0, row / 3) for row in range(1_000_000))
    with job.servers.control.admin() as control:
        control.set("q:rates", packed)
    table = job.rollout.ticket_table()
    record = job.admin.record(job.incarnations[job.actor], weight(1), "1-e1", {}, "r")
    job.servers.wipe()
    job.admin.close()
    job.admin = QueueAdmin(job.servers.endpoints, job.shape, timing=job.admin_timing)
    assert job.admin.open_server(job.rollout.calls.seen_seq) is ServerState.LOST
    job.admin.raise_epoch(Epoch(2), "d2", "wiped", record, tickets=table)
    with job.servers.control.admin() as control:
        assert control.get("q:rates") == packed


@pytest.mark.parametrize("curriculum", [3, {}, {"chosen": [], "rates": 1}, {"chosen": [], "rates": [[1, 2]]}])
def test_a_table_whose_curriculum_is_none_is_refused(make_job: MakeJob, curriculum: object) -> None:
    job = make_job(with_curriculum(batch=2, staleness=0))
    job.step(0)
    table = json.loads(job.rollout.ticket_table()) | {"curriculum": curriculum}
    record = job.admin.record(job.incarnations[job.actor], weight(1), "1-e1", {}, "r")
    with pytest.raises(Exception, match=r"the ticket table of the checkpoint is none: epoch 2 cannot be restored"):
        job.admin.raise_epoch(Epoch(2), "d2", "a test", record, tickets=json.dumps(table).encode())
    job.put(job.tickets(1, weight(1)), weight(1))


def test_a_job_without_a_curriculum_keeps_nothing_of_one(make_job: MakeJob) -> None:
    job = make_job()
    job.rollout.refuse(job.tickets(1)[0], GroupScore(2, 1, 1.0))
    job.put(job.tickets(1))
    assert "curriculum" not in json.loads(job.rollout.ticket_table())
    with job.servers.control.admin() as control:
        assert control.exists("q:chosen", "q:rates") == 0


def test_a_group_that_takes_another_place_counts_for_its_own_row(make_job: MakeJob) -> None:
    job = make_job(replace(with_curriculum(batch=1, staleness=1), order=GroupOrder.SWAP))
    job.rollout.curriculum.choose(range(2), [3, 5])
    first, second = job.tickets(2)
    assert job.rollout.put_groups([replace(job.group(second), score=GroupScore(2, 2, 2.0))]) == [(0, 0)]
    assert put(job.rollout, job, [first], GroupScore(2, 0, 0.5)) == [True]
    assert counted(job.rollout) == {3: (1, 2, 0, 0.5), 5: (1, 2, 2, 2.0)}


class Numbers:
    """Rows of data that are their own numbers."""

    def __len__(self) -> int:
        return ROWS

    def of_row(self, row: int, index: int, /) -> Prompt:
        return Prompt(index, str(row), (0,), None)


def test_a_draw_that_is_over_is_not_chosen_for_again_with_one_of_its_window_that_is_not(make_job: MakeJob) -> None:
    job = make_job(replace(with_curriculum(batch=2, staleness=1), order=GroupOrder.SWAP))
    asked: list[list[int]] = []

    def choose(_: PassRates, draws: Sequence[int]) -> list[int]:
        asked.append(list(draws))
        return [draw % ROWS for draw in draws]

    def rank() -> CurriculumPrompts:
        return CurriculumPrompts(Numbers(), job.rollout.curriculum, Curriculum("own:choose", choose), 2)  # type: ignore[arg-type]

    tickets, prompts = job.tickets(4), rank()
    for ticket in tickets:
        prompts.at(ticket.prompt_index)
    slow, *others = tickets
    assert job.put(others[:2]) == [True, True]  # one of them in the place of the slow one
    job.derive(0)
    job.train(0)
    job.publish(1)
    job.record(1)
    job.rollout.return_tickets([slow], killed=False)
    [again] = job.tickets(1)
    assert (again.prompt_index, again.rollout_id) == (0, 1)
    assert rank().at(0).text == "0"
    assert asked == [[0, 1], [2, 3]]
