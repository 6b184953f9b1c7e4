from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from rljob_api.names import Epoch, Role
from rljob_api.wire.observation import ServerState
from rljob_workers.transfer_queue.admin import QueueAdmin
from rljob_workers.transfer_queue.errors import ControlUnreachable, Fenced, Mismatch, NotOpen, Replaced
from rljob_workers.transfer_queue.types import Batch, NotReady, QueueTiming, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.world import LOG_PROBS, make_shape
from tests.weights import weight

MakeJob = Callable[..., Job]


IMPATIENT = QueueTiming(patience_seconds=3.0, claim_patience_seconds=0.1)
"""A put must have stored its bytes by then, also on a busy machine. A first answer is waited for longer."""


def test_a_restarted_server_is_refused_until_it_is_opened(make_job: MakeJob) -> None:
    job = make_job(timing=IMPATIENT)
    tickets = job.tickets(1)
    before = job.admin.server_run_id()
    job.servers.sync_control()
    job.servers.restart_control()
    assert job.admin.server_run_id() != before
    with pytest.raises(NotOpen, match=r"the coordinator has not opened it .*rollout-0.0 puts 1 groups of train_0"):
        job.put(tickets)
    assert job.rollout.claim_tickets(weight(0), 1, 0) is Withheld.CLOSED
    assert job.admin.open_server(job.rollout.calls.seen_seq) is ServerState.OPEN
    assert job.put(tickets) == [True]


def test_a_server_that_is_gone_is_named_with_who_waited(make_job: MakeJob) -> None:
    job = make_job(timing=IMPATIENT)
    tickets = job.tickets(1)
    forward = job.client(Role.ACTOR_FWD)
    job.servers.sync_control()
    job.servers.control.kill()
    try:
        with pytest.raises(
            ControlUnreachable, match=r"control.sock\) has not answered for .* puts 1 groups of train_0"
        ):
            job.put(tickets)
        answer = forward.claim(LOG_PROBS.name, range(1), 1, timeout=0)
        assert isinstance(answer, NotReady)
        assert "has not answered" in answer.waiting_for
    finally:
        job.servers.control.start()
        job.admin.open_server(0)


def test_a_call_waits_through_restart_and_opening(make_job: MakeJob) -> None:
    job = make_job()
    tickets, verdicts = job.tickets(1), []
    job.servers.sync_control()
    job.servers.control.kill()
    thread = threading.Thread(target=lambda: verdicts.extend(job.put(tickets)))
    thread.start()
    job.servers.control.start()
    job.admin.open_server(0)
    thread.join()
    assert verdicts == [True]


def test_a_lost_tail_is_noticed_and_stays_noticed_until_a_restore(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    mark = job.servers.sync_control()
    job.put(job.tickets(1))
    seen = job.rollout.calls.seen_seq
    job.servers.restart_control(mark)
    assert job.admin.open_server(seen) is ServerState.LOST
    replace_admin(job).close()
    assert job.admin.open_server(0) is ServerState.LOST
    point = job.admin.raise_epoch(Epoch(2), "d2", "the tail is lost", None)
    assert (point.version, point.kept_groups) == (0, 0)
    # Launchers outlive the restore and still say what they saw before it.
    assert job.admin.open_server(seen) is ServerState.OPEN
    assert job.admin.sweeper.sweep().orphans > 0


def test_with_a_lost_tail_only_rows_whose_bytes_exist_are_retained(make_job: MakeJob) -> None:
    job = make_job(batch=1, staleness=1)
    job.put(job.tickets(2))
    mark = job.servers.sync_control()
    chunks = {chunk for unit in job.servers.units for chunk in unit.admin().keys("1:*")}
    job.derive(0)
    seen = max(client.calls.seen_seq for client in job.clients)
    gone = min(chunks)
    for unit in job.servers.units:
        with unit.admin() as admin:
            admin.delete(gone)
    job.servers.restart_control(mark)
    assert job.admin.open_server(seen) is ServerState.LOST
    point = job.raise_epoch(2)
    assert (point.kept_groups, point.dropped_groups) in {(0, 2), (1, 1)}


def test_an_empty_server_takes_over_record_and_ticket_table(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=0)
    job.step(0)
    job.tickets(1, weight(1))
    table = job.rollout.ticket_table()
    record = job.admin.record(job.incarnations[job.actor], weight(1), "1-e1", {}, "r")
    job.servers.wipe()
    replace_admin(job).close()
    admin = job.admin
    assert admin.open_server(job.rollout.calls.seen_seq) is ServerState.LOST
    point = admin.raise_epoch(Epoch(2), "d2", "wiped", record, tickets=table)
    assert (point.version, point.folder, admin.published()) == (1, "1-e1", 1)
    job.admin.open_server(0)
    job.epoch = 2
    job.rollout = job.client(Role.ROLLOUT)
    tickets = job.tickets(5, weight(1))
    assert [(ticket.rollout_id, ticket.prompt_index) for ticket in tickets] == [(1, 2), (1, 3)]


def test_garbage_goes_with_the_rows_that_a_lost_tail_takes(make_job: MakeJob) -> None:
    job = make_job(batch=1)
    job.step(0)
    job.record(1)
    mark = job.servers.sync_control()
    job.step(1)
    table = job.rollout.ticket_table()
    record = job.admin.record(job.incarnations[job.actor], weight(2), "2-e1", {}, "r")
    seen = max(client.calls.seen_seq for client in job.clients)
    job.servers.restart_control(mark)
    assert job.admin.open_server(seen) is ServerState.LOST
    point = job.admin.raise_epoch(Epoch(2), "d2", "the tail is lost", record, tickets=table)
    assert (point.version, point.kept_groups) == (2, 0)
    assert job.admin.sweeper.sweep().orphans > 0
    with job.servers.control.admin() as admin:
        assert admin.keys("p:*") == []


def test_leases_count_again_when_the_server_is_opened(make_job: MakeJob) -> None:
    job = make_job(timing=QueueTiming(lease_seconds=0.0))
    job.put(job.tickets(2))
    forward = job.client(Role.ACTOR_FWD)
    batch = forward.claim(LOG_PROBS.name, range(1), 4, timeout=0)
    assert isinstance(batch, Batch)
    job.admin.open_server(0)
    assert isinstance(forward.claim(LOG_PROBS.name, range(1), 4, timeout=0), NotReady)
    job.put_derived(forward, batch, "log_probs")


def test_a_later_admin_fences_an_earlier_one(make_job: MakeJob) -> None:
    job = make_job()
    earlier = replace_admin(job)
    job.admin.open_server(0)
    with pytest.raises(Replaced, match="another coordinator has taken over"):
        earlier.end_incarnation("0" * 12)
    job.servers.sync_control()
    job.servers.restart_control()
    with pytest.raises(Replaced, match="another coordinator has taken over"):
        earlier.open_server(0)
    job.admin.open_server(0)
    earlier.close()


def test_a_change_that_comes_after_its_admin_has_opened_again_is_refused(make_job: MakeJob) -> None:
    job = make_job()
    name, calls = job.admin._calls._name, job.admin._calls._call
    job.admin.open_server(0)
    with pytest.raises(Fenced, match=f"call {calls} of {name} comes after its call {calls + 1}"):
        job.admin._control.change(
            "end_life",
            name,
            calls,
            job.incarnations[job.actor].id,
            deadline=time.monotonic() + 120,
            waiting="a test",
        )
    job.put(job.tickets(1))
    job.derive(0)


def test_jobs_of_another_shape_have_functions_of_their_own(servers: Servers) -> None:
    first = Job(servers, make_shape(batch=2))
    servers.wipe()
    second = Job(servers, make_shape(batch=3))
    assert second.admin.stats().groups_capacity == 6
    first.close()
    second.close()


def replace_admin(job: Job) -> QueueAdmin:
    """Another coordinator of the same job; gives the earlier one's."""
    earlier, job.admin = job.admin, QueueAdmin(job.servers.endpoints, job.shape, timing=job.admin_timing)
    return earlier


@pytest.mark.parametrize(
    ("tickets", "wrong"),
    [(b'{"cursor": 3, "fro', "is no JSON"), (b"null", "is none"), (b'{"cursor": 3}', "is none"), (None, "is missing")],
)
def test_a_ticket_table_that_is_damaged_is_refused_before_anything_goes(
    make_job: MakeJob, tickets: bytes | None, wrong: str
) -> None:
    job = make_job(batch=2)
    job.step(0)
    record = job.admin.record(job.incarnations[job.actor], weight(1), "1-e1", {}, "r")
    job.put(job.tickets(1))
    before = job.admin.stats()
    with pytest.raises(Mismatch, match=f"the ticket table of the checkpoint {wrong}: epoch 2 cannot be restored"):
        job.admin.raise_epoch(Epoch(2), "d2", "a test", record, tickets=tickets)
    assert job.admin.stats() == before
    job.put(job.tickets(1))


def test_a_server_with_too_many_clients_is_waited_for(make_job: MakeJob) -> None:
    job = make_job(timing=IMPATIENT)
    late = job.client(Role.ACTOR_FWD)
    with job.servers.control.admin() as admin:
        admin.config_set("maxclients", 1)  # who is connected stays
        try:
            answer = late.claim(LOG_PROBS.name, range(1), 4, timeout=0)
            assert isinstance(answer, NotReady)
            assert "max number of clients reached" in answer.waiting_for
        finally:
            admin.config_set("maxclients", 10_000)
    assert isinstance(late.claim(LOG_PROBS.name, range(1), 4, timeout=0), NotReady)
