"""Urgency: whether what was seen of a job is an alarm or progress. Pure; called where something is seen."""

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.wire.observation import CoordinatorEvent, CoordinatorStatus, EventKind
from rljob_operator.adapters.views import PodView
from rljob_operator.adapters.work_queue import Urgency

_ALARMS = frozenset(
    {
        EventKind.FAILURE_REPORTED,
        EventKind.UNIT_LOST,
        EventKind.ROWS_LOST,
        EventKind.PROMPT_SET_ASIDE,
        EventKind.STATE_LOST,
    }
)
"""Events of the coordinator that something may have to be restarted for."""


def urgency_of_job(known: Mapping[str, Any] | None, metadata: Mapping[str, Any]) -> Urgency:
    """Of a version of an RLJob, given the metadata of the one before: another wish, or only news."""
    if "deletionTimestamp" in metadata:
        return Urgency.ALARM
    if known is None or known["uid"] != metadata["uid"]:
        return Urgency.PROGRESS  # nothing of it runs yet
    return Urgency.PROGRESS if known.get("generation") == metadata.get("generation") else Urgency.ALARM


def urgency_of_pod(known: PodView | None, pod: PodView) -> Urgency:
    """Of a version of a pod: an end, or the announcement of one, or a step on its way to being ready."""
    before = _end_of(known) if known is not None else _NO_END
    return Urgency.PROGRESS if _end_of(pod) == before else Urgency.ALARM


def urgency_of_events(events: Iterable[CoordinatorEvent]) -> Urgency:
    """Of what the coordinator tells."""
    return Urgency.ALARM if any(event.kind in _ALARMS for event in events) else Urgency.PROGRESS


def urgency_of_status(seen: CoordinatorStatus) -> Urgency:
    """Of an answer of the coordinator that came when its turn was over."""
    return Urgency.ALARM if seen.failures else Urgency.PROGRESS


_NO_END = (False, "", 0, None, None, False)


def _end_of(pod: PodView) -> tuple[object, ...]:
    over = pod.phase in ("Failed", "Succeeded")
    return pod.deleting, pod.disruption, pod.restarts, pod.ended, pod.last_end, over
