"""What people ask the coordinator about the queue, over HTTP as they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.wire.epochs import EpochRequest
from rljob_api.wire.identity import WeightId
from rljob_api.wire.observation import EventKind
from rljob_api.wire.queue import DrainRequest, DrainState, QueueCheck, QueuePeek, QueueStats, Tickets
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.server_gate import ON_ONE_MACHINE
from rljob_workers.dcs.membership.session import RankSession
from rljob_workers.pipeline import queue_shape
from rljob_workers.transfer_queue.admin import QueueAdminTiming
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.types import Batch, GroupRows, NotReady, Ticket, Withheld
from tests.clock import Clock
from tests.integration.dcs.made_up_rows import made_up_columns
from tests.integration.dcs.world import World, context_here, eventually, job
from tests.integration.transfer_queue.servers import Server, Servers

HELD = WeightId(lineage=Lineage(1), version=WeightVersion(0))


class Rollout:
    """A registered rollout rank with its queue."""

    def __init__(self, world: World) -> None:
        self.session: RankSession = world.rank(Role.ROLLOUT)
        shape = queue_shape(world.job.spec)
        self.queue = TransferQueueClient(world.endpoints, shape, self.session.incarnation)
        self._num_rows = shape.samples_per_prompt

    def tickets(self, limit: int) -> list[Ticket]:
        answer = self.queue.claim_tickets(HELD, limit, 0)
        assert isinstance(answer, list), answer
        return answer

    def put(self, tickets: list[Ticket]) -> None:
        columns = made_up_columns(self._num_rows)
        weights = [HELD] * self._num_rows
        assert all(self.queue.put_groups([GroupRows(ticket, columns, weights, weights) for ticket in tickets]))


@pytest.fixture
def rollout(world: World) -> Iterator[Rollout]:
    world.begin()
    rollout = Rollout(world)
    yield rollout
    rollout.queue.close()


def stats(world: World) -> QueueStats:
    return QueueStats.model_validate_json(world.call("GET", "/v1/queue"))


def with_figures(world: World) -> QueueStats:
    """Counts in which every unit has answered: one that is slow once is without figures until the next look."""

    def look() -> QueueStats | None:
        found = stats(world)
        return found if all(unit.answers for unit in found.units) else None

    answer: QueueStats = eventually(look, "the units' figures")
    return answer


def drain(world: World, tickets: Tickets) -> DrainState:
    return DrainState.model_validate_json(world.call("PUT", "/v1/queue/drain", DrainRequest(tickets=tickets)))


def get(world: World, path: str) -> httpx.Response:
    return httpx.get(world.endpoints.coordinator + path, headers={"X-RLJob-Token": world.endpoints.token}, timeout=60)


def test_without_the_token_nothing_of_the_queue_is_reported(world: World) -> None:
    for path in ("/v1/queue", "/v1/queue/rows", "/v1/queue/check", "/v1/queue/drain"):
        assert httpx.get(world.endpoints.coordinator + path, timeout=60).status_code == 401
    drain = world.endpoints.coordinator + "/v1/queue/drain"
    assert httpx.put(drain, json={"tickets": "Give"}, timeout=60).status_code == 401


def test_the_counts_come_with_their_holders_and_units(world: World, rollout: Rollout) -> None:
    rollout.put(rollout.tickets(2)[:1])
    found = with_figures(world)
    assert (found.job, found.epoch, found.tickets_in_work) == ("test", 1, 1)
    assert [(one.holder, one.tickets) for one in found.holders] == [("rollout-0.0", 1)]
    assert {task.task: task.rows_ready for task in found.tasks} == {
        "actor_log_probs": 2,
        "compute_advantages_and_returns": 2,
        "actor_train": 0,
    }
    assert all(unit.used_bytes and unit.limit_bytes and unit.high_water_bytes for unit in found.units)


def scraped_with_figures(world: World) -> str | None:
    text = world.call("GET", "/metrics").decode()
    answering = [f'rljob_queue_unit_answers{{job="test",unit="{unit}"}} 1.0' for unit in (0, 1)]
    return text if all(line in text for line in answering) else None


def test_metrics_show_the_queue_without_a_series_per_partition(world: World, rollout: Rollout) -> None:
    rollout.put(rollout.tickets(1))
    text = eventually(lambda: scraped_with_figures(world), "the units' figures in a scrape")
    assert 'rljob_queue_rows{job="test",task="actor_log_probs",state="ready"} 2.0' in text
    assert 'rljob_queue_withheld{job="test",reason="Draining"} 0.0' in text
    assert "rljob_queue_unit_keys" in text
    assert "# TYPE rljob_queue_unit_received_bytes_total counter" in text
    assert 'rljob_queue_unit_lost_chunks_total{job="test",unit="1"} 0.0' in text
    assert 'rljob_queue_dropped_rows_total{job="test",kind="unclaimed"} 0.0' in text
    assert "train_0" not in text


def test_rows_are_shown_with_their_values_and_claimed_by_no_one(world: World, rollout: Rollout) -> None:
    rollout.put(rollout.tickets(1))
    page = QueuePeek.model_validate_json(
        world.call("GET", "/v1/queue/rows?task=actor_log_probs&field=tokens&limit=1&values=2")
    )
    assert page.more
    assert [(row.partition, row.row) for row in page.rows] == [("train_0", 0)]
    assert page.rows[0].field is not None
    assert page.rows[0].field.values == [0, 1]
    assert stats(world).leases == []


REFUSED = [
    ("task=training", 400, "task: 'training' is no task of this job. Name one of actor_log_probs, "),
    ("field=token", 400, "field: 'token' is no field of this job. Name one of tokens, "),
    ("state=ready", 400, "state: ready is a state for one task. Name the task, too."),
    ("state=gone&task=actor_train", 400, "query.state: Input should be 'unready', "),
    ("limit=65", 400, "query.limit: Input should be less than or equal to 64"),
    ("partition=9", 404, "partition: train_9 is not in the queue. It has train_0."),
]


def test_a_look_at_what_is_not_there_is_refused(world: World, rollout: Rollout) -> None:
    rollout.tickets(1)
    for query, status, sentence in REFUSED:
        answer = get(world, f"/v1/queue/rows?{query}")
        assert answer.status_code == status
        assert answer.json()["message"].startswith(sentence)


def test_the_proof_names_what_is_broken(world: World, rollout: Rollout) -> None:
    rollout.put(rollout.tickets(1))
    sound = QueueCheck.model_validate_json(world.call("GET", "/v1/queue/check"))
    assert (sound.partitions, sound.broken) == (1, [])
    with world.servers.control.admin() as admin:
        admin.setrange("p:0:s:actor_log_probs", 0, "d")
    broken = QueueCheck.model_validate_json(world.call("GET", "/v1/queue/check")).broken
    assert "train_0 actor_log_probs: 1 rows are done, the count disagrees" in broken


def test_a_drain_is_reported_once_and_outlives_the_coordinator_and_the_epoch(world: World, rollout: Rollout) -> None:
    tickets = rollout.tickets(1)
    state = drain(world, Tickets.WITHHOLD)
    assert state.waits == ["1 tickets are in work (rollout-0.0 1)"]
    assert drain(world, Tickets.WITHHOLD).draining_since == state.draining_since
    assert rollout.queue.claim_tickets(HELD, 1, 0) is Withheld.DRAINING
    world.restart()
    rollout.queue.return_tickets(tickets, killed=False)
    world.raise_epoch(2)
    assert world.status().queue.draining_since == state.draining_since
    again = DrainState.model_validate_json(world.call("GET", "/v1/queue/drain"))
    assert (again.draining_since, again.waits) == (state.draining_since, [])
    assert drain(world, Tickets.GIVE).draining_since is None
    assert drain(world, Tickets.GIVE).draining_since is None
    assert [
        event.kind for event in world.events() if event.kind in (EventKind.QUEUE_DRAINS, EventKind.TICKETS_GIVEN)
    ] == [
        EventKind.QUEUE_DRAINS,
        EventKind.TICKETS_GIVEN,
    ]
    assert state.draining_since is not None


def test_the_end_of_a_drain_counts_as_an_advance_by_no_clock_of_the_control_redis(
    shared_servers: Servers, tmp_path: Path
) -> None:
    shared_servers.wipe()
    clock = Clock()
    context = context_here(shared_servers.endpoints, job(), clock, QueueAdminTiming())
    try:
        coordinator = Coordinator(context, tmp_path, ON_ONE_MACHINE)
        coordinator.gate.check()
        coordinator.raise_epoch(EpochRequest(epoch=Epoch(1), decision_id="d1", reason="a test"))
        ages = []
        for tickets in (Tickets.WITHHOLD, Tickets.GIVE, Tickets.GIVE):
            clock.sleep(100)
            coordinator.queue.drain(DrainRequest(tickets=tickets))
            ages.append(coordinator.status().progress_age_seconds)
        assert ages == [100, 0, 100], "once, when tickets are given again"
        assert coordinator.status().queue.drained_until is None
    finally:
        context.admin.close()


def test_a_lease_is_as_old_as_its_claim_also_for_a_coordinator_that_has_only_begun(
    world: World, rollout: Rollout
) -> None:
    rollout.put(rollout.tickets(1))
    forward = world.rank(Role.ACTOR_FWD)
    queue = TransferQueueClient(world.endpoints, queue_shape(world.job.spec), forward.incarnation)
    try:
        assert isinstance(queue.claim("actor_log_probs", range(1), 2, timeout=0), Batch)
        before = eventually(lambda: stats(world).leases[0].age_seconds, "a lease that has an age")
        world.restart()
        (lease,) = stats(world).leases
        assert lease.holder == "actor_fwd-0.0"
        assert lease.age_seconds > before
    finally:
        queue.close()


def test_a_unit_that_loses_a_chunk_is_named_and_counted(world: World, rollout: Rollout) -> None:
    rollout.put(rollout.tickets(1))
    (index,) = (index for index, unit in enumerate(world.servers.units) if delete_chunks(unit))
    forward = world.rank(Role.ACTOR_FWD)
    queue = TransferQueueClient(world.endpoints, queue_shape(world.job.spec), forward.incarnation)
    try:
        answer = queue.claim("actor_log_probs", range(1), 2, timeout=0)
        assert isinstance(answer, NotReady)
        (event,) = eventually(lambda: world.reported(EventKind.ROWS_LOST), "RowsLost")
        assert event.message.startswith(f"Storage unit {index} no longer has chunks (")
        assert "of train_0, though it was not restarted" in event.message
        assert event.message.endswith("says that they were damaged, check the memory of that server.")
        assert "1 generated again" in event.message
        assert [unit.lost_chunks > 0 for unit in stats(world).units] == [index == 0, index == 1]
        rollout.put(rollout.tickets(1))
        assert isinstance(queue.claim("actor_log_probs", range(1), 2, timeout=5), Batch)
    finally:
        queue.close()


def delete_chunks(unit: Server) -> int:
    """By hand; gives how many there were."""
    with unit.admin() as admin:
        return sum(admin.unlink(key) for key in admin.keys("1:*"))
