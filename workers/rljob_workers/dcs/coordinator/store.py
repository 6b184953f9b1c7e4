"""The coordinator's memory: typed tables, single values and the event log, written through to the control Redis.

Called by the rooms of the coordinator. Only its one thread changes anything; the event loop reads, too, under `lock`.
A change is in memory only after Redis has it, and all changes of one request are one transaction with its events.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Generic, TypeVar

import redis

from rljob_api.wire.observation import CoordinatorEvent
from rljob_workers.dcs.coordinator.records import CELLS, MARKS, TABLES
from rljob_workers.dcs.coordinator.table import Cell, Change, Table

MAX_EVENTS = 10_000
_EVENTS_KEY = "dcs:events"
_CELLS = Cell.name

T = TypeVar("T")


class Store:
    """Tables and events; one writer."""

    def __init__(self, connection: redis.Redis) -> None:
        self._redis: Any = connection  # its stubs promise awaitables from the synchronous client
        self.lock = threading.RLock()
        """Held where memory changes, never while Redis is asked. Who holds it sees all of a request or nothing."""
        self._texts: dict[str, dict[str, str]] = {name: {} for name in _names()}
        self._values: dict[str, dict[str, Any]] = {name: {} for name in _names()}
        self._events: deque[CoordinatorEvent] = deque(maxlen=MAX_EVENTS)
        self._last_event = 0
        self._revision = 0
        self._revisions: dict[str, int] = dict.fromkeys(_names(), 0)

    def load(self) -> None:
        """Reads everything anew: at the start, and after a connection was lost (its last change may have arrived)."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for name in _names():
                pipeline.hgetall(_key(name))
            pipeline.xrevrange(_EVENTS_KEY, count=MAX_EVENTS)
            *tables, entries = pipeline.execute()
        texts = {
            name: {field.decode(): text.decode() for field, text in rows.items()}
            for name, rows in zip(_names(), tables, strict=True)
        }
        values = _parsed(texts)
        events = [CoordinatorEvent.model_validate_json(fields[b"event"]) for _, fields in reversed(entries)]
        with self.lock:
            self._texts, self._values = texts, values
            self._events = deque(events, maxlen=MAX_EVENTS)
            self._last_event = max(self._last_event, events[-1].id if events else 0)
            self._note_changed(*_names())

    def rewrite(self) -> None:
        """Writes memory over a server that has lost a tail of what it was told."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for name, rows in self._texts.items():
                pipeline.delete(_key(name))
                if rows:
                    pipeline.hset(_key(name), mapping=rows)
            pipeline.delete(_EVENTS_KEY)
            for event in self._events:
                _append(pipeline, event)
            pipeline.execute()

    def rows(self, table: Table[T]) -> Mapping[str, T]:
        """A table as it is now; do not keep it over a commit."""
        return self._values[table.name]

    def get(self, table: Table[T], field: str) -> T | None:
        """One row, or None."""
        value: T | None = self._values[table.name].get(field)
        return value

    def value(self, cell: Cell[T]) -> T | None:
        """A single value, or None."""
        value: T | None = self._values[_CELLS].get(cell.field)
        return value

    def commit(self, changes: Sequence[Change], events: Sequence[CoordinatorEvent] = ()) -> None:
        """Makes changes and emits events, all or nothing. The ids of the events are given here."""
        numbered = [
            event.model_copy(update={"id": self._last_event + offset}) for offset, event in enumerate(events, start=1)
        ]
        with self._redis.pipeline(transaction=True) as pipeline:
            for change in changes:
                _stage(pipeline, change)
            for event in numbered:
                _append(pipeline, event)
            try:
                pipeline.execute()
            except redis.ResponseError:
                self.load()  # Redis rolls nothing back: of what it refused, other parts may have been made
                raise
        with self.lock:
            for change in changes:
                self._remember(change)
            self._events.extend(numbered)
            self._last_event += len(numbered)
            self._note_changed(*{change.table for change in changes})

    def was_emitted(self, mark: str, value: str) -> bool:
        """Whether the event of this mark was told for `value` already."""
        return self.get(MARKS, mark) == value

    def revision(self, names: Sequence[str]) -> int:
        """Grows whenever one of these tables is changed."""
        return max(self._revisions[name] for name in names)

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
        texts, values = self._texts[change.table], self._values[change.table]
        if change.text is None:
            texts.pop(change.field, None)
            values.pop(change.field, None)
        else:
            texts[change.field], values[change.field] = change.text, change.value

    def _note_changed(self, *names: str) -> None:
        self._revision += 1
        self._revisions.update(dict.fromkeys(names, self._revision))


class Derived(Generic[T]):
    """What follows from tables, and is computed anew only after one of them was changed."""

    def __init__(self, store: Store, sources: Sequence[Table[Any] | Cell[Any]], compute: Callable[[], T]) -> None:
        self._store = store
        self._sources = tuple({source.name for source in sources})
        self._compute = compute
        self._computed: tuple[int, T] | None = None

    def __call__(self) -> T:
        """As of now; do not keep it over a commit."""
        with self._store.lock:
            revision = self._store.revision(self._sources)
            if self._computed is None or self._computed[0] != revision:
                self._computed = revision, self._compute()
            return self._computed[1]


def _names() -> list[str]:
    return [_CELLS, *(table.name for table in TABLES)]


def _parsed(texts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """The values of all rows. A single value that only another version knows stays text."""
    values = {table.name: {field: table.read(text) for field, text in texts[table.name].items()} for table in TABLES}
    cells = texts[_CELLS]
    values[_CELLS] = {cell.field: cell.read(cells[cell.field]) for cell in CELLS if cell.field in cells}
    return values


def _key(name: str) -> str:
    return f"dcs:{name}"


def _stage(pipeline: Any, change: Change) -> None:  # noqa: ANN401 - the client's stubs do not fit it
    if change.text is None:
        pipeline.hdel(_key(change.table), change.field)
    else:
        pipeline.hset(_key(change.table), change.field, change.text)


def _append(pipeline: Any, event: CoordinatorEvent) -> None:  # noqa: ANN401 - the client's stubs do not fit it
    fields = {"event": event.model_dump_json()}
    pipeline.xadd(_EVENTS_KEY, fields, id=f"{event.id}-0", maxlen=MAX_EVENTS, approximate=True)


def _first(limit: int, events: Iterator[CoordinatorEvent]) -> Iterator[CoordinatorEvent]:
    return (event for _, event in zip(range(limit), events, strict=False))
