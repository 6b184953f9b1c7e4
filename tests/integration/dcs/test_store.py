"""The coordinator's memory is what a fresh read of the control Redis gives, whatever was written, refused or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from rljob_api.names import Epoch, Role
from rljob_api.wire.failures import Failure, FailureKind
from rljob_api.wire.identity import PodKey
from rljob_api.wire.observation import CoordinatorEvent, EventKind, RoomMade
from rljob_workers.dcs.coordinator.records import (
    ACKNOWLEDGED,
    CELLS,
    ENDED_LAUNCHERS,
    FAILURES,
    MARKS,
    ROOM,
    RUN_ID,
    SEQ_FLOOR,
    TABLES,
    TAKEN,
    Change,
    Derived,
    Store,
    TakenOrder,
)
from tests.integration.transfer_queue.servers import Servers

FIELDS = st.sampled_from(["a", "b", "c"])
TEXTS = st.text(max_size=5)
NUMBERS = st.integers(0, 1 << 60)


def taken(generation: int) -> TakenOrder:
    return TakenOrder(launcher="0" * 12, epoch=Epoch(1), generation=generation)


def failure(message: str, at: float = 1.5) -> Failure:
    pod = PodKey(role=Role.ACTOR, replica=0)
    return Failure(id="f", kind=FailureKind.REPORTED, pod=pod, epoch=Epoch(1), message=message, at=at)


CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(MARKS.put, FIELDS, TEXTS),
    st.builds(ENDED_LAUNCHERS.put, FIELDS, TEXTS),
    st.builds(ACKNOWLEDGED.put, FIELDS, st.floats(0, 1e12)),
    st.builds(TAKEN.put, FIELDS, st.builds(taken, st.integers(0, 9))),
    st.builds(FAILURES.put, FIELDS, st.builds(failure, TEXTS, st.floats(0, 1e12))),
    st.builds(MARKS.drop, FIELDS),
    st.builds(TAKEN.drop, FIELDS),
    st.builds(FAILURES.drop, FIELDS),
    st.builds(SEQ_FLOOR.put, NUMBERS),
    st.builds(RUN_ID.put, TEXTS),
    st.builds(ROOM.put, st.builds(RoomMade, rows=NUMBERS, message=TEXTS)),
    st.builds(ROOM.drop),
)


def event(message: str) -> CoordinatorEvent:
    return CoordinatorEvent(id=0, kind=EventKind.PUBLISHED, at=1.25, epoch=Epoch(1), message=message)


def known(store: Store) -> dict[str, Any]:
    """All that rooms can read."""
    tables = {table.name: dict(store.rows(table)) for table in TABLES}
    cells = {cell.field: store.value(cell) for cell in CELLS}
    return {**tables, **cells, "events": store.events_after(0).events, "last": store.last_event}


@contextmanager
def full(admin: redis.Redis) -> Iterator[None]:
    """A server without memory refuses every write."""
    admin.config_set("maxmemory", 1)
    try:
        yield
    finally:
        admin.config_set("maxmemory", 0)


class WrittenThrough(RuleBasedStateMachine):
    admin: redis.Redis

    def __init__(self) -> None:
        super().__init__()
        self.admin.flushall()
        self.store = Store(self.admin)
        self.store.load()
        self.generations = Derived(self.store, [TAKEN, ROOM], self._generations)

    def _generations(self) -> tuple[list[int], bool]:
        rows = self.store.rows(TAKEN).values()
        return sorted(row.generation for row in rows), self.store.value(ROOM) is None

    @rule(changes=st.lists(CHANGES, max_size=4), messages=st.lists(TEXTS, max_size=2))
    def commit(self, changes: list[Change], messages: list[str]) -> None:
        self.store.commit(changes, [event(message) for message in messages])

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=4), messages=st.lists(TEXTS, min_size=1, max_size=2))
    def commit_to_a_full_server(self, changes: list[Change], messages: list[str]) -> None:
        before = known(self.store)
        with full(self.admin), pytest.raises(redis.ResponseError):
            self.store.commit(changes, [event(message) for message in messages])
        assert known(self.store) == before

    @rule()
    def begin_again(self) -> None:
        """The coordinator's process was replaced."""
        self.store = Store(self.admin)
        self.store.load()
        self.generations = Derived(self.store, [TAKEN, ROOM], self._generations)

    @rule()
    def write_over_a_lost_tail(self) -> None:
        self.admin.flushall()
        self.store.rewrite()

    @rule()
    def open_an_empty_server(self) -> None:
        """Numbers of events are not given twice."""
        last = self.store.last_event
        self.admin.flushall()
        self.store.load()
        assert (self.store.last_event, self.store.events_after(0).events) == (last, [])
        self.begin_again()

    @invariant()
    def memory_is_what_a_fresh_read_gives(self) -> None:
        fresh = Store(self.admin)
        fresh.load()
        assert known(self.store) == known(fresh)
        assert self.generations() == self._generations()


def test_memory_is_what_a_fresh_read_gives(shared_servers: Servers) -> None:
    with shared_servers.control.admin() as admin:
        machine = type("Machine", (WrittenThrough,), {"admin": admin})
        limits = settings(
            max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(machine, settings=limits)


def test_a_write_whose_answer_is_lost_changes_nothing_here(shared_servers: Servers) -> None:
    """Whether Redis has it is learnt when the server is opened again."""
    shared_servers.wipe()
    with shared_servers.control.admin() as admin:
        store = Store(admin)
        store.commit([MARKS.put("a", "1")], [event("first")])
        before = known(store)
        shared_servers.control.kill()
        try:
            with pytest.raises(redis.ConnectionError):
                store.commit([MARKS.put("a", "2")], [event("second")])
        finally:
            shared_servers.control.start()
        assert known(store) == before


def test_a_transaction_that_redis_cut_short_is_read_again(shared_servers: Servers) -> None:
    """Another coordinator has reported events meanwhile: Redis takes the rows and refuses the event's number."""
    shared_servers.wipe()
    with shared_servers.control.admin() as admin:
        store, other = Store(admin), Store(admin)
        other.commit([], [event("its first"), event("its second")])
        with pytest.raises(redis.ResponseError, match="equal or smaller"):
            store.commit([MARKS.put("a", "1")], [event("first")])
        fresh = Store(admin)
        fresh.load()
        assert known(store) == known(fresh)


def test_a_single_value_of_another_version_is_retained(shared_servers: Servers) -> None:
    shared_servers.wipe()
    with shared_servers.control.admin() as admin:
        admin.hset("dcs:state", "of_a_later_version", "{}")
        store = Store(admin)
        store.load()
        admin.flushall()
        store.rewrite()
        assert admin.hget("dcs:state", "of_a_later_version") == b"{}"
