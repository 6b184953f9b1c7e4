"""What the coordinator must not forget: small tables and the event log, in the control Redis under `dcs:`.

Called by the rooms of the coordinator, in its one thread. Memory mirrors Redis; a change is in memory only after Redis
has it, and all changes of one request are one transaction with its events. Never decides anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

import redis

from rljob_api.wire.observation import CoordinatorEvent

MAX_EVENTS = 10_000
_EVENTS_KEY = "dcs:events"


class Table(StrEnum):
    """One Redis hash each; field and value are text."""

    STATE = "state"
    """Single values: epoch, desired, step, record, run_id."""
    PODS = "pods"
    """Pod -> hello of its launcher."""
    ENDED_LAUNCHERS = "ended_launchers"
    """Launcher -> pod, of lives that are over."""
    TAKEN = "taken"
    """Pod -> launcher, epoch and generation of the last order that a launcher of it took."""
    RANKS = "ranks"
    """Rank -> its current life."""
    FAILURES = "failures"
    """Id -> failure that is not acknowledged."""
    ACKNOWLEDGED = "acknowledged"
    """Id -> time, so that a late second report stays one failure."""
    OFFERS = "offers"
    """Stream -> newest weight with its sources."""
    RENDEZVOUS = "rendezvous"
    """Group -> address."""
    MARKS = "marks"
    """Kind of event -> what it was last told of, so that it is told once."""


@dataclass(frozen=True, slots=True)
class Change:
    """Sets a field of a table; None deletes it."""

    table: Table
    field: str
    value: str | None


class Store:
    """Tables and events; one writer."""

    def __init__(self, connection: redis.Redis) -> None:
        self._redis: Any = connection  # its stubs promise awaitables from the synchronous client
        self._tables: dict[Table, dict[str, str]] = {table: {} for table in Table}
        self._events: deque[CoordinatorEvent] = deque(maxlen=MAX_EVENTS)
        self._last_event = 0

    def load(self) -> None:
        """Reads everything anew: at the start, and after a connection was lost (its last change may have arrived)."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for table in Table:
                pipeline.hgetall(_key(table))
            pipeline.xrevrange(_EVENTS_KEY, count=MAX_EVENTS)
            *tables, entries = pipeline.execute()
        self._tables = {
            table: {field.decode(): value.decode() for field, value in rows.items()}
            for table, rows in zip(Table, tables, strict=True)
        }
        events = [CoordinatorEvent.model_validate_json(fields[b"event"]) for _, fields in reversed(entries)]
        self._events = deque(events, maxlen=MAX_EVENTS)
        self._last_event = max(self._last_event, events[-1].id if events else 0)

    def rewrite(self) -> None:
        """Writes memory over a server that has lost a tail of what it was told."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for table, rows in self._tables.items():
                pipeline.delete(_key(table))
                if rows:
                    pipeline.hset(_key(table), mapping=rows)
            pipeline.delete(_EVENTS_KEY)
            for event in self._events:
                _append(pipeline, event)
            pipeline.execute()

    def rows(self, table: Table) -> Mapping[str, str]:
        """A table as it is now; do not keep it over a commit."""
        return self._tables[table]

    def get(self, table: Table, field: str) -> str | None:
        """One field, or None."""
        return self._tables[table].get(field)

    def commit(self, changes: Sequence[Change], events: Sequence[CoordinatorEvent] = ()) -> None:
        """Makes changes and tells events, all or nothing. The ids of the events are given here."""
        numbered = [
            event.model_copy(update={"id": self._last_event + offset}) for offset, event in enumerate(events, start=1)
        ]
        with self._redis.pipeline(transaction=True) as pipeline:
            for change in changes:
                _stage(pipeline, change)
            for event in numbered:
                _append(pipeline, event)
            pipeline.execute()
        for change in changes:
            self._remember(change)
        self._events.extend(numbered)
        self._last_event += len(numbered)

    def told(self, mark: str, value: str) -> bool:
        """Whether the event of this mark was told for `value` already."""
        return self.get(Table.MARKS, mark) == value

    @property
    def last_event(self) -> int:
        """Id of the newest event."""
        return self._last_event

    @property
    def oldest_event(self) -> int:
        """Id of the oldest event that is kept; the next id when there is none."""
        return self._events[0].id if self._events else self._last_event + 1

    def events_after(self, after: int, limit: int) -> list[CoordinatorEvent]:
        """At most `limit` events with an id above `after`, oldest first."""
        return list(_first(limit, (event for event in self._events if event.id > after)))

    def newest_events(self, after: int) -> Iterator[CoordinatorEvent]:
        """Events with an id above `after`, newest first: a reader who is up to date pays for what is new only."""
        return takewhile(lambda event: event.id > after, reversed(self._events))

    def raise_event_id(self, seen: int) -> None:
        """A reader has seen event `seen`: after a lost tail, no id is given twice."""
        self._last_event = max(self._last_event, seen)

    def _remember(self, change: Change) -> None:
        rows = self._tables[change.table]
        if change.value is None:
            rows.pop(change.field, None)
        else:
            rows[change.field] = change.value


def _key(table: Table) -> str:
    return f"dcs:{table.value}"


def _stage(pipeline: Any, change: Change) -> None:  # noqa: ANN401 - the client's stubs do not fit it
    if change.value is None:
        pipeline.hdel(_key(change.table), change.field)
    else:
        pipeline.hset(_key(change.table), change.field, change.value)


def _append(pipeline: Any, event: CoordinatorEvent) -> None:  # noqa: ANN401 - the client's stubs do not fit it
    fields = {"event": event.model_dump_json()}
    pipeline.xadd(_EVENTS_KEY, fields, id=f"{event.id}-0", maxlen=MAX_EVENTS, approximate=True)


def _first(limit: int, events: Iterator[CoordinatorEvent]) -> Iterator[CoordinatorEvent]:
    return (event for _, event in zip(range(limit), events, strict=False))
