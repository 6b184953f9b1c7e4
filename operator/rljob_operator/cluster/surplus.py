"""Jobs beyond those that a namespace may have served at the same time: the youngest that have not begun. Pure.

A job that has begun is never one of them, also where the option has become smaller since.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rljob_api.status import ConditionType
from rljob_operator.kube.accepted_spec import is_ours
from rljob_operator.kube.api import Json
from rljob_operator.kube.views import JobKey

_ENDED = (ConditionType.SUCCEEDED.value, ConditionType.FAILED.value)


AGAIN_SECONDS = (10.0, 300.0)
"""How often a waiting job is looked at: one that begins soon, and at the latest."""


JOBS_AT_A_TIME = 50
"""Waiting jobs that are looked at as often as the first: each look goes over all jobs."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """A job that waits."""

    place: int
    """Among those that wait, from 0."""
    sentence: str
    """Why."""

    @property
    def again_seconds(self) -> float:
        """Until it is looked at again; the later it begins, the longer."""
        soonest, latest = AGAIN_SECONDS
        return min(latest, soonest * (1 + self.place // JOBS_AT_A_TIME))


def surplus(key: JobKey, jobs: Iterable[Json], most: int | None) -> Surplus | None:
    """The job as one that waits, where its namespace has `most` others before it; `jobs` are all that the cache has."""
    if most is None:
        return None
    counted = [raw for raw in jobs if raw["metadata"]["namespace"] == key.namespace and _counts(raw)]
    counted.sort(key=_order)
    waiting = [raw["metadata"]["name"] for raw in counted[most:] if not _has_begun(raw)]
    if key.name not in waiting:
        return None
    return Surplus(
        waiting.index(key.name),
        f"the operator's option jobsPerNamespace is {most}, and namespace {key.namespace} has as many other jobs that"
        " have not ended: this one begins when there are fewer. Delete one, or ask the cluster's"
        " administrator for more",
    )


def _counts(raw: Json) -> bool:
    """Whether a job is served and costs something: an ended one is kept until it is deleted."""
    return "deletionTimestamp" not in raw["metadata"] and is_ours(raw) and not _has_ended(raw)


def _order(raw: Json) -> tuple[bool, str, str]:
    metadata = raw["metadata"]
    return not _has_begun(raw), str(metadata.get("creationTimestamp", "")), metadata["name"]


def _has_begun(raw: Json) -> bool:
    restart = raw["status"].get("restart")
    epoch: Any = restart.get("epoch") if isinstance(restart, dict) else None
    return isinstance(epoch, int) and epoch > 0


def _has_ended(raw: Json) -> bool:
    conditions = raw["status"].get("conditions")
    return any(
        isinstance(one, dict) and one.get("type") in _ENDED and one.get("status") == "True"
        for one in (conditions if isinstance(conditions, list) else ())
    )
