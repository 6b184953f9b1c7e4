"""What all rooms of the coordinator share: context (store, queue admin, clocks), refusals, notifications of long polls.

Made once by `serving` and handed to each room. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from rljob_api.names import Epoch
from rljob_api.spec import RLJob
from rljob_api.wire.identity import Refusal
from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_workers.dcs.coordinator.records import MARKS, Change, Store

if TYPE_CHECKING:
    from rljob_workers.transfer_queue.admin import QueueAdmin


CONFLICT = 409


UNAVAILABLE = 503


MISSING = 404


BAD = 400


class Refused(Exception):
    """A request that is answered with a `Refusal`."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.refusal = Refusal(reason=reason, message=message)

    @property
    def body(self) -> bytes:
        """The answer."""
        return self.refusal.model_dump_json().encode()


def fenced(message: str) -> Refused:
    """The speaker's incarnation is over."""
    return Refused(CONFLICT, "Fenced", message)


def incarnation_over(who: str) -> Refused:
    """The rank that asks was fenced; the request and its incarnation are named."""
    return fenced(f"{who} is over: it died, was replaced or was ordered to restart. Exit.")


def wrong_epoch(message: str) -> Refused:
    """The speaker is of another epoch."""
    return Refused(CONFLICT, "WrongEpoch", message)


def dead(message: str) -> Refused:
    """The weight is not alive."""
    return Refused(CONFLICT, "Dead", message)


def incomplete(message: str) -> Refused:
    """The version's turn has not come."""
    return Refused(CONFLICT, "Incomplete", message)


def not_open(message: str) -> Refused:
    """The control Redis is away or not opened yet: ask again."""
    return Refused(UNAVAILABLE, "NotOpen", message)


def not_found(message: str) -> Refused:
    """There is no such thing (yet)."""
    return Refused(MISSING, "NotFound", message)


def bad_request(message: str) -> Refused:
    """The request makes no sense."""
    return Refused(BAD, "BadRequest", message)


def invalid(problems: Iterable[Mapping[str, Any]], place: Sequence[str] = ()) -> Refused:
    """The request is not what its model demands; `problems` are pydantic's, `place` stands before their fields."""
    return bad_request("; ".join(f"{'.'.join(map(str, (*place, *item['loc'])))}: {item['msg']}" for item in problems))


class Topic(Enum):
    """What a long poll waits for."""

    ORDERS = "orders"
    """By pod: hundreds of launchers wait, and most changes are about one pod."""
    REPLICAS = "replicas"
    EVENTS = "events"
    WEIGHTS = "weights"
    CHECKPOINTS = "checkpoints"
    RENDEZVOUS = "rendezvous"
    RANKS = "ranks"
    """By role: one of its ranks has registered."""
    TURNS = "turns"
    SERVER = "server"


class Notifier:
    """Counts notifications by topic. Read the counter before the state; a later notification then always wakes you."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._counts = dict.fromkeys(Topic, 0)
        self._counts_by_key: Counter[tuple[Topic, str]] = Counter()
        self._waited_for: defaultdict[Topic, defaultdict[str, set[asyncio.Future[None]]]] = defaultdict(
            lambda: defaultdict(set)
        )

    def notify(self, topic: Topic, keys: Collection[str] | None = None) -> None:
        """Wakes those who wait for the topic under one of the keys, without keys everyone; callable from any thread."""
        self._loop.call_soon_threadsafe(self._count_up, topic, keys)

    def count(self, topic: Topic, key: str = "") -> int:
        """Notifications so far; read it before looking at the state."""
        return self._counts[topic] + self._counts_by_key[topic, key]

    async def wait(self, topic: Topic, count: int, seconds: float, key: str = "") -> None:
        """Returns when the topic was notified since `count` was read, or after `seconds`."""
        if self.count(topic, key) != count or seconds <= 0:
            return
        # A future of its own: one that all wait for is searched for each of them whose wait ends without news.
        woken, others = self._loop.create_future(), self._waited_for[topic][key]
        others.add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            others.discard(woken)

    def _count_up(self, topic: Topic, keys: Collection[str] | None) -> None:
        waited_for = self._waited_for[topic]
        if keys is None:
            self._counts[topic] += 1
            woken = [one for waiting in waited_for.values() for one in waiting]
            waited_for.clear()
        else:
            self._counts_by_key.update((topic, key) for key in keys)
            woken = [one for key in keys for one in waited_for.pop(key, ())]
        for one in woken:
            one.set_result(None)


class Notify(Protocol):
    """Wakes those who wait for a topic, where there are keys those of them who wait under one of these."""

    def __call__(self, topic: Topic, keys: Collection[str] | None = None) -> None:
        """Callable from any thread."""


@dataclass(frozen=True, slots=True)
class CoordinatorContext:
    """Shared by the rooms of one coordinator."""

    job: RLJob
    store: Store
    admin: QueueAdmin
    clock: Callable[[], float]
    """Monotonic seconds: ages."""
    wall: Callable[[], float]
    """Unix seconds: what is written down."""
    notify: Notify

    def event(self, kind: EventKind, epoch: Epoch, message: str) -> CoordinatorEvent:
        """An event of now; its id is given when it is committed."""
        return CoordinatorEvent(id=0, kind=kind, at=self.wall(), epoch=epoch, message=message)

    def emit_once(
        self, mark: str, value: str, event: CoordinatorEvent, *changes: Change, beside: Sequence[CoordinatorEvent] = ()
    ) -> None:
        """Commits changes and an event, the event only if `value` was not emitted under `mark` before.

        `beside`: events that the same report leads to, and that go with it.
        """
        events = [] if self.store.was_emitted(mark, value) else [event, *beside]
        self.store.commit([*changes, MARKS.put(mark, value)], events)
        if events:
            self.notify(Topic.EVENTS)
