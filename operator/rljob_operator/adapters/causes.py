"""Causes: whether what was seen of a job is an alarm or progress. Pure; called where something is seen."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rljob_api.wire.observation import CoordinatorEvent, EventKind
from rljob_operator.adapters.views import PodView
from rljob_operator.adapters.work_queue import Cause

_ALARMS = frozenset({EventKind.FAILURE_REPORTED, EventKind.UNIT_LOST, EventKind.PROMPT_SET_ASIDE, EventKind.STATE_LOST})
"""Events of the coordinator that something may have to be restarted for."""


def cause_of_job(known: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> Cause:
    """Of a version of an RLJob, given the metadata of the one before: another wish, or only news."""
    if "deletionTimestamp" in metadata:
        return Cause.ALARM
    if known is None or known["uid"] != metadata["uid"]:
        return Cause.PROGRESS  # nothing of it runs yet
    return Cause.PROGRESS if known.get("generation") == metadata.get("generation") else Cause.ALARM


def cause_of_pod(known: PodView | None, pod: PodView) -> Cause:
    """Of a version of a pod: an end, or the announcement of one, or a step on its way to being ready."""
    before = _end_of(known) if known is not None else _NO_END
    return Cause.PROGRESS if _end_of(pod) == before else Cause.ALARM


def cause_of_events(events: Iterable[CoordinatorEvent]) -> Cause:
    """Of what the coordinator tells."""
    kinds: Collection[EventKind] = {event.kind for event in events}
    return Cause.PROGRESS if _ALARMS.isdisjoint(kinds) else Cause.ALARM


_NO_END = (False, "", 0, None, None, False)


def _end_of(pod: PodView) -> tuple[object, ...]:
    over = pod.phase in ("Failed", "Succeeded")
    return pod.deleting, pod.disruption, pod.restarts, pod.ended, pod.last_end, over
