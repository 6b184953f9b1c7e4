"""What the coordinator must not forget: the kinds of record, their tables and cells, and the store that has them.

The rooms of the coordinator read and change it in their one thread; the event loop reads it under `lock`. A change is
in memory only after the control Redis has it, and all changes of a request are one transaction with its events. Decides
nothing.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, TypeVar

import redis
from pydantic import TypeAdapter

from rljob_api.base import WireModel
from rljob_api.names import Epoch, Role
from rljob_api.spec import RLJob
from rljob_api.wire.checkpoints import CheckpointAttempt, CheckpointRecord, Health, Measured
from rljob_api.wire.epochs import DesiredState, RestorePoint
from rljob_api.wire.failures import Failure
from rljob_api.wire.identity import WeightId
from rljob_api.wire.launchers import LauncherHello
from rljob_api.wire.observation import CoordinatorEvent, EvaluationReport, EventPage, RoomMade
from rljob_api.wire.ranks import RankHello, Rendezvous, StepReport
from rljob_api.wire.weights import OfferedPart, WeightOffer, WeightPart

T = TypeVar("T")


_CELLS = "state"
"""The hash that has all single values."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one row becomes: the text that Redis gets and the value that it stands for; both None where it goes."""

    table: str
    field: str
    text: str | None
    value: Any


class _Kind(Generic[T]):
    """How values of one type are written."""

    def __init__(self, kind: type[T]) -> None:
        self._adapter = TypeAdapter(kind)
        self._is_text = kind is str

    def read(self, text: str) -> T:
        """The value of a row. Raises pydantic's error."""
        return self._adapter.validate_python(text) if self._is_text else self._adapter.validate_json(text)

    def write(self, value: T) -> str:
        """The row of a value."""
        return str(value) if self._is_text else self._adapter.dump_json(value, by_alias=True).decode()


class Table(_Kind[T]):
    """Rows of one type by field, in a hash of their own."""

    def __init__(self, name: str, kind: type[T]) -> None:
        super().__init__(kind)
        self.name = name

    def put(self, field: str, value: T) -> Change:
        """Sets a row."""
        return Change(self.name, field, self.write(value), value)

    def drop(self, field: str) -> Change:
        """Deletes a row, if it is there."""
        return Change(self.name, field, None, None)


class Cell(_Kind[T]):
    """A single value: one field of the hash that all of them share."""

    name = _CELLS

    def __init__(self, field: str, kind: type[T]) -> None:
        super().__init__(kind)
        self.field = field

    def put(self, value: T) -> Change:
        """Sets it."""
        return Change(self.name, self.field, self.write(value), value)

    def drop(self) -> Change:
        """Deletes it, if it is there."""
        return Change(self.name, self.field, None, None)


class OwnedPart(WireModel):
    """A part and the id of the incarnation that staged it."""

    part: WeightPart
    owner: str


class Gathering(WireModel):
    """The parts of the newest weight of a stream that is not whole yet."""

    epoch: int
    parts: dict[int, OwnedPart]
    """By index; all of one weight, count and layout."""

    @property
    def first(self) -> WeightPart:
        """Any of them: what they have in common."""
        return next(iter(self.parts.values())).part

    @property
    def is_whole(self) -> bool:
        """Whether every part was owned."""
        return len(self.parts) == self.first.count

    def offer(self) -> WeightOffer:
        """What receivers are owned of it."""
        first, owned = self.first, sorted(self.parts.items())
        return WeightOffer(
            stream=first.stream,
            id=first.id,
            layout=first.layout,
            parts=[
                OfferedPart(
                    index=index,
                    num_bytes=one.part.num_bytes,
                    chunk_bytes=one.part.chunk_bytes,
                    digest=one.part.digest,
                    owner=one.part.address,
                )
                for index, one in owned
            ],
            peers=[],
            probe=next((one.part.probe for _, one in owned if one.part.probe is not None), None),
        )


class OpenEpoch(WireModel):
    """The epoch as it was opened."""

    decision_id: str
    restore: RestorePoint
    alive: dict[int, int]
    """Earlier lineage -> last version of it that is alive."""

    def is_alive(self, weight: WeightId) -> bool:
        """Whether a weight belongs to the path that led to the current lineage."""
        return weight.lineage == self.restore.lineage or weight.version <= self.alive.get(weight.lineage, -1)


class EpochJob(WireModel):
    """What an epoch runs with."""

    epoch: Epoch
    job: RLJob


class RankEntry(WireModel):
    """A registered incarnation."""

    hello: RankHello
    ready: bool = False


class TakenOrder(WireModel):
    """The last order that a launcher of the pod took: it reported that, or one of its ranks lived by it."""

    launcher: str
    pod_uid: str = ""
    epoch: Epoch
    generation: int


class OfferEntry(WireModel):
    """The newest whole weight of a stream."""

    offer: WeightOffer
    owners: dict[str, str]
    """Address -> id of the incarnation that serves it."""


class TurnsTaken(WireModel):
    """What is decided about the rollouts of an epoch: of all below `rollout` that they are trained on."""

    epoch: Epoch
    rollout: int
    """The one that is to be decided, or that was stopped at."""
    come: tuple[Role, ...] = ()
    """Roles that have come to it."""
    stopped: bool = False
    """All leave before it."""
    reached: str = ""
    """How stopWhen holds, where they leave for that: the job is complete then."""


PODS = Table("pods", LauncherHello)
"""Pod -> hello of its launcher."""


ENDED_LAUNCHERS = Table("ended_launchers", str)
"""Launcher -> pod, of incarnations that are over."""


TAKEN = Table("taken", TakenOrder)
"""Pod -> the last order that a launcher of it took."""


RANKS = Table("ranks", RankEntry)
"""Rank -> its current incarnation."""


FAILURES = Table("failures", Failure)
"""Id -> failure that is not acknowledged."""


ACKNOWLEDGED = Table("acknowledged", float)
"""Id -> time, so that a late second report stays one failure."""


OFFERS = Table("weights", OfferEntry)
"""Stream -> newest whole weight with its sources."""


PARTS = Table("parts", Gathering)
"""Stream -> parts of the weight that is not whole yet."""


ATTEMPTS = Table("checkpoint_attempts", CheckpointAttempt)
"""Folder -> checkpoint in work."""


DAMAGED = Table("damaged_checkpoints", str)
"""Folder -> what is wrong with it. A folder that could be renamed is not listed any more."""


RENDEZVOUS = Table("rendezvous", Rendezvous)
"""Group -> address."""


STEP_PARTS = Table("step_parts", StepReport)
"""Step and role -> its report, while another role that trains has not reported the step."""


MARKS = Table("marks", str)
"""Mark of an event -> the value that it was last emitted for, so that it is emitted once."""


TABLES: tuple[Table[Any], ...] = (
    PODS,
    ENDED_LAUNCHERS,
    TAKEN,
    RANKS,
    FAILURES,
    ACKNOWLEDGED,
    OFFERS,
    PARTS,
    ATTEMPTS,
    DAMAGED,
    RENDEZVOUS,
    STEP_PARTS,
    MARKS,
)


EPOCH = Cell("epoch", OpenEpoch)


EPOCH_TO_COME = Cell("epoch_to_come", int)
"""The epoch that this job was about to open last: what is noted of it beside the checkpoints is its own."""


DESIRED = Cell("desired", DesiredState)
"""The orders that were taken last."""


LAST_STEP = Cell("step", StepReport)
"""The last report of a step that is still part of the job's history."""


RECORD = Cell("record", CheckpointRecord)


MEASURED = Cell("measured", Measured)
"""Values that stopWhen and checkpoint.keepBest go by."""


HEALTH = Cell("health", Health)
"""Troubles that steps have shown, and which of them were reported."""


GIVEN_UP = Cell("given_up", int)
"""Checkpoints that were given up since the last record."""


TURNS = Cell("turns", TurnsTaken)
"""Of the last epoch in which a role took one."""


JOB_IN_FORCE = Cell("job", EpochJob)


JOB_TO_COME = Cell("job_to_come", EpochJob)


ROOM = Cell("room", RoomMade)
"""What went to make room, as it was reported last."""


EVALUATION = Cell("evaluation", EvaluationReport)
"""The last evaluation of a version that is still part of the job's history."""


RUN_ID = Cell("run_id", str)
"""Of the control Redis that was opened last."""


SEQ_FLOOR = Cell("seq_floor", int)
"""Numbers of a lost tail end here: its loss was cured."""


CELLS: tuple[Cell[Any], ...] = (
    EPOCH,
    EPOCH_TO_COME,
    DESIRED,
    LAST_STEP,
    RECORD,
    MEASURED,
    HEALTH,
    GIVEN_UP,
    TURNS,
    JOB_IN_FORCE,
    JOB_TO_COME,
    ROOM,
    EVALUATION,
    RUN_ID,
    SEQ_FLOOR,
)


MAX_EVENTS = 10_000


EVENT_PAGE = 500
"""Most events of one answer."""


_EVENTS_KEY = "dcs:events"


_STATE = Cell.name


V = TypeVar("V")


class Store:
    """Tables and events; one writer."""

    def __init__(self, connection: redis.Redis) -> None:
        self._redis: Any = connection  # its stubs promise awaitables from the synchronous client
        self.lock = threading.RLock()
        """Held where memory changes, never while Redis is asked. Who holds it sees all of a request or nothing."""
        self._texts: dict[str, dict[str, str]] = {name: {} for name in _names()}
        self._values: dict[str, dict[str, Any]] = {name: {} for name in _names()}
        self._indexes: defaultdict[str, list[Index[Any]]] = defaultdict(list)
        self._events: deque[CoordinatorEvent] = deque(maxlen=MAX_EVENTS)
        self._newest: dict[str, int] = {}
        """Kind -> id of the newest event of it."""
        self.last_event = 0
        """Id of the newest event."""
        self._revision = 0
        self._revisions: dict[str, int] = dict.fromkeys(_names(), 0)

    def load(self) -> None:
        """Reads everything: at the start, and after a connection was lost (its last change may have arrived)."""
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
            self._newest = {event.kind: event.id for event in events}
            self.last_event = max(self.last_event, events[-1].id if events else 0)
            for index in [one for of_table in self._indexes.values() for one in of_table]:
                index.read_again()
            self._note_changed(*_names())

    def rewrite(self) -> None:
        """Writes memory over a server that has lost a tail of what was written to it."""
        with self._redis.pipeline(transaction=True) as pipeline:
            for name, rows in self._texts.items():
                pipeline.delete(_key(name))
                if rows:
                    pipeline.hset(_key(name), mapping=rows)
            pipeline.delete(_EVENTS_KEY)
            for event in self._events:
                _append(pipeline, event)
            pipeline.execute()

    def rows(self, table: Table[V]) -> Mapping[str, V]:
        """A table as it is now; do not keep it over a commit."""
        return self._values[table.name]

    def get(self, table: Table[V], field: str) -> V | None:
        """One row, or None."""
        value: V | None = self._values[table.name].get(field)
        return value

    def value(self, cell: Cell[V]) -> V | None:
        """A single value, or None."""
        value: V | None = self._values[_STATE].get(cell.field)
        return value

    def commit(self, changes: Sequence[Change], events: Sequence[CoordinatorEvent] = ()) -> None:
        """Makes changes and emits events, all or nothing. The ids of the events are given here."""
        numbered = [
            event.model_copy(update={"id": self.last_event + offset}) for offset, event in enumerate(events, start=1)
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
            self._newest |= {event.kind: event.id for event in numbered}
            self.last_event += len(numbered)
            self._note_changed(*{change.table for change in changes})

    def was_emitted(self, mark: str, value: str) -> bool:
        """Whether the event of this mark was emitted for `value` already."""
        return self.get(MARKS, mark) == value

    def revision(self, names: Sequence[str]) -> int:
        """Grows whenever one of these tables is changed."""
        return max(self._revisions[name] for name in names)

    def events_after(self, after: int) -> EventPage:
        """Events with an id above `after`, oldest first; `oldest` is the next id where none is retained."""
        oldest = self._events[0].id if self._events else self.last_event + 1
        first = bisect_right(self._events, after, key=lambda event: event.id)
        return EventPage(events=list(islice(self._events, first, first + EVENT_PAGE)), oldest=oldest)

    def news(self, after: int, quiet: Collection[str]) -> EventPage | None:
        """As `events_after`; None where each of them is of a `quiet` kind."""
        is_news = any(newest > after and kind not in quiet for kind, newest in self._newest.items())
        return self.events_after(after) if is_news else None

    def raise_event_id(self, seen: int) -> None:
        """A reader has seen event `seen`: after a lost tail, no id is given twice."""
        self.last_event = max(self.last_event, seen)

    def add_index(self, table: Table[Any], index: Index[Any]) -> None:
        """The index follows every change of the table from here on."""
        with self.lock:
            self._indexes[table.name].append(index)
            index.read_again()

    def _remember(self, change: Change) -> None:
        texts, values = self._texts[change.table], self._values[change.table]
        for index in self._indexes[change.table]:
            index.follow(change.field, values.get(change.field), change.value)
        if change.text is None:
            texts.pop(change.field, None)
            values.pop(change.field, None)
        else:
            texts[change.field], values[change.field] = change.text, change.value

    def _note_changed(self, *names: str) -> None:
        self._revision += 1
        self._revisions.update(dict.fromkeys(names, self._revision))


class Derived(Generic[V]):
    """What follows from tables, and is computed again only after one of them was changed."""

    def __init__(self, store: Store, sources: Sequence[Table[Any] | Cell[Any]], compute: Callable[[], V]) -> None:
        self._store = store
        self._sources = tuple({source.name for source in sources})
        self._compute = compute
        self._computed: tuple[int, V] | None = None

    def __call__(self) -> V:
        """As of now; do not keep it over a commit."""
        with self._store.lock:
            revision = self._store.revision(self._sources)
            if self._computed is None or self._computed[0] != revision:
                self._computed = revision, self._compute()
            return self._computed[1]


class Index(Generic[V]):
    """The rows of a table by another key than their field.

    Unlike what is `Derived`, a change costs no more in a large table than in a small one: for what is looked up between
    the changes that hundreds of pods make.
    """

    def __init__(self, store: Store, table: Table[V], key_of: Callable[[V], Hashable]) -> None:
        self._store = store
        self._table = table
        self._key_of = key_of
        self._rows: defaultdict[Hashable, dict[str, V]] = defaultdict(dict)
        store.add_index(table, self)

    def of(self, key: Hashable) -> Sequence[V]:
        """The rows with this key."""
        found = self._rows.get(key)
        return () if found is None else tuple(found.values())

    def count(self, key: Hashable) -> int:
        """How many rows have this key."""
        return len(self._rows.get(key, ()))

    def keys(self) -> Collection[Any]:
        """Keys that some row has; a commit changes them."""
        return self._rows.keys()

    def follow(self, field: str, before: V | None, after: V | None) -> None:
        """A row is changed; None where there is none. Called by the store."""
        if before is not None:
            key = self._key_of(before)
            of_key = self._rows[key]
            of_key.pop(field, None)
            if not of_key:
                del self._rows[key]
        if after is not None:
            self._rows[self._key_of(after)][field] = after

    def read_again(self) -> None:
        """Reads the whole table. Called by the store."""
        self._rows.clear()
        for field, value in self._store.rows(self._table).items():
            self._rows[self._key_of(value)][field] = value


def _names() -> list[str]:
    return [_STATE, *(table.name for table in TABLES)]


def _parsed(texts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """The values of all rows. A single value that only another version knows stays text."""
    values = {table.name: {field: table.read(text) for field, text in texts[table.name].items()} for table in TABLES}
    cells = texts[_STATE]
    values[_STATE] = {cell.field: cell.read(cells[cell.field]) for cell in CELLS if cell.field in cells}
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
