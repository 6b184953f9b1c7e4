"""The coordinator's care of storage, turn by turn: what it makes room for, what it reports, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rljob_api.names import Epoch, Lineage, Role, WeightVersion
from rljob_api.wire.epochs import EpochRequest
from rljob_api.wire.identity import Incarnation, RankKey, WeightId
from rljob_api.wire.observation import CoordinatorEvent, EventKind, RoomMade, ServerState
from rljob_workers.dcs.coordinator.background_care import EMIT_SECONDS, SHORTAGE_SECONDS
from rljob_workers.dcs.coordinator.coordinator import Coordinator
from rljob_workers.dcs.coordinator.queue_room import STATS_SECONDS, STATS_SHARE
from rljob_workers.dcs.coordinator.server_gate import ON_ONE_MACHINE
from rljob_workers.pipeline import queue_shape
from rljob_workers.transfer_queue.admin import QueueAdminTiming
from rljob_workers.transfer_queue.admin_calls import Named
from rljob_workers.transfer_queue.client import TransferQueueClient
from rljob_workers.transfer_queue.row_format import parse_chunk
from rljob_workers.transfer_queue.types import GroupRows, Withheld
from tests.integration.dcs.made_up_rows import made_up_columns
from tests.integration.dcs.world import context_here, job
from tests.integration.transfer_queue.servers import Servers

HELD = WeightId(lineage=Lineage(1), version=WeightVersion(0))
UNIT_BYTES = 64 << 20


class WatchedStorage:
    """A coordinator in this process, whose clock stands still unless it is ordered to go on."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self.servers = servers
        self.folder = folder
        self.now = 0.0
        self.pace = 0.0
        """Seconds that pass with each look at the clock."""
        self.job = job()
        self.timing = QueueAdminTiming()
        self.begin()
        self.coordinator.raise_epoch(EpochRequest(epoch=Epoch(1), decision_id="d1", reason="a test"))
        incarnation = Incarnation(
            key=RankKey(role=Role.ROLLOUT, replica=0), epoch=Epoch(1), generation=0, id="abcdefabcdef"
        )
        self.admin.begin_incarnation(incarnation)
        self.queue = TransferQueueClient(servers.endpoints, queue_shape(self.job.spec), incarnation)

    def begin(self) -> None:
        """Anew, as after a death."""
        context = context_here(self.servers.endpoints, self.job, self._clock, self.timing)
        self.admin = context.admin
        self.coordinator = Coordinator(context, self.folder, ON_ONE_MACHINE)
        self.coordinator.gate.check()
        assert self.coordinator.gate.state is ServerState.OPEN

    def _clock(self) -> float:
        self.now += self.pace
        return self.now

    def close(self) -> None:
        self.limit(UNIT_BYTES)
        self.queue.close()
        self.admin.close()

    def put_a_rollout(self) -> None:
        """Whole, of the next rollout that has a ticket."""
        self.put_groups(self.job.spec.rollout.batch_size)

    def put_groups(self, number: int) -> None:
        """Of the next tickets."""
        tickets = self.queue.claim_tickets(HELD, number, 0)
        assert isinstance(tickets, list), tickets
        num_rows = self.job.spec.rollout.samples_per_prompt
        columns = made_up_columns(num_rows)
        weights = [HELD] * num_rows
        assert all(self.queue.put_groups([GroupRows(ticket, columns, weights, weights) for ticket in tickets]))

    def limit(self, num_bytes: int) -> None:
        for unit in self.servers.units:
            with unit.admin() as admin:
                admin.config_set("maxmemory", num_bytes)

    def run_short(self) -> None:
        """The units are above their high-water mark, and have room for a put."""
        for unit in self.servers.units:
            with unit.admin() as admin:
                admin.config_set("maxmemory", 0)
                for number in range(96):
                    admin.set(f"filler{number}", bytes(1 << 20))
                admin.config_set("maxmemory", int(admin.info("memory")["used_memory"] / 0.88))

    def fill(self) -> None:
        """The units have no room left, whatever goes."""
        for unit in self.servers.units:
            with unit.admin() as admin:
                admin.config_set("maxmemory", int(admin.info("memory")["used_memory"]) // 2)

    def look(self, seconds: float = 0.0) -> None:
        """One turn, so much later than the last."""
        self.now += seconds
        self.coordinator.check_units()

    def reported(self, kind: EventKind) -> list[CoordinatorEvent]:
        return [event for event in self.coordinator.store.events_after(0).events if event.kind is kind]

    def room(self) -> RoomMade | None:
        return self.coordinator.status().queue.room


@pytest.fixture
def storage(shared_servers: Servers, tmp_path: Path) -> Iterator[WatchedStorage]:
    shared_servers.wipe()
    storage = WatchedStorage(shared_servers, tmp_path)
    yield storage
    storage.close()


FIRST = (
    "Storage was full: 4 rows (2 groups) of train_1 were dropped and are generated again."
    " Raise transferQueue.storageBytes (1073741824 for each unit) or transferQueue.storageUnits (2)."
)


def test_what_goes_is_reported_at_once_and_then_in_sums(storage: WatchedStorage) -> None:
    storage.put_a_rollout()
    storage.put_a_rollout()
    storage.fill()
    storage.look()
    assert storage.room() is None
    storage.look(SHORTAGE_SECONDS)
    assert [event.message for event in storage.reported(EventKind.ROWS_DROPPED)] == [FIRST]
    assert storage.room() == RoomMade(rows=4, message=FIRST)

    # Generated again twice, and dropped each time: one more event, when its time has come.
    for _ in range(2):
        storage.limit(UNIT_BYTES)
        storage.look()
        storage.put_a_rollout()
        storage.fill()
        storage.look()
        storage.look(SHORTAGE_SECONDS)
    assert len(storage.reported(EventKind.ROWS_DROPPED)) == 1
    storage.limit(UNIT_BYTES)
    storage.look(EMIT_SECONDS)
    last = storage.reported(EventKind.ROWS_DROPPED)[1:]
    assert [event.message.partition(" were")[0] for event in last] == [
        "Storage was full: 8 rows (4 groups) of train_1",
    ]
    assert storage.room() == RoomMade(rows=12, message=last[0].message)
    storage.look(EMIT_SECONDS)
    assert len(storage.reported(EventKind.ROWS_DROPPED)) == 2
    stats = storage.coordinator.queue.stats()
    assert (stats.dropped_retained_rows, stats.dropped_unclaimed_rows) == (0, 12)


def test_room_is_made_while_a_unit_hangs(storage: WatchedStorage) -> None:
    storage.admin.close()
    storage.timing = QueueAdminTiming(patience_seconds=2.0)
    storage.begin()
    storage.put_a_rollout()
    storage.put_groups(1)
    storage.put_groups(1)
    assert storage.admin.upkeep.relieve() is not None
    storage.put_a_rollout()
    storage.fill()
    hung, full = storage.servers.units
    hung.stop()
    try:
        storage.look()
        storage.look(SHORTAGE_SECONDS)
        # Of what went before there was garbage on both units, of what goes now there is some yet.
        storage.coordinator.sweep()
    finally:
        hung.resume()
    assert len(storage.reported(EventKind.ROWS_DROPPED)) == 1
    with full.admin() as admin, storage.servers.control.admin() as control:
        assert {parse_chunk(line).unit for line in control.lrange("q:dead:0", 0, -1)} == {0}
        named = {parse_chunk(line).key.encode() for _, line in storage.admin.sweeper.named(Named.ALL)}
        assert control.llen("q:dead:1") == 0
        assert set(admin.scan_iter(match="*:*:*")) <= named


def test_groups_that_a_put_has_room_beside_stay_however_long_memory_is_short(storage: WatchedStorage) -> None:
    storage.put_a_rollout()
    storage.put_groups(1)
    storage.run_short()
    for _ in range(3):
        storage.look(SHORTAGE_SECONDS)
    assert storage.admin.upkeep.short_of_memory
    assert storage.admin.stats().withheld == Withheld.MEMORY
    assert storage.reported(EventKind.ROWS_DROPPED) == []
    assert storage.coordinator.queue.stats().dropped_unclaimed_rows == 0


def test_a_coordinator_that_died_before_it_reported_is_followed_by_one_that_reports(storage: WatchedStorage) -> None:
    storage.put_a_rollout()
    storage.put_a_rollout()
    assert storage.admin.upkeep.relieve() is not None
    storage.admin.close()
    storage.begin()
    storage.look()
    assert [event.message for event in storage.reported(EventKind.ROWS_DROPPED)] == [FIRST]


def test_a_coordinator_that_died_after_it_reported_is_followed_by_one_that_reports_only_what_is_new(
    storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put_a_rollout()
    storage.put_a_rollout()
    assert storage.admin.upkeep.relieve() is not None

    def die(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(storage.admin.upkeep, "forget_dropped", die)
    with pytest.raises(KeyboardInterrupt):
        storage.look()
    assert storage.admin.upkeep.dropped()
    storage.put_a_rollout()
    assert storage.admin.upkeep.relieve() is not None
    storage.admin.close()
    storage.begin()
    assert storage.room() == RoomMade(rows=4, message=FIRST)
    storage.look()
    assert [event.message for event in storage.reported(EventKind.ROWS_DROPPED)] == [FIRST, FIRST]
    room = storage.room()
    assert room is not None
    assert room.rows == 8
    assert storage.admin.upkeep.dropped() == []


def test_scrapes_of_a_queue_that_takes_long_to_count_get_older_figures(storage: WatchedStorage) -> None:
    room = storage.coordinator.queue
    first = room.scraped()
    storage.now += STATS_SECONDS
    assert room.scraped() is not first
    storage.pace, storage.now = 1.0, storage.now + STATS_SECONDS
    slow = room.scraped()
    storage.pace = 0.0
    storage.now += 1 / STATS_SHARE - 1
    assert room.scraped() is slow
    storage.now += 1
    assert room.scraped() is not slow
