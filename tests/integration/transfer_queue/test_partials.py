"""What is saved of unfinished groups: who may save, who gets it, what forgets it, and which losses it outlives."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.identity import WeightId
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import Fenced
from rljob_workers.transfer_queue.types import GroupSoFar, Ticket
from tests.integration.transfer_queue.control_keys import Control
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.lossy import LossyLine
from tests.integration.transfer_queue.servers import Server
from tests.integration.transfer_queue.world import make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]


def so_far(
    ticket: Ticket, data: bytes = b"tokens", oldest: WeightId | None = None, newest: WeightId | None = None
) -> GroupSoFar:
    first = oldest or weight(0)
    return GroupSoFar(ticket, data, [first], [newest or first])


def save(job: Job, tickets: list[Ticket], made_by: WeightId | None = None, data: bytes = b"tokens") -> None:
    assert job.rollout.partials.save([so_far(ticket, data, made_by) for ticket in tickets]) == [True] * len(tickets)


def saved_prompts(job: Job) -> list[int]:
    with job.servers.control.admin() as admin:
        return sorted(Control(admin, job.shape).partials)


def found(client: TransferQueueClient, tickets: list[Ticket]) -> dict[int, bytes]:
    """By prompt."""
    read = client.partials.read(tickets)
    return {ticket.prompt_index: read[ticket.id] for ticket in tickets if ticket.id in read}


def claim(client: TransferQueueClient, limit: int, holds: WeightId | None = None) -> list[Ticket]:
    answer = client.claim_tickets(holds or weight(0), limit, 0)
    assert isinstance(answer, list), answer
    return answer


def end_rollout(job: Job, *, died: bool) -> None:
    incarnation = job.incarnation(job.rollout)
    if died:
        job.admin.suspect(incarnation)
    job.admin.end_incarnation(incarnation)
    job.rollout = job.client(Role.ROLLOUT)


def test_who_gets_the_tickets_next_gets_what_was_saved_last(make_job: MakeJob) -> None:
    job = make_job()
    first, second = job.tickets(2)
    save(job, [first, second], data=b"early")
    save(job, [first], data=b"late" * 100_000)
    job.rollout.return_tickets([first, second], killed=False)
    other = job.client(Role.ROLLOUT, replica=1)
    assert found(other, claim(other, 2)) == {first.prompt_index: b"late" * 100_000, second.prompt_index: b"early"}


def test_what_a_killed_rank_saved_outlives_it_also_where_its_prompts_are_worked_on_alone(make_job: MakeJob) -> None:
    job = make_job()
    save(job, job.tickets(2))
    for _ in range(2):
        end_rollout(job, died=True)
        assert len(found(job.rollout, again := job.tickets(2))) == len(again)
    end_rollout(job, died=False)
    job.prove()  # the sweep of what the dead rank left takes none of it
    (alone,) = job.tickets(2)
    assert alone.alone
    assert found(job.rollout, [alone]) == {alone.prompt_index: b"tokens"}


def test_a_prompt_that_was_alone_when_its_worker_died_starts_from_nothing(make_job: MakeJob) -> None:
    job = make_job(kills=4)
    (ticket,) = job.tickets(1)
    save(job, [ticket])
    end_rollout(job, died=True)
    job.tickets(1)
    end_rollout(job, died=True)
    (alone,) = job.tickets(1)
    save(job, [alone])
    job.rollout.return_tickets([alone], killed=True)
    assert saved_prompts(job) == []
    (again,) = job.tickets(1)
    assert (again.prompt_index, found(job.rollout, [again])) == (ticket.prompt_index, {})


def test_only_the_holder_of_a_ticket_saves(make_job: MakeJob) -> None:
    job = make_job()
    first, second = job.tickets(2)
    save(job, [first])
    job.admin.take_back(job.incarnation(job.rollout))
    assert job.rollout.partials.save([so_far(first, b"late"), so_far(second, b"late")]) == [False, False]
    other = job.client(Role.ROLLOUT, replica=1)
    mine = claim(other, 2)
    assert job.rollout.partials.read(mine) == {}
    assert found(other, mine) == {first.prompt_index: b"tokens"}
    stale = job.rollout
    job.admin.end_incarnation(job.incarnation(stale))
    with pytest.raises(Fenced):
        stale.partials.save([so_far(first, b"late")])
    assert found(other, mine) == {first.prompt_index: b"tokens"}


@pytest.mark.parametrize("over", ["put", "refused by its weights", "redrawn", "refused", "passed over"])
def test_a_partial_goes_when_its_prompt_is_generated_or_will_never_be(make_job: MakeJob, over: str) -> None:
    job = make_job()
    (ticket,) = job.tickets(1)
    save(job, [ticket])
    match over:
        case "put":
            assert job.put([ticket]) == [True]
        case "refused by its weights":
            assert job.put([ticket], weight(0, lineage=7)) == [False]
        case "redrawn":
            job.rollout.redraw(ticket, "a test")
        case "refused":
            job.rollout.refuse(ticket)
        case _:
            job.rollout.pass_over(ticket)
    assert saved_prompts(job) == []


def test_a_restore_retains_what_stands_and_drops_what_newer_weights_made(make_job: MakeJob) -> None:
    job = make_job(staleness=2, batch=1)
    job.step(0)
    job.record(1)
    job.step(1)
    old, mixed = claim(job.rollout, 2, weight(1))
    groups = [so_far(old, b"old", weight(1)), so_far(mixed, b"mixed", weight(1), weight(2))]
    assert job.rollout.partials.save(groups) == [True, True]
    job.restore = job.raise_epoch(2)
    assert job.restore.version == 1
    assert saved_prompts(job) == [old.prompt_index]
    job.rollout = job.client(Role.ROLLOUT)
    tickets = claim(job.rollout, 3, weight(1, 2))
    assert found(job.rollout, tickets) == {old.prompt_index: b"old"}


def test_tokens_that_are_too_old_for_the_tickets_rollout_are_not_given(make_job: MakeJob) -> None:
    job = make_job(staleness=0, batch=1)
    (ticket,) = job.tickets(1)
    save(job, [ticket])
    job.rollout.return_tickets([ticket], killed=False)
    version_below = struct.pack("<4i", 1, -1, 1, -1)
    with job.servers.control.admin() as admin:
        admin.eval(
            """
            local line = cmsgpack.unpack(redis.call('HGET', 'q:partials', ARGV[1]))[2]
            redis.call('HSET', 'q:partials', ARGV[1], cmsgpack.pack({ARGV[2], line}))
            """,
            0,
            str(ticket.prompt_index),
            version_below,
        )
    assert found(job.rollout, job.tickets(1)) == {}


def test_what_a_lost_unit_had_is_generated_again(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    save(job, tickets)
    with job.servers.control.admin() as admin:
        units = {prompt: chunk.unit for prompt, chunk in Control(admin, job.shape).partials.items()}
    lost = units[tickets[0].prompt_index]
    job.servers.empty_unit(lost)
    assert found(job.rollout, tickets) == {
        ticket.prompt_index: b"tokens" for ticket in tickets if units[ticket.prompt_index] != lost
    }
    assert job.admin.upkeep.probe() == [lost]
    job.admin.upkeep.declare_lost(lost)
    assert saved_prompts(job) == [prompt for prompt, unit in units.items() if unit != lost]
    save(job, tickets)
    assert len(found(job.rollout, tickets)) == 2


def test_a_single_lost_chunk_is_no_partial(make_job: MakeJob) -> None:
    job = make_job()
    first, second = job.tickets(2)
    save(job, [first, second])
    with job.servers.control.admin() as admin:
        chunk = Control(admin, job.shape).partials[first.prompt_index]
    with job.servers.units[chunk.unit].admin() as admin:
        admin.delete(chunk.key)
    assert found(job.rollout, [first, second]) == {second.prompt_index: b"tokens"}
    save(job, [first])
    assert found(job.rollout, [first]) == {first.prompt_index: b"tokens"}


def test_a_damaged_chunk_takes_none_from_the_others_of_its_unit(make_job: MakeJob) -> None:
    job = make_job(checksums=True)
    tickets = job.tickets(3)
    for ticket in tickets:
        save(job, [ticket])
    first, second, third = (ticket.prompt_index for ticket in tickets)
    with job.servers.control.admin() as admin:
        chunks = Control(admin, job.shape).partials
    assert chunks[first].unit == chunks[third].unit
    with job.servers.units[chunks[first].unit].admin() as admin:
        admin.setrange(chunks[first].key, chunks[first].num_bytes - 1, "?")
    assert found(job.rollout, tickets) == {second: b"tokens", third: b"tokens"}
    save(job, tickets[:1])
    assert set(found(job.rollout, tickets)) == {first, second, third}


@contextmanager
def swallowing(unit: Server) -> Iterator[Callable[[], int]]:
    """In the place of the unit something that takes connections and says nothing; gives how many it was asked for."""
    unit.kill()
    path = unit.url.partition("@")[2]
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        listener.setblocking(False)

        def taken() -> int:
            count = 0
            with suppress(BlockingIOError):
                while True:
                    listener.accept()[0].close()
                    count += 1
            return count

        try:
            yield taken
        finally:
            Path(path).unlink()
            unit.start()


def test_a_unit_that_is_away_is_asked_once_for_all_and_takes_none_from_the_others(make_job: MakeJob) -> None:
    """Else a rank that claims many groups is silent for longer than its beats may be."""
    job = make_job(batch=4, staleness=1)
    tickets = job.tickets(8)
    for ticket in tickets:
        save(job, [ticket])
    with job.servers.control.admin() as admin:
        units = {prompt: chunk.unit for prompt, chunk in Control(admin, job.shape).partials.items()}
    away = units[tickets[0].prompt_index]
    assert sum(unit == away for unit in units.values()) == 4
    with swallowing(job.servers.units[away]) as taken:
        assert set(found(job.rollout, tickets)) == {prompt for prompt, unit in units.items() if unit != away}
        assert taken() == 1
    assert job.admin.upkeep.probe() == [away]
    job.admin.upkeep.declare_lost(away)


def test_a_storage_that_is_away_costs_the_save_and_nothing_else(make_job: MakeJob) -> None:
    job = make_job()
    (ticket,) = job.tickets(1)
    for unit in job.servers.units:
        unit.kill()
    try:
        assert job.rollout.partials.save([so_far(ticket)]) == [False]
    finally:
        for unit in job.servers.units:
            unit.start()
    for lost in job.admin.upkeep.probe():
        job.admin.upkeep.declare_lost(lost)
    save(job, [ticket])


def test_the_check_names_a_partial_of_a_prompt_that_is_done_with(make_job: MakeJob) -> None:
    job = make_job()
    (ticket,) = job.tickets(1)
    save(job, [ticket])
    with job.servers.control.admin() as admin:
        admin.rename("q:partials", "spared")
        assert job.put([ticket]) == [True]
        admin.rename("spared", "q:partials")
        assert job.admin.check() == [f"prompt {ticket.prompt_index} has a partial and is not to be generated"]
        admin.delete("q:partials")
    with job.servers.units[0].admin() as first, job.servers.units[1].admin() as second:
        for unit in (first, second):
            unit.delete(*[key for key in unit.keys("*:*:*") if unit.strlen(key) == 56 + len(b"tokens")] or ["none"])


def test_the_epoch_of_a_lost_tail_begins_without_partials(make_job: MakeJob) -> None:
    job = make_job()
    before = job.servers.sync_control()
    (ticket,) = job.tickets(1)
    save(job, [ticket])
    job.servers.restart_control(before)
    job.admin.open_server(job.rollout.calls.seen_seq)
    job.admin.raise_epoch(Epoch(2), "d2", "the tail is lost", None)
    assert saved_prompts(job) == []


def test_a_job_that_saves_no_more_forgets_what_it_had_saved(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    save(job, tickets)
    job.reopen(replace(job.shape, has_partials=False), 2)
    assert saved_prompts(job) == []
    assert job.put(job.tickets(2, weight(0, 2)), weight(0, 2)) == [True, True]
    job.prove()


def stored(job: Job) -> int:
    """Chunks on all units, after a sweep."""
    job.admin.sweeper.sweep()
    return sum(len(unit.admin().keys("*:*:*")) for unit in job.servers.units)


def test_saves_without_an_answer_leave_one_copy_and_none_once_there_is_an_answer(make_job: MakeJob) -> None:
    job = make_job()
    tickets = job.tickets(2)
    save(job, tickets)
    job.servers.sync_control()
    job.servers.restart_control()  # and no coordinator opens it
    job.rollout.calls.timing = replace(job.timing, claim_patience_seconds=0.1)
    for _ in range(3):
        assert job.rollout.partials.save([so_far(ticket, b"more") for ticket in tickets]) == [False, False]
    assert job.admin.open_server(job.rollout.calls.seen_seq) is ServerState.OPEN
    assert stored(job) == 4
    assert found(job.rollout, tickets) == {ticket.prompt_index: b"tokens" for ticket in tickets}
    save(job, tickets, data=b"most")
    assert stored(job) == 2
    assert found(job.rollout, tickets) == {ticket.prompt_index: b"most" for ticket in tickets}


def test_what_a_save_without_an_answer_made_all_the_same_stands(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    incarnation = make_incarnation(Role.ROLLOUT, job.epoch, replica=1)
    job.admin.begin_incarnation(incarnation)
    with closing(LossyLine(job.servers.endpoints.control_redis, tmp_path / "line.sock")) as line:
        endpoints = job.servers.endpoints.model_copy(update={"control_redis": line.url})
        timing = replace(job.timing, claim_patience_seconds=1.0)
        with closing(TransferQueueClient(endpoints, job.shape, incarnation, timing=timing)) as queue:
            first, second, third = (claim(queue, 1)[0] for _ in range(3))
            line.losses = 1000
            assert queue.partials.save([so_far(first), so_far(second), so_far(third)]) == [False] * 3
            line.losses = 0
            assert saved_prompts(job) == [first.prompt_index, second.prompt_index, third.prompt_index]
            queue.return_tickets([first], killed=False)
            queue.redraw(third, "a test")
            assert queue.partials.save([so_far(second, b"more")]) == [True]
            assert stored(job) == 2
            assert found(queue, [second]) == {second.prompt_index: b"more"}
            (again,) = job.tickets(1)
            assert found(job.rollout, [again]) == {first.prompt_index: b"tokens"}
