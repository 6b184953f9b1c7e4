"""The cluster's own Events of a job's objects: nothing else says why a volume is not mounted, or a set makes no pod.

Asked only of objects that have been waited for, and later each time, since the API server has no index of them. What is
heard decides nothing: it is told where the job says what it waits for.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rljob_api.times import seconds
from rljob_operator.adapters.api import Api, Json
from rljob_operator.adapters.backoff import backoff_seconds
from rljob_operator.adapters.errors import ApiRefused, ApiUnreachable
from rljob_operator.adapters.resources import EVENTS
from rljob_operator.adapters.views import JobKey
from rljob_operator.core.observed import Obstacle

PATIENCE_SECONDS = 3.0
"""Most objects are on their way by then, and nothing is asked."""

ASK_AGAIN_SECONDS = (10.0, 120.0)

MOST_ASKED = 6
"""Objects in one turn: replicas of a role mostly wait for the same."""

_TOLD_ELSEWHERE = frozenset({"FailedScheduling", "Scheduled"})
"""The pod's own conditions have these."""

_log = logging.getLogger(__name__)


class Suspect(NamedTuple):
    """An object that does not come to run."""

    kind: str
    name: str
    uid: str


@dataclass(slots=True)
class _Asked:
    due: float
    times: int = 0
    heard: Obstacle | None = None


class ClusterEvents:
    """Of one job's objects."""

    def __init__(self, api: Api, key: JobKey, clock: Callable[[], float] = time.time) -> None:
        self._api = api
        self._key = key
        self._clock = clock
        self._known: dict[Suspect, _Asked] = {}

    async def about(self, suspects: Iterable[Suspect]) -> Mapping[Suspect, Obstacle]:
        """The last word of each, where it is a bad one. Who is none of the suspects any more is forgotten."""
        now = self._clock()
        self._known = {each: self._known.get(each) or _Asked(now + PATIENCE_SECONDS) for each in suspects}
        due = [(each, asked) for each, asked in self._known.items() if asked.due <= now]
        for suspect, asked in due[:MOST_ASKED]:
            asked.times += 1
            asked.due = now + backoff_seconds(asked.times, *ASK_AGAIN_SECONDS)
            try:
                asked.heard = await self._ask(suspect)
            except (ApiRefused, ApiUnreachable) as error:  # an operator without this right works on
                _log.info("%s: events of %s %s: %s", self._key, suspect.kind, suspect.name, error)
                if isinstance(error, ApiUnreachable):
                    break  # the job would wait for each of the others as long
        return {each: asked.heard for each, asked in self._known.items() if asked.heard is not None}

    async def _ask(self, suspect: Suspect) -> Obstacle | None:
        of = f"involvedObject.kind={suspect.kind},involvedObject.name={suspect.name}"
        page = await self._api.list(EVENTS, self._key.namespace, {"fieldSelector": of})
        return last_trouble(page["items"] or (), suspect.uid)


def last_trouble(events: Iterable[Json], uid: str) -> Obstacle | None:
    """The newest event of this object, if it is a warning: what went well since then has cured it."""
    ours = [
        event
        for event in events
        if event["involvedObject"].get("uid", uid) == uid and event.get("reason") not in _TOLD_ELSEWHERE
    ]
    newest = max(ours, key=lambda event: (_last_at(event), event.get("type") == "Warning"), default=None)
    if newest is None or newest.get("type") != "Warning":
        return None
    return Obstacle(newest.get("reason", ""), " ".join(newest.get("message", "").split()))


def _last_at(event: Json) -> float:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max(seconds(at) for at in (*times, event["metadata"]["creationTimestamp"]) if at)
