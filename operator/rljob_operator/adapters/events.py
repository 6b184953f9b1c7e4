"""Events: what was decided, for `kubectl describe` and `kubectl events`, after the status write.

One that repeats becomes a series of one event, as the API means it, and not a flood of them. Written as v1, which
`events.k8s.io` serves as well: only there can the times be given that `kubectl describe` sorts by.
"""

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from rljob_api.times import timestamp
from rljob_operator.adapters.api import FIELD_MANAGER, Api, Json
from rljob_operator.adapters.errors import ApiConflict, ApiNotFound, ApiRefused, ApiUnreachable
from rljob_operator.adapters.resources import EVENTS, RLJOBS
from rljob_operator.adapters.views import JobKey
from rljob_operator.budget import Budget, Rate

SERIES_SECONDS = 1800.0
"""A sentence that is emitted again within this time is the same event once more."""

REPEAT_SECONDS = 10.0
"""A repetition is written this often at most: the count in between is made up for by the next."""

REMEMBERED = 4096
"""Events of which repetitions are known, over all jobs."""

TOLD = Rate(burst=100, every_seconds=2.0)
"""Of one job. A job of a hundred pods may lose all of them at once; what comes on and on is in the log."""

LONGEST_NOTE = 1024
"""The API server refuses a longer one."""

NORMAL, WARNING = "Normal", "Warning"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event in the API's words."""

    type: str
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class _Series:
    name: str
    emitted_at: float
    count: int = 1


class Events:
    """Emits; what cannot be emitted is logged and lost, since nothing is decided on it."""

    def __init__(self, api: Api, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._identity = identity[:128]
        self._series: OrderedDict[tuple[str, EventRecord], _Series] = OrderedDict()
        self._budgets: OrderedDict[str, Budget] = OrderedDict()

    async def emit(self, key: JobKey, raw: Json, record: EventRecord, once: str = "") -> None:
        """An event about the RLJob `raw`. `once` names what happened: it is told once, whoever tells it again."""
        uid: str = raw["metadata"]["uid"]
        series = self._series.get((uid, record))
        if series is not None and self._clock() - series.emitted_at < REPEAT_SECONDS:
            series.count += 1  # nothing is written, and so nothing is spent
            return
        if not self._may_tell(uid):
            _log.warning("%s: event %s is one too many and is not emitted: %s", key, record.reason, record.note)
            return
        try:
            if series is None or self._clock() - series.emitted_at > SERIES_SECONDS:
                await self._create(key, raw, record, once)
            else:
                await self._repeat(key, series, record, uid)
        except (ApiRefused, ApiUnreachable) as error:
            _log.warning("%s: event %s was not emitted: %s", key, record.reason, error)

    def _may_tell(self, uid: str) -> bool:
        now, budget = self._clock(), self._budgets.setdefault(uid, Budget(TOLD))
        self._budgets.move_to_end(uid)
        while len(self._budgets) > REMEMBERED:
            self._budgets.popitem(last=False)
        is_free = budget.free_at(now) <= now
        if is_free:
            budget.spend(now)
        return is_free

    async def _create(self, key: JobKey, raw: Json, record: EventRecord, once: str) -> None:
        now = time.time()
        stamp = timestamp(now)
        uid: str = raw["metadata"]["uid"]
        what = f"{record.reason}/{once}" if once else f"{record}{now}"
        digest = hashlib.sha256(f"{uid}{what}".encode()).hexdigest()[:16]
        series = _Series(f"{key.name}.{digest}", self._clock())
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
        # An operator that was here before has told it, and died before it could tell the rest.
        with suppress(*((ApiConflict,) if once else ())):
            await self._api.create(EVENTS, key.namespace, body)
        self._series[uid, record] = series
        while len(self._series) > REMEMBERED:
            self._series.popitem(last=False)

    async def _repeat(self, key: JobKey, series: _Series, record: EventRecord, uid: str) -> None:
        series.count += 1
        stamp = timestamp(time.time())
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
