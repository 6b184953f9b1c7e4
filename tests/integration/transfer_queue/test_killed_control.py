"""The control Redis is killed or hangs under clients that work: nothing is lost, and everybody goes on by himself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.names import Role
from rljob_api.wire.observation import ServerState
from rljob_workers.tensors.jagged import Jagged
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.errors import ControlUnreachable, Fenced, StorageUnreachable
from rljob_workers.transfer_queue.types import Batch, NotReady, QueueTiming, Withheld
from tests.integration.transfer_queue.job import Job
from tests.integration.transfer_queue.servers import Servers
from tests.integration.transfer_queue.victims import Receive, Send, victim
from tests.integration.transfer_queue.world import LOG_PROBS, REFERENCE, make_incarnation
from tests.weights import weight

MakeJob = Callable[..., Job]
LONG_SECONDS = 60.0
IMPATIENT = QueueTiming(patience_seconds=2.0, claim_patience_seconds=2.0, control_silence_seconds=2.0)


def contents(servers: Servers) -> dict[bytes, object]:
    """Every key with its whole value."""
    with servers.control.admin() as admin:
        readers: dict[bytes, Callable[[bytes], object]] = {
            b"string": admin.get,
            b"hash": admin.hgetall,
            b"set": admin.smembers,
            b"list": lambda key: admin.lrange(key, 0, -1),
            b"zset": lambda key: admin.zrange(key, 0, -1, withscores=True),
        }
        keys: Any = admin.keys("*")
        kinds: dict[bytes, Any] = {key: admin.type(key) for key in keys}
        return {key: readers[kind](key) for key, kind in kinds.items()}


def kill_and_open(job: Job) -> None:
    job.servers.sync_control()
    job.servers.restart_control()
    assert job.admin.open_server(max(client.calls.seen_seq for client in job.clients)) is ServerState.OPEN


def test_leases_tickets_and_ready_lists_are_there_after_a_kill(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=1)
    first, second, third = job.tickets(3)
    job.put([first])
    forward = job.client(Role.ACTOR_FWD)
    held = forward.claim(LOG_PROBS.name, range(1), 1, timeout=0)
    assert isinstance(held, Batch)
    before = contents(job.servers)
    job.servers.sync_control()
    job.servers.restart_control()
    assert contents(job.servers) == before
    job.admin.open_server(0)
    rest = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(rest, Batch)
    assert (held.rows.tolist(), rest.rows.tolist()) == ([0], [1])
    for batch in (held, rest):
        job.put_derived(forward, batch, "log_probs")
    assert job.put([second, third]) == [True, True]
    job.derive(0)
    job.train(0)


def test_a_process_that_waits_is_answered_after_the_kill(make_job: MakeJob) -> None:
    job = make_job(batch=2)
    incarnation = make_incarnation(Role.ACTOR_FWD, 1, replica=3)
    job.admin.begin_incarnation(incarnation)

    def wait(send: Send, _receive: Receive) -> None:
        queue = TransferQueueClient(job.servers.endpoints, job.shape, incarnation)
        send("waits")
        for _ in range(2):
            batch = queue.claim(LOG_PROBS.name, range(1), 100, timeout=LONG_SECONDS)
            while isinstance(batch, NotReady):  # its patience is shorter than a restart under load
                batch = queue.claim(LOG_PROBS.name, range(1), 100, timeout=LONG_SECONDS)
            assert isinstance(batch, Batch)
            job.put_derived(queue, batch, "log_probs")
            send(f"put {batch.rows.tolist()}")

    first, second = job.tickets(2)
    with victim(wait) as process:
        assert process.read_line() == "waits"
        kill_and_open(job)
        job.put([first])
        assert process.read_line() == "put [0, 1]"
        kill_and_open(job)
        job.put([second])
        assert process.read_line() == "put [2, 3]"


def test_every_kind_of_call_goes_on_after_a_kill(make_job: MakeJob) -> None:
    job = make_job(batch=2, staleness=1)
    forward = job.client(Role.REFERENCE)
    calls: list[Callable[[], object]] = [
        lambda: job.put(job.tickets(2)),
        lambda: job.put_derived(forward, claimed(forward, REFERENCE.name), "ref_log_probs"),
        lambda: forward.release(claimed(forward, REFERENCE.name)),
        lambda: job.rollout.return_tickets([job.rollout.redraw(job.tickets(1)[0], "a test")], killed=False),
        lambda: job.rollout.return_tickets([job.rollout.pass_over(job.tickets(1)[0])], killed=False),
        lambda: job.rollout.return_tickets([job.rollout.refuse(job.tickets(1)[0])], killed=False),
        lambda: job.derive(0),
        lambda: job.train(0),
        lambda: job.publish(1),
        lambda: job.record(1),
        lambda: job.admin.sweeper.sweep(),
    ]
    for call in calls:
        kill_and_open(job)
        call()
    assert job.admin.published() == 1


def claimed(client: TransferQueueClient, task: str) -> Batch:
    batch = client.claim(task, range(1), 2, timeout=0)
    assert isinstance(batch, Batch)
    return batch


def test_what_a_server_that_hung_does_later_is_done_once(make_job: MakeJob) -> None:
    """The commands of those who gave up stand in its sockets, and it runs them when it goes on."""
    job = make_job(batch=2, timing=IMPATIENT)
    (ticket,) = job.tickets(1)
    forward = job.client(Role.ACTOR_FWD)
    assert isinstance(forward.claim(LOG_PROBS.name, range(1), 1, timeout=0), NotReady)
    job.servers.control.stop()
    try:
        with pytest.raises(ControlUnreachable, match=r"has not answered for .*puts 1 groups of train_0"):
            job.put([ticket])
        answer = forward.claim(LOG_PROBS.name, range(1), 1, timeout=0)
        assert isinstance(answer, NotReady)
        assert "has not answered" in answer.waiting_for
    finally:
        job.servers.control.resume()
    assert job.put([ticket]) == [False]
    assert job.admin.stats().rows_ready["ref_log_probs"] == 2
    # What the claim that was given up took comes with the next one, long before its lease is over.
    batch = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(batch, Batch)
    assert batch.rows.tolist() == [2 * ticket.group, 2 * ticket.group + 1]
    job.put_derived(forward, batch, "log_probs")
    job.put(job.tickets(1))
    job.derive(0)
    job.train(0)
    assert job.rollout.claim_tickets(weight(0), 1, 0) is not Withheld.CLOSED


@pytest.mark.parametrize("given_up", [1, 3])
def test_rows_that_a_hung_server_gave_to_claims_that_were_given_up_come_with_the_next_one(
    make_job: MakeJob, given_up: int
) -> None:
    job = make_job(batch=2, timing=IMPATIENT)
    forward = job.client(Role.ACTOR_FWD)
    job.put(job.tickets(2))
    held = forward.claim(LOG_PROBS.name, range(1), 1, timeout=0)
    assert isinstance(held, Batch)
    job.servers.control.stop()
    try:
        for _ in range(given_up):
            assert isinstance(forward.claim(LOG_PROBS.name, range(1), 1, timeout=0), NotReady)
    finally:
        job.servers.control.resume()
    rest = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(rest, Batch)
    assert (held.rows.tolist(), rest.rows.tolist()) == ([0], [1, 2, 3])
    for batch in (held, rest):
        job.put_derived(forward, batch, "log_probs")


def test_a_claim_that_was_given_up_and_comes_after_a_later_one_takes_nothing(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the later one found nothing."""
    job = make_job(batch=2)
    forward = job.client(Role.ACTOR_FWD)
    control, sent = forward.calls._control, []

    def lose(name: str, *args: Any, **_: Any) -> list[Any]:
        sent.append((name, args))
        raise ControlUnreachable("a test")

    with monkeypatch.context() as patch:
        patch.setattr(control, "change", lose)
        assert isinstance(forward.claim(LOG_PROBS.name, range(1), 100, timeout=0), NotReady)
    ((name, args),) = sent
    late = TransferQueueClient(job.servers.endpoints, job.shape, job.incarnations[forward])
    assert isinstance(forward.claim(LOG_PROBS.name, range(1), 99, timeout=0), NotReady)
    job.put(job.tickets(2))
    with pytest.raises(Fenced, match=r"call 1 of \w+ comes after its call 2"):
        late.calls._control.change(name, *args, deadline=0.0, waiting="a test")
    late.close()
    assert len(claimed(forward, LOG_PROBS.name).rows) == 2


def test_rows_whose_bytes_did_not_come_and_that_could_not_be_given_back_come_with_the_next_claim(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(batch=2, timing=IMPATIENT)
    job.put(job.tickets(2))
    forward = job.client(Role.ACTOR_FWD)

    def lose_both(*_: Any, **__: Any) -> dict[str, Jagged]:
        job.servers.sync_control()
        job.servers.control.kill()
        raise StorageUnreachable("a test")

    with monkeypatch.context() as patch:
        patch.setattr(forward.calls.units, "fetch", lose_both)
        assert isinstance(forward.claim(LOG_PROBS.name, range(1), 100, timeout=0), NotReady)
    job.servers.control.start()
    job.admin.open_server(0)
    batch = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(batch, Batch)
    assert batch.rows.tolist() == [0, 1, 2, 3]


def test_a_claim_whose_unit_goes_with_the_control_redis_is_answered(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be on one machine. The rows cannot be given back then."""
    job = make_job(batch=2, timing=IMPATIENT)
    job.put(job.tickets(2))
    forward, servers = job.client(Role.ACTOR_FWD), (job.servers.control, *job.servers.units)
    fetch = forward.calls.units.fetch

    def lose_and_fetch(*args: Any, **kwargs: Any) -> dict[str, Jagged]:
        for server in servers:
            server.kill()
        return fetch(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(forward.calls.units, "fetch", lose_and_fetch)
        answer = forward.claim(LOG_PROBS.name, range(1), 100, timeout=0)
    assert isinstance(answer, NotReady)
    assert "storage unit" in answer.waiting_for
    for server in servers:
        server.start()
    job.admin.open_server(0)
    for index in job.admin.upkeep.probe():
        job.admin.upkeep.declare_lost(index)
    job.put(job.tickets(2))
    claimed(forward, LOG_PROBS.name)
