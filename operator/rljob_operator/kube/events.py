"""Kubernetes Events of a job: rate limits and series, records of the core's events, and Events about long waits.

Called by the reconciler. An Event that cannot be written is dropped: Events are best effort and never end a turn.
"""

import hashlib
import logging
import re
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rljob_api.status import ConditionType, RLJobStatus
from rljob_api.times import timestamp
from rljob_operator.core import Event, Reason
from rljob_operator.core.conditions import find, terminal
from rljob_operator.core.readiness import STARTING
from rljob_operator.kube.api import FIELD_MANAGER, Api, Json
from rljob_operator.kube.clock import Clock
from rljob_operator.kube.errors import ApiConflict, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.kube.kinds import EVENTS, RLJOBS
from rljob_operator.kube.views import JobKey
from rljob_operator.rate_limit import Budget, Rate

SERIES_SECONDS = 1800.0
"""A sentence that is emitted again within this time is the same event once more."""


REPEAT_SECONDS = 10.0
"""A repetition is written this often at most: the count in between is made up for by the next."""


REMEMBERED = 4096
"""Events of which repetitions are known, over all jobs."""


REMEMBERED_KEYS = 128
"""Keys of one event and its repetitions: a coordinator that comes back has its last 100 events received again."""


EMIT_RATE = Rate(burst=100, every_seconds=2.0)
"""Of one job. A job of a hundred pods may lose all of them at once; what comes on and on is in the log."""


LONGEST_NOTE = 1024
"""The API server refuses a longer one."""


NORMAL, WARNING = "Normal", "Warning"


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event as the API has it."""

    type: str
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Series:
    name: str
    emitted_at: float
    count: int = 1
    keys: deque[str] = field(default_factory=lambda: deque(maxlen=REMEMBERED_KEYS))
    """Keys of what it was emitted for."""

    def is_new(self, once: str) -> bool:
        """Whether it was not emitted for this key yet, which is noted; without a key it is new each time."""
        if once in self.keys:
            return False
        self.keys.extend([once] if once else [])
        return True


class Events:
    """Emits; what cannot be emitted is logged and lost, since nothing is decided on it."""

    def __init__(
        self, api: Api, identity: str, time_of_day: Clock, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`time_of_day` is what Events are stamped with, `clock` what their rates are measured by."""
        self._api = api
        self._time_of_day = time_of_day
        self._clock = clock
        self._identity = identity[:128]
        self._series: OrderedDict[tuple[str, EventRecord], _Series] = OrderedDict()
        self._budgets: OrderedDict[str, Budget] = OrderedDict()

    async def emit(self, key: JobKey, raw: Json, record: EventRecord, once: str = "") -> None:
        """An event about the RLJob `raw`. `once` is its key: emitted once per key, also by a restarted operator."""
        uid: str = raw["metadata"]["uid"]
        series = self._series.get((uid, record))
        if series is not None and not series.is_new(once):
            return
        if series is not None and self._clock() - series.emitted_at < REPEAT_SECONDS:
            series.count += 1  # nothing is written, and so nothing is spent
            return
        if not self._may_emit(uid):
            _log.warning("%s: event %s is one too many and is not emitted: %s", key, record.reason, record.note)
            return
        try:
            if series is None or self._clock() - series.emitted_at > SERIES_SECONDS:
                await self._create(key, raw, record, once)
            else:
                await self._repeat(key, series, record, uid)
        except (ApiRefused, ApiUnreachable) as error:
            _log.warning("%s: event %s was not emitted: %s", key, record.reason, error)

    def _may_emit(self, uid: str) -> bool:
        now, budget = self._clock(), self._budgets.setdefault(uid, Budget(EMIT_RATE))
        self._budgets.move_to_end(uid)
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        is_free = budget.free_at(now) <= now
        if is_free:
            budget.spend(now)
        return is_free

    async def _create(self, key: JobKey, raw: Json, record: EventRecord, once: str) -> None:
        now = self._time_of_day()
        stamp = timestamp(now)
        uid: str = raw["metadata"]["uid"]
        what = f"{record.reason}/{once}" if once else f"{record}{now}"
        digest = hashlib.sha256(f"{uid}{what}".encode()).hexdigest()[:16]
        series = _Series(f"{key.name}.{digest}", self._clock())
        series.is_new(once)
        body: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": series.name, "namespace": key.namespace},
            "eventTime": stamp,
            "firstTimestamp": _whole(stamp),
            "lastTimestamp": _whole(stamp),
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": f"rljob.dev/{FIELD_MANAGER}",
            "reportingInstance": self._identity,
            "action": record.action,
            "reason": record.reason,
            "type": record.type,
            "message": record.note[:LONGEST_NOTE],
            "involvedObject": {
                "apiVersion": RLJOBS.api_version,
                "kind": RLJOBS.kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": uid,
            },
        }
        # An earlier operator has emitted it, and died before it could emit the rest.
        with suppress(*((ApiConflict,) if once else ())):
            await self._api.create(EVENTS, key.namespace, body)
        self._series[uid, record] = series
        while len(self._series) > REMEMBERED:
            self._series.popitem(last=False)

    async def _repeat(self, key: JobKey, series: _Series, record: EventRecord, uid: str) -> None:
        series.count += 1
        stamp = timestamp(self._time_of_day())
        body: Json = {
            "count": series.count,
            "lastTimestamp": _whole(stamp),
            "series": {"count": series.count, "lastObservedTime": stamp},
        }
        try:
            await self._api.merge(EVENTS, key.namespace, series.name, body)
        except (ApiNotFound, ApiConflict):  # it has expired
            del self._series[uid, record]
            return
        series.emitted_at = self._clock()


def _whole(stamp: str) -> str:
    """In seconds, as the older of the API's two kinds of time has it."""
    return f"{stamp.partition('.')[0]}Z"


_NORMAL = frozenset(
    {
        Reason.STARTED,
        Reason.RESUMED,
        Reason.ACCEPTED,
        Reason.READY,
        Reason.EPOCH_OPENED,
        Reason.COORDINATOR_REACHABLE,
        Reason.SPEC_CHANGED,
        Reason.RESTART_REQUESTED,
        Reason.POD_OUTDATED,
        Reason.SCALED_UP,
        Reason.SCALED_DOWN,
        Reason.EVALUATED,
        Reason.EVALUATION_UNFINISHED,
        Reason.QUEUE_DRAINING,
        Reason.TICKETS_GIVEN,
        Reason.DRAINING,
        Reason.SUSPENDED,
        Reason.INTERRUPTED,
        Reason.DELETING,
        Reason.SUCCEEDED,
        Reason.STOP_CONDITION_MET,
        Reason.EARLIER_INCARNATION,
    }
)
"""Requested by a user, or good news. Everything else went wrong."""


def record_of(event: Event) -> EventRecord:
    """The event as it is emitted; its action is the scope of what was restarted."""
    action = f"Restart{event.scope.value}" if event.scope is not None else "Decide"
    return EventRecord(NORMAL if event.reason in _NORMAL else WARNING, event.reason.value, action, event.message)


def remark(reason: str, message: str) -> EventRecord:
    """Good to know of a job that is accepted; nothing is wrong."""
    return EventRecord(NORMAL, reason, "Accept", message)


def warning(reason: str, message: str) -> EventRecord:
    """A warning that is no decision of the core."""
    return EventRecord(WARNING, reason, "Accept", message)


PATIENCE_SECONDS = 10.0
"""In a job that starts, pods wait for each other for a moment: that is no news."""


AGAIN_SECONDS = 1500.0
"""Less than what repeats one Event instead of making another (`events.SERIES_SECONDS`)."""


_COUNTED = re.compile(r"\S*\d\S*")
"""Numbers of nodes, pods and restarts, and the names of pods: they change while the cause is the same."""


_NO_CAUSE = frozenset({"", STARTING, "Restarting", *map(str, (Reason.SCALING, Reason.BACKING_OFF, Reason.READY))})


_HAS_ITS_OWN: frozenset[str] = frozenset(
    {Reason.OBJECT_REFUSED, Reason.INFRASTRUCTURE_DOWN, Reason.COORDINATOR_REFUSED, Reason.DRAINING, Reason.SUSPENDED}
)


@dataclass(slots=True)
class WaitEvents:
    """Of one job."""

    clock: Callable[[], float] = time.monotonic
    _cause: str = ""
    _due: float | None = None
    _again: float = 0.0
    _emitted: set[str] = field(default_factory=set)
    """Sentences of the cause since it was last repeated, without numbers: a wait may go back and forth between two."""

    def of(self, status: RLJobStatus) -> EventRecord | None:
        """The event that is due now for the wait in the status."""
        ready, now = find(status, ConditionType.READY), self.clock()
        waits = terminal(status) is None and ready is not None and ready.status == "False"
        if ready is None or not waits or ready.reason in _NO_CAUSE | _HAS_ITS_OWN:
            self._cause, self._due, self._emitted = "", None, set()
            return None
        if ready.reason != self._cause:
            self._cause, self._due, self._emitted = ready.reason, now + PATIENCE_SECONDS, set()
        sentence = _COUNTED.sub("", ready.message)
        is_known = sentence in self._emitted
        # Another sentence has its own patience, which goes on while sentences change.
        soon = now + PATIENCE_SECONDS if self._due is None or self._due == self._again else self._due
        self._due = self._again if is_known else soon
        if now < self._due:
            return None
        self._emitted = {sentence} | (set() if is_known else self._emitted)
        self._again = self._due = now + AGAIN_SECONDS
        return warning(ready.reason, ready.message)

    @property
    def due_in(self) -> float | None:
        """In how many seconds there is something to emit, if the wait goes on."""
        return None if self._due is None else self._due - self.clock()
